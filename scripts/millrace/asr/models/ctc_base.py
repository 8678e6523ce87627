"""What CTC recognisers share: labels that fit, loss, greedy paths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import AsrModel, Prepared, meter_counts
from millrace.asr.models.labels import padded_ids


def prepared_labels(
    batch: Batch,
    tensors: dict[str, Tensor],
    labels: list[list[int]],
    steps: Sequence[int],
    blank: int,
    flops: np.ndarray,
    padded_flops: np.ndarray,
) -> Prepared:
    """The batch with its labels, less those that CTC cannot emit in the clip's steps; `tensors` are
    kept."""
    lengths, dropped = batch.lengths.tolist(), []
    for row, label in enumerate(labels):
        # CTC emits one label a step, and a blank between equal neighbours.
        needed = len(label) + sum(a == b for a, b in pairwise(label))
        if not label or needed > steps[row]:
            dropped.append((int(batch.sample_ids[row]), "text_too_long" if label else "no_text"))
            labels[row] = []
    tensors["targets"] = padded_ids(labels, 0 if blank else 1)
    counts = meter_counts(lengths, batch.audio.shape[1], steps, flops, padded_flops)
    host = {"steps": steps, "label_lengths": [len(label) for label in labels]}
    return Prepared(
        batch, tensors, count=sum(map(len, labels)), counts=counts, host=host, dropped=dropped
    )


class CtcBase(AsrModel):
    """A model over characters. The loss is a sum over characters.

    Clips without text, or with more than CTC can emit in their steps, take no part
    (`Prepared.dropped`).
    """

    blank: int

    @abstractmethod
    def log_probabilities(self, prepared: Prepared) -> Tensor:
        """float32 (B, steps, characters and blank)."""

    @abstractmethod
    def text_of(self, path: Sequence[int]) -> str:
        """The text of a CTC path: repeats are one character, blanks part them."""

    def forward(self, prepared: Prepared) -> tuple[Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        steps, lengths = tuple(prepared.host["steps"]), tuple(prepared.host["label_lengths"])
        scores = self.log_probabilities(prepared).transpose(0, 1)
        losses = F.ctc_loss(
            scores,
            prepared["targets"],
            steps,
            lengths,
            blank=self.blank,
            reduction="none",
            zero_infinity=True,
        )
        has_labels = torch.tensor([length > 0 for length in lengths]).to(
            losses.device, non_blocking=True
        )
        return losses.where(has_labels, 0.0).sum(), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        paths = self.log_probabilities(prepared).argmax(-1).cpu().tolist()
        return [
            self.text_of(path[:count])
            for path, count in zip(paths, prepared.host["steps"], strict=True)
        ]
