"""Speech-to-text models of transformers with a decoder: Whisper, Moonshine, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared, meter_counts
from millrace.asr.models.hf.features import HfFeatures
from millrace.asr.models.hf.model import HfModel
from millrace.asr.models.labels import IGNORE, padded_ids
from millrace.asr.models.mel import SAMPLING_RATE
from millrace.common.errors import MillraceError


@dataclass
class Seq2SeqPreparer:
    """Decoder inputs and labels."""

    tokenizer: Any
    features: HfFeatures
    start_id: int
    max_target: int | None

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths, width, features = batch.lengths.tolist(), batch.audio.shape[1], self.features
        tensors, _ = features.on_host(batch)

        # Clips and texts that the model cannot take have no label.
        labels, dropped = [], []
        texts = zip(batch.transcripts, batch.languages, lengths, batch.sample_ids, strict=True)
        for transcript, language, length, sample_id in texts:
            label, reason = self.label(transcript, language), ""
            if features.max_samples and length > features.max_samples:
                reason = "audio_too_long"
            elif self.max_target and len(label) > self.max_target:
                reason = "text_too_long"
            if reason:
                dropped.append((int(sample_id), reason))
            labels.append([] if reason else label)

        # At each place the decoder reads the token before the one it is to write.
        inputs = [[self.start_id, *label[:-1]] for label in labels]
        pad = self.tokenizer.pad_token_id
        tensors["decoder_input_ids"] = padded_ids(
            inputs, self.tokenizer.eos_token_id if pad is None else pad
        )
        tensors["labels"] = padded_ids([label or [IGNORE] for label in labels], IGNORE)

        tokens = [len(ids) for ids in inputs]
        samples, longest = features.max_samples or width, max(tokens, default=0)
        padded = features.flops([samples] * len(tokens), [longest] * len(tokens))
        counts = meter_counts(lengths, width, tokens, features.flops(lengths, tokens), padded)
        return Prepared(batch, tensors, count=sum(map(len, labels)), counts=counts, dropped=dropped)

    def label(self, transcript: str, language: str | None) -> list[int]:
        """Ids that the decoder is to write: Whisper's language and task, if the model has them;
        text; end."""
        known, control = self.tokenizer.get_vocab(), []
        if "<|notimestamps|>" in known:
            code = f"<|{_code(language)}|>"
            control = [code, "<|transcribe|>"] if code in known else []
            control = [known[token] for token in (*control, "<|notimestamps|>")]
        text = " ".join(transcript.split())
        written = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True
        ).input_ids
        return [*control, *written, self.tokenizer.eos_token_id]


class Seq2SeqModel(HfModel):
    """An encoder-decoder. The loss is a sum over the decoder's tokens, end included."""

    model_types = MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    hf_classes = ("AutoModelForSpeechSeq2Seq", "AutoProcessor")
    preparer: Seq2SeqPreparer

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__(hf, processor)
        self.features = HfFeatures(processor.feature_extractor, hf.config)
        start_id = hf.config.decoder_start_token_id
        max_target = getattr(hf.config, "max_target_positions", None)
        self.preparer = Seq2SeqPreparer(processor.tokenizer, self.features, start_id, max_target)

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        inputs = self.features.on_device(prepared, self.hf.dtype)
        logits = self.hf(
            **inputs, decoder_input_ids=prepared["decoder_input_ids"], use_cache=False
        ).logits
        logits, labels = logits.float().flatten(0, 1), prepared["labels"].flatten()
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
        return loss + self.zero_loss(), prepared.count

    @property
    def max_seconds(self) -> float:
        return (self.features.max_samples or math.inf) / SAMPLING_RATE

    def transcribe(self, prepared: Prepared) -> list[str]:
        return self._written(prepared)

    def recognise(self, prepared: Prepared, language: str = "") -> list[tuple[str, str]]:
        codes = getattr(self.hf.generation_config, "lang_to_id", None) or {}
        if not len(prepared) or not codes:
            return super().recognise(prepared, language)
        languages = [language] * len(prepared)
        code = _code(language)
        if not language:
            inputs = self.features.on_device(prepared, self.hf.dtype)
            ids = self.hf.detect_language(
                **inputs, generation_config=self.hf.generation_config
            ).tolist()
            names = {number: token.strip("<|>") for token, number in codes.items()}
            languages = [names.get(number, "") for number in ids]
        elif f"<|{code}|>" not in codes:
            known = ", ".join(sorted(token.strip("<|>") for token in codes))
            raise MillraceError(
                f"the model has no language {language!r}", "--language", f"It knows {known}"
            )
        return list(zip(languages, self._written(prepared, code), strict=True))

    @torch.no_grad()
    def _written(self, prepared: Prepared, code: str = "") -> list[str]:
        """Greedy transcriptions, in the language of a Whisper code if there is one."""
        if not len(prepared):
            return []
        max_tokens = 16 + int(16 * prepared["audio"].shape[1] / SAMPLING_RATE)
        if self.preparer.max_target:
            max_tokens = min(max_tokens, self.preparer.max_target - 8)
        settings, inputs = (
            self.hf.generation_config,
            self.features.on_device(prepared, self.hf.dtype),
        )
        settings.max_length = None
        if getattr(settings, "lang_to_id", None):
            inputs |= {"task": "transcribe"} | ({"language": code} if code else {})
        written = self.hf.generate(
            **inputs, max_new_tokens=max_tokens, do_sample=False, num_beams=1
        )
        texts = self.processor.tokenizer.batch_decode(written, skip_special_tokens=True)
        return [" ".join(text.split()) for text in texts]


def _code(language: str | None) -> str:
    """Whisper's code of a language: `en` for en, en-US, EN, English."""
    name = (language or "").strip().lower().replace("_", "-")
    return TO_LANGUAGE_CODE.get(name, name.split("-")[0])
