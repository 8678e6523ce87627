"""Whisper, as transformers has it: tokens of language and task, clips and texts that are too long,
and how much it may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared, meter_counts
from millrace.asr.models.hf.model import HfModel
from millrace.asr.models.labels import IGNORE, padded_ids
from millrace.asr.models.mel import SAMPLING_RATE, LogMel, padded_to
from millrace.common.errors import MillraceError


class WhisperMel:
    """Mel of the samples that the encoder always takes, `max_samples`; holds no weights."""

    def __init__(self, extractor: Any, config: Any) -> None:
        self.mel = LogMel(extractor.feature_size, extractor.n_fft, extractor.hop_length)
        self.samples_per_step = 2 * extractor.hop_length
        # 30 s for the published models.
        self.max_samples = config.max_source_positions * self.samples_per_step

    def on_device(self, prepared: Prepared, dtype: torch.dtype) -> dict[str, Tensor]:
        """Arguments of the model, in its dtype."""
        audio = padded_to(prepared["audio"], self.max_samples)
        return {"input_features": self.mel(audio[:, : self.max_samples]).to(dtype)}


@dataclass
class Seq2SeqPreparer:
    """Decoder inputs and labels."""

    tokenizer: Any
    features: WhisperMel
    start_id: int
    max_target: int

    def __call__(self, batch: Batch) -> Prepared:
        # Clips and texts that the model cannot take have no label.
        lengths = batch.lengths.tolist()
        labels = []
        dropped = []
        texts = zip(batch.transcripts, batch.languages, lengths, batch.sample_ids, strict=True)
        for transcript, language, length, sample_id in texts:
            label = self.label(transcript, language)
            reason = self._reason(length, label)
            if reason:
                dropped.append((int(sample_id), reason))
                label = []
            labels.append(label)

        # At each place the decoder reads the token before the one it is to write.
        inputs = [[self.start_id, *label[:-1]] for label in labels]
        pad = self.tokenizer.pad_token_id
        if pad is None:
            pad = self.tokenizer.eos_token_id
        tensors = {
            "decoder_input_ids": padded_ids(inputs, pad),
            "labels": padded_ids(labels, IGNORE),
        }
        tokens = list(map(len, inputs))
        counts = meter_counts(lengths, batch.audio.shape[1], tokens)
        count = sum(map(len, labels))
        return Prepared(batch, tensors, count=count, counts=counts, dropped=dropped)

    def _reason(self, length: int, label: Sequence[int]) -> str:
        """Why a sample takes no part in the loss; "" if it does."""
        if length > self.features.max_samples:
            return "audio_too_long"
        if len(label) > self.max_target:
            return "text_too_long"
        return ""

    def label(self, transcript: str, language: str | None) -> list[int]:
        """Ids that the decoder is to write: Whisper's language and task, if the model has them;
        text; end."""
        known = self.tokenizer.get_vocab()
        code = f"<|{_code(language)}|>"
        control = [code, "<|transcribe|>"] if code in known else []
        if "<|notimestamps|>" in known:
            control.append("<|notimestamps|>")
        text = " ".join(transcript.split())
        written = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True
        ).input_ids
        return [*(known[token] for token in control), *written, self.tokenizer.eos_token_id]


class Seq2SeqModel(HfModel):
    """An encoder-decoder. The loss is a sum over the decoder's tokens, end included."""

    model_types = ("whisper",)
    hf_classes = ("AutoModelForSpeechSeq2Seq", "AutoProcessor")
    extractor = "WhisperFeatureExtractor"
    preparer: Seq2SeqPreparer

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__(hf, processor)
        self.features = WhisperMel(processor.feature_extractor, hf.config)
        self.preparer = Seq2SeqPreparer(
            processor.tokenizer,
            self.features,
            hf.config.decoder_start_token_id,
            hf.config.max_target_positions,
        )

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        inputs = self.features.on_device(prepared, self.hf.dtype)
        ids = prepared["decoder_input_ids"]
        logits = self.hf(**inputs, decoder_input_ids=ids, use_cache=False).logits
        loss = F.cross_entropy(
            logits.float().flatten(0, 1),
            prepared["labels"].flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        return loss + self.zero_loss(), prepared.count

    @property
    def max_seconds(self) -> float:
        return self.features.max_samples / SAMPLING_RATE

    @torch.no_grad()
    def recognise(self, prepared: Prepared, language: str = "") -> list[tuple[str, str]]:
        if not len(prepared):
            return []
        inputs: dict[str, Any] = dict(self.features.on_device(prepared, self.hf.dtype))
        known = getattr(self.hf.generation_config, "lang_to_id", None) or {}
        if known:
            inputs["task"] = "transcribe"
        if known and language:
            inputs["language"] = self._known_code(language, known)
        longest = 16 + int(16 * prepared["audio"].shape[1] / SAMPLING_RATE)
        written = self.hf.generate(
            **inputs,
            max_new_tokens=min(longest, self.preparer.max_target - 8),
            do_sample=False,
            num_beams=1,
        )
        texts = self.processor.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [(language, " ".join(text.split())) for text in texts]

    def _known_code(self, language: str, known: Mapping[str, int]) -> str:
        code = _code(language)
        if f"<|{code}|>" not in known:
            problem = f"the model has no language {language!r}"
            names = ", ".join(sorted(token.strip("<|>") for token in known))
            raise MillraceError(problem, "--language", f"It knows {names}")
        return code


def _code(language: str | None) -> str:
    """Whisper's code of a language: `en` for en, en-US, EN, English."""
    name = (language or "").strip().lower().replace("_", "-")
    return TO_LANGUAGE_CODE.get(name, name.split("-")[0])
