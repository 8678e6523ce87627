"""CTC models of transformers: wav2vec 2.0, HuBERT, WavLM, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared
from millrace.asr.models.ctc_base import CtcBase, prepared_labels
from millrace.asr.models.hf.features import HfFeatures
from millrace.asr.models.hf.model import HfModel


@dataclass
class HfCtcPreparer:
    """Label ids and lengths; whatever features the host must compute."""

    tokenizer: Any
    features: HfFeatures

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths, width, features = batch.lengths.tolist(), batch.audio.shape[1], self.features
        tensors, steps = features.on_host(batch)
        references = [self.reference(text) for text in batch.transcripts]
        labels = [self.tokenizer(text).input_ids if text else [] for text in references]
        blank, padded = self.tokenizer.pad_token_id, features.flops([width] * len(lengths))
        return prepared_labels(
            batch, tensors, labels, steps, blank, features.flops(lengths), padded
        )

    def reference(self, transcript: str) -> str:
        """The transcript in the tokenizer's characters, and in its case if it has only one."""
        known = self.tokenizer.get_vocab()
        letters = [token for token in known if len(token) == 1]
        has_lower, has_upper = any(map(str.islower, letters)), any(map(str.isupper, letters))
        text = " ".join(transcript.split())
        if has_lower != has_upper:
            text = text.lower() if has_lower else text.upper()
        return " ".join("".join(c for c in text if c == " " or c in known).split())


class HfCtcModel(CtcBase, HfModel):
    """A transformers model with a CTC head."""

    model_types = (
        *("wav2vec2", "wav2vec2-conformer", "hubert", "wavlm", "data2vec-audio", "sew", "sew-d"),
        *("unispeech", "unispeech-sat", "wav2vec2-bert"),
    )
    hf_classes = ("AutoModelForCTC", "AutoProcessor")
    head = ("lm_head.",)
    preparer: HfCtcPreparer

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__(hf, processor)
        # Layers left out at random leave parameters without gradients, for which other ranks would
        # wait.
        hf.config.layerdrop = 0.0
        self.features = HfFeatures(processor.feature_extractor, hf.config)
        self.augmented = bool(getattr(hf.config, "apply_spec_augment", False))
        self.blank = processor.tokenizer.pad_token_id
        self.preparer = HfCtcPreparer(processor.tokenizer, self.features)

    def save_parts(self, folder: Path) -> None:
        self.hf.config.apply_spec_augment = self.augmented
        super().save_parts(folder)

    def log_probabilities(self, prepared: Prepared) -> Tensor:
        config = self.hf.config
        # transformers' own SpecAugment refuses batches that are shorter than a span.
        config.apply_spec_augment = (
            self.augmented and max(prepared.host["steps"]) > config.mask_time_length
        )
        return (
            self.hf(**self.features.on_device(prepared, self.hf.dtype))
            .logits.float()
            .log_softmax(-1)
        )

    def forward(self, prepared: Prepared) -> tuple[Tensor, int]:
        loss, count = super().forward(prepared)
        return (
            loss + self.zero_loss(),
            count,
        )  # other ranks wait for the gradients of unused parameters too

    def text_of(self, path: Sequence[int]) -> str:
        return " ".join(self.processor.tokenizer.decode(path).split())

    def reference(self, transcript: str) -> str:
        return self.preparer.reference(transcript)
