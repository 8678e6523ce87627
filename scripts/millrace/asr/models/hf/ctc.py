"""CTC models of transformers over waveforms (wav2vec 2.0, HuBERT, WavLM, ...): transcripts in the
tokenizer's letters and case, and when their random masking is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared
from millrace.asr.models.ctc_base import CtcBase, prepared_labels
from millrace.asr.models.hf.model import HfModel
from millrace.asr.models.mel import padded_to, standardised


class Waveforms:
    """Waveforms as the extractor gives them, for a whole padded batch; holds no weights."""

    def __init__(self, extractor: Any, config: Any) -> None:
        self.extractor = extractor
        # (kernel, stride) of each convolution.
        self.convolutions = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        self.min_samples = 1  # the fewest that give one step
        for kernel, stride in reversed(self.convolutions):
            self.min_samples = (self.min_samples - 1) * stride + kernel

    def on_device(self, prepared: Prepared, dtype: torch.dtype) -> dict[str, Tensor]:
        """Arguments of the model: the audio in its dtype, and a mask."""
        audio = padded_to(prepared["audio"], self.min_samples)
        lengths = prepared["lengths"][:, None]
        places = torch.arange(audio.shape[1], device=audio.device)
        if self.extractor.do_normalize:
            audio = standardised(audio, places < lengths, 1e-7)
        inputs = {"input_values": audio.to(dtype)}
        if self.extractor.return_attention_mask:
            # Too short a clip would have no frame at all, which these models cannot take.
            heard = places < lengths.clamp(min=self.min_samples)
            inputs["attention_mask"] = heard.long()
        return inputs

    def steps(self, samples: int) -> int:
        """Encoder steps of a clip, one at least."""
        for kernel, stride in self.convolutions:
            samples = (samples - kernel) // stride + 1
        return max(samples, 1)


@dataclass
class HfCtcPreparer:
    """Label ids and lengths."""

    tokenizer: Any
    features: Waveforms

    def __call__(self, batch: Batch) -> Prepared:
        references = [self.reference(text) for text in batch.transcripts]
        labels = [self.tokenizer(text).input_ids if text else [] for text in references]
        steps = [self.features.steps(length) for length in batch.lengths.tolist()]
        return prepared_labels(batch, labels, self.tokenizer.pad_token_id, steps)

    def reference(self, transcript: str) -> str:
        """The transcript in the tokenizer's characters, and in its case if it has only one."""
        known = self.tokenizer.get_vocab()
        letters = [token for token in known if len(token) == 1]
        has_lower = any(map(str.islower, letters))
        has_upper = any(map(str.isupper, letters))
        text = " ".join(transcript.split())
        if has_lower and not has_upper:
            text = text.lower()
        if has_upper and not has_lower:
            text = text.upper()
        written = "".join(character for character in text if character in {" ", *known})
        return " ".join(written.split())


class HfCtcModel(CtcBase, HfModel):
    """A transformers model with a CTC head."""

    model_types = (
        "wav2vec2",
        "wav2vec2-conformer",
        "hubert",
        "wavlm",
        "data2vec-audio",
        "sew",
        "sew-d",
        "unispeech",
        "unispeech-sat",
    )
    hf_classes = ("AutoModelForCTC", "AutoProcessor")
    extractor = "Wav2Vec2FeatureExtractor"
    head = ("lm_head.",)
    preparer: HfCtcPreparer

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__(hf, processor)
        # Layers left out at random leave parameters without gradients, for which other ranks would
        # wait.
        hf.config.layerdrop = 0.0
        self.features = Waveforms(processor.feature_extractor, hf.config)
        self.augmented = bool(getattr(hf.config, "apply_spec_augment", False))
        self.blank = processor.tokenizer.pad_token_id
        self.preparer = HfCtcPreparer(processor.tokenizer, self.features)

    def save_parts(self, folder: Path) -> None:
        self.hf.config.apply_spec_augment = self.augmented
        super().save_parts(folder)

    def log_probabilities(self, prepared: Prepared) -> Tensor:
        config = self.hf.config
        # transformers' own SpecAugment refuses batches that are shorter than a span.
        is_long = max(prepared.host["steps"]) > config.mask_time_length
        config.apply_spec_augment = self.augmented and is_long
        inputs = self.features.on_device(prepared, self.hf.dtype)
        return self.hf(**inputs).logits.float().log_softmax(-1)

    def forward(self, prepared: Prepared) -> tuple[Tensor, int]:
        loss, count = super().forward(prepared)
        # Other ranks wait for the gradients of unused parameters too.
        return loss + self.zero_loss(), count

    def text_of(self, path: Sequence[int]) -> str:
        return " ".join(self.processor.tokenizer.decode(path).split())

    def reference(self, transcript: str) -> str:
        return self.preparer.reference(transcript)
