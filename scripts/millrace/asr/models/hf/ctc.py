"""CTC models of transformers: wav2vec 2.0, HuBERT, WavLM, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared, meter_counts
from millrace.asr.models.hf.features import HfFeatures
from millrace.asr.models.hf.model import HfModel
from millrace.asr.models.labels import ctc_loss, drop_unfit, padded_ids


@dataclass
class HfCtcPreparer:
    """Label ids and lengths; whatever features the host must compute."""

    tokenizer: Any
    features: HfFeatures

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths, width, features = batch.lengths.tolist(), batch.audio.shape[1], self.features
        tensors = features.on_host(batch)
        steps = features.batch_steps(lengths, tensors)
        references = [self.reference(text) for text in batch.transcripts]
        labels = [self.tokenizer(text).input_ids if text else [] for text in references]
        dropped = drop_unfit(labels, steps, batch.sample_ids)
        tensors["targets"] = padded_ids(labels, 0 if self.tokenizer.pad_token_id else 1)  # never the blank
        padded = features.flops([width] * len(lengths))
        counts = meter_counts(lengths, width, steps, features.flops(lengths), padded)
        host = {"steps": steps, "label_lengths": [len(label) for label in labels]}
        return Prepared(
            batch, tensors, count=sum(map(len, labels)), counts=counts, host=host, dropped=dropped
        )

    def reference(self, transcript: str) -> str:
        """The transcript in the tokenizer's alphabet: in its case if it has only one, known characters only."""
        known = self.tokenizer.get_vocab()
        letters = [token for token in known if len(token) == 1]
        has_lower, has_upper = any(map(str.islower, letters)), any(map(str.isupper, letters))
        text = " ".join(transcript.split())
        if has_lower != has_upper:
            text = text.lower() if has_lower else text.upper()
        return " ".join("".join(c for c in text if c == " " or c in known).split())


class HfCtcModel(HfModel):
    """A transformers CTC head model. The loss is a sum over characters; clips it cannot fit take no part."""

    model_types = (
        *("wav2vec2", "wav2vec2-conformer", "hubert", "wavlm", "data2vec-audio", "sew", "sew-d"),
        *("unispeech", "unispeech-sat", "wav2vec2-bert"),
    )
    hf_classes = ("AutoModelForCTC", "AutoProcessor")

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__(hf, processor)
        # Layers left out at random leave parameters without gradients, for which other ranks would wait.
        hf.config.layerdrop = 0.0
        self.features = HfFeatures(processor.feature_extractor, hf.config)
        self.augmented = bool(getattr(hf.config, "apply_spec_augment", False))
        self.preparer = HfCtcPreparer(processor.tokenizer, self.features)

    def save_parts(self, folder: Path) -> None:
        self.hf.config.apply_spec_augment = self.augmented
        super().save_parts(folder)

    def log_probabilities(self, prepared: Prepared) -> torch.Tensor:
        """float32 (B, steps, tokens)."""
        config = self.hf.config
        # transformers' own SpecAugment refuses batches that are shorter than a span.
        config.apply_spec_augment = self.augmented and max(prepared.host["steps"]) > config.mask_time_length
        return self.hf(**self.features.on_device(prepared, self.hf.dtype)).logits.float().log_softmax(-1)

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        probabilities, host = self.log_probabilities(prepared), prepared.host
        blank = self.processor.tokenizer.pad_token_id
        loss = ctc_loss(probabilities, prepared["targets"], host["steps"], host["label_lengths"], blank)
        return loss + self.zero_loss(), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        paths = self.log_probabilities(prepared).argmax(-1).cpu().tolist()
        decode, steps = self.processor.tokenizer.decode, prepared.host["steps"]
        return [" ".join(decode(path[:count]).split()) for path, count in zip(paths, steps, strict=True)]

    def reference(self, transcript: str) -> str:
        return self.preparer.reference(transcript)

    def flops(self, samples: Sequence[int], tokens: Sequence[int] = ()) -> np.ndarray:
        return self.features.flops(samples)
