"""Speech-to-text models of transformers with a decoder (Whisper, ...): from a folder, or a small random
one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import AsrModel, Prepared, audio_counts
from millrace.asr.models.files import load_local, read_config, saving
from millrace.asr.models.hf.features import HfFeatures
from millrace.asr.models.labels import IGNORE, padded_ids
from millrace.asr.models.mel import SAMPLING_RATE

_EOS, _PAD, _START = "<|endoftext|>", "<|pad|>", "<|startoftranscript|>"
_TINY = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 400,  # 8 s, so that a test does not compute 30
    "max_target_positions": 448,
}


@dataclass
class Seq2SeqPreparer:
    """Decoder inputs and labels."""

    tokenizer: Any
    features: HfFeatures
    start_id: int
    longest_target: int | None

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths, tokenizer = batch.lengths.tolist(), self.tokenizer
        tensors = self.features.on_host(batch)
        labels, dropped = [], []
        for row, (text, language) in enumerate(zip(batch.transcripts, batch.languages, strict=True)):
            label = self.label(text, language)
            longest, too_many = (
                self.features.longest,
                self.longest_target and len(label) > self.longest_target,
            )
            reason = (
                "audio_too_long"
                if longest and lengths[row] > longest
                else "text_too_long"
                if too_many
                else ""
            )
            if reason:
                dropped.append((int(batch.sample_ids[row]), reason))
                label = []
            labels.append(label)
        given = [[self.start_id, *label[:-1]] for label in labels]
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        tensors |= {"decoder_input_ids": padded_ids(given, pad)}
        tensors["labels"] = padded_ids([label or [IGNORE] for label in labels], IGNORE)
        width, texts = batch.audio.shape[1], [len(ids) for ids in given]
        counts = audio_counts(lengths, width)
        counts |= {"tokens": sum(texts), "padded_tokens": len(texts) * max(texts, default=0)}
        alone = self.features.flops(lengths, texts)
        padded = self.features.flops(
            [self.features.width(width)] * len(texts), [max(texts, default=0)] * len(texts)
        )
        counts |= {"flops": float(alone.sum()), "padded_flops": float(padded.sum())}
        return Prepared(batch, tensors, count=sum(map(len, labels)), counts=counts, dropped=dropped)

    def label(self, transcript: str, language: str | None) -> list[int]:
        """Ids that the decoder is to write after its start token: language and task where it has them, text,
        end."""
        text = self.tokenizer(
            " ".join(transcript.split()), add_special_tokens=False, split_special_tokens=True
        ).input_ids
        return [*self.prefix(language), *text, self.tokenizer.eos_token_id]

    def prefix(self, language: str | None) -> list[int]:
        """Whisper's control tokens behind the start token; none for models without them."""
        known = self.tokenizer.get_vocab()
        code = f"<|{language_code(language)}|>"
        if "<|notimestamps|>" not in known:
            return []
        wanted = [code, "<|transcribe|>"] if code in known else []
        return [known[token] for token in (*wanted, "<|notimestamps|>")]


class Seq2SeqModel(AsrModel):
    """An encoder-decoder. The loss is a sum over the decoder's tokens, end included."""

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__()
        self.hf, self.processor = hf, processor
        config = hf.config
        self.features = HfFeatures(processor.feature_extractor, config)
        longest = getattr(config, "max_target_positions", None)
        self.preparer = Seq2SeqPreparer(
            processor.tokenizer, self.features, config.decoder_start_token_id, longest
        )

    @classmethod
    def random(cls, texts: Iterable[str]) -> Seq2SeqModel:
        """A small Whisper with random weights, its byte-level BPE learned from `texts`."""
        import transformers as hf

        from millrace.asr.models.qwen.config import byte_level_tokenizer

        tokenizer = byte_level_tokenizer(texts, 512, _EOS, _PAD, (_START,))
        end, pad, start = tokenizer.convert_tokens_to_ids([_EOS, _PAD, _START])
        config = hf.WhisperConfig(
            **_TINY,
            vocab_size=len(tokenizer),
            eos_token_id=end,
            bos_token_id=end,
            pad_token_id=pad,
            decoder_start_token_id=start,
        )
        seconds = 2 * config.max_source_positions // 100
        processor = hf.WhisperProcessor(hf.WhisperFeatureExtractor(chunk_length=seconds), tokenizer)
        model = hf.WhisperForConditionalGeneration(config)
        model.generation_config.update(
            eos_token_id=end,
            pad_token_id=pad,
            bos_token_id=end,
            decoder_start_token_id=start,
            suppress_tokens=None,
        )
        return cls(model, processor)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Seq2SeqModel:
        """Raises MillraceError for a folder without a whole model."""
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

        read_config(folder)
        return cls(
            load_local(AutoModelForSpeechSeq2Seq, folder, dtype=torch.float32),
            load_local(AutoProcessor, folder),
        )

    def save_pretrained(self, folder: str | Path) -> None:
        with saving(folder) as partial:
            self.hf.save_pretrained(partial)
            self.processor.save_pretrained(partial)

    def gradient_checkpointing_enable(self) -> None:
        self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        heard = self.features.on_device(prepared, self.hf.dtype)
        logits = self.hf(**heard, decoder_input_ids=prepared["decoder_input_ids"], use_cache=False).logits
        losses = F.cross_entropy(
            logits.float().flatten(0, 1), prepared["labels"].flatten(), ignore_index=IGNORE, reduction="sum"
        )
        return losses + self.zero_loss(), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        most = 16 + int(16 * prepared["audio"].shape[1] / SAMPLING_RATE)
        longest = self.preparer.longest_target
        options = {
            "max_new_tokens": min(most, longest - 8) if longest else most,
            "do_sample": False,
            "num_beams": 1,
        }
        self.hf.generation_config.max_length = None
        if getattr(self.hf.generation_config, "lang_to_id", None):
            options["task"] = "transcribe"
        written = self.hf.generate(**self.features.on_device(prepared, self.hf.dtype), **options)
        texts = self.processor.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [" ".join(text.split()) for text in texts]

    def flops(self, samples: Sequence[int], tokens: Sequence[int] = ()) -> np.ndarray:
        return self.features.flops(samples, tokens)


def language_code(language: str | None) -> str:
    """`en` for en, en-US, EN, English; what is not known stays as it is, folded."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    wanted = (language or "").strip().lower().replace("_", "-")
    return TO_LANGUAGE_CODE.get(wanted, wanted.split("-")[0])
