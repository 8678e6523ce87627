"""What CTC recognisers share: loss, greedy paths, and which clips are too short for their text, so
that they take no part in the loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import AsrModel, Flops, Prepared, meter_counts
from millrace.asr.models.labels import padded_ids


def prepared_labels(
    batch: Batch,
    labels: list[list[int]],
    blank: int,
    steps: Sequence[int],
    flops: Flops | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Prepared:
    """The batch with its labels, less those that CTC cannot emit in the clip's steps; `tensors` are
    kept."""
    dropped = []
    for row, label in enumerate(labels):
        # CTC emits one label a step, and a blank between equal neighbours.
        repeats = sum(first == second for first, second in pairwise(label))
        if label and len(label) + repeats <= steps[row]:
            continue
        reason = "text_too_long" if label else "no_text"
        dropped.append((int(batch.sample_ids[row]), reason))
        labels[row] = []

    targets = padded_ids(labels, 0 if blank else 1)
    lengths = [len(label) for label in labels]
    counts = meter_counts(batch.lengths.tolist(), batch.audio.shape[1], steps, flops)
    return Prepared(
        batch,
        {**(tensors or {}), "targets": targets},
        count=sum(lengths),
        counts=counts,
        host={"steps": steps, "label_lengths": lengths},
        dropped=dropped,
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
        lengths = tuple(prepared.host["label_lengths"])
        losses = F.ctc_loss(
            self.log_probabilities(prepared).transpose(0, 1),
            prepared["targets"],
            tuple(prepared.host["steps"]),
            lengths,
            blank=self.blank,
            reduction="none",
            zero_infinity=True,
        )
        has_labels = torch.tensor([length > 0 for length in lengths])
        has_labels = has_labels.to(losses.device, non_blocking=True)
        return losses.where(has_labels, 0.0).sum(), prepared.count

    @torch.no_grad()
    def recognise(self, prepared: Prepared, language: str = "") -> list[tuple[str, str]]:
        if not len(prepared):
            return []
        paths = self.log_probabilities(prepared).argmax(-1).cpu().tolist()
        steps = prepared.host["steps"]
        texts = [self.text_of(path[:count]) for path, count in zip(paths, steps, strict=True)]
        return [(language, text) for text in texts]
