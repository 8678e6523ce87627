"""What every speech recogniser here can do: prepare a batch, its loss, transcribe, save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from millrace.asr.loading.collate import Batch
from millrace.asr.models.mel import SAMPLING_RATE


class Prepared:
    """A batch as a model takes it: named tensors, and beside them what the host must know without asking the
    device.

    No mapping and no dataclass, so that wrappers which cast what they recognise leave the audio float32.
    audio: float32 (B, T); lengths: int64 (B,); others are the model's. `count` is what the loss is a sum
    over; `dropped` the (sample id, reason) of what takes no part in the loss; `counts` is for the meters: x
    and padded_x in audio_seconds, tokens and flops (of a forward pass), unlearned_<reason> of `dropped`,
    unusable_<reason> of what the batch lacks.
    """

    def __init__(
        self,
        batch: Batch,
        tensors: Mapping[str, torch.Tensor],
        *,
        count: int,
        counts: Mapping[str, float],
        host: Mapping[str, Any] | None = None,
        dropped: Sequence[tuple[int, str]] = (),
    ) -> None:
        self.tensors = {"audio": batch.audio, "lengths": batch.lengths, **tensors}
        self.count = 0 if batch.filler else count
        self.counts, self.host, self.dropped = dict(counts), dict(host or {}), tuple(dropped)
        left_out = [f"unlearned_{reason}" for _, reason in self.dropped]
        left_out += [f"unusable_{sample.reason}" for sample in batch.bad]
        self.counts |= {name: float(count) for name, count in Counter(left_out).items()}
        self.step, self.filler, self.sample_ids = batch.step, batch.filler, np.asarray(batch.sample_ids)
        self.transcripts, self.languages = list(batch.transcripts), list(batch.languages)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __len__(self) -> int:
        return len(self.transcripts)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Prepared:
        """The same batch with its tensors on `device`."""
        self.tensors = {
            name: value.to(device, non_blocking=non_blocking) for name, value in self.tensors.items()
        }
        return self

    def pin_memory(self) -> Prepared:
        """The same batch with its tensors in page-locked memory."""
        self.tensors = {name: value.pin_memory() for name, value in self.tensors.items()}
        return self


class Preparer(Protocol):
    """The host's part of a model, without weights: small enough to travel to a worker."""

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        """With `epoch`, what is random about training is drawn for (seed, epoch, sample id); without, nothing
        is."""


class AsrModel(nn.Module, ABC):
    """A speech recogniser. `preparer` is its host part."""

    preparer: Preparer

    def prepare(self, batch: Batch, epoch: int | None = None) -> Prepared:
        """Labels, masks and counts of a batch; on the host, best before the batch goes to the device."""
        return self.preparer(batch, epoch)

    @abstractmethod
    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        """(sum of the loss, float32 scalar, and what it is a sum over). A batch of which nothing can be used
        gives (0, 0), the zero with gradients for all parameters."""

    @abstractmethod
    def transcribe(self, prepared: Prepared) -> list[str]:
        """Greedy transcriptions, one for each sample, also for those that take no part in the loss."""

    def reference(self, transcript: str) -> str:
        """The transcript as this model is taught to write it: what transcriptions are compared with."""
        return " ".join(transcript.split())

    @abstractmethod
    def flops(self, samples: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """Floating-point operations (two a multiplication and addition) of a forward pass over each clip
        alone, from its length in samples and its number of text tokens; training costs about three times
        that."""

    @abstractmethod
    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights, configuration and vocabulary to `folder`."""

    @abstractmethod
    def gradient_checkpointing_enable(self) -> None:
        """Compute activations again in the backward pass: less memory, a third more work."""

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def zero_loss(self) -> torch.Tensor:
        """0, connected to every parameter and free of their values."""
        trained = [
            parameter.flatten()[:1].sum().float()
            for parameter in self.parameters()
            if parameter.requires_grad
        ]
        return torch.stack(trained).nan_to_num(0.0, 0.0, 0.0).sum() * 0.0


def audio_counts(lengths: Sequence[int], width: int) -> dict[str, float]:
    """Seconds of audio, and of the padded tensor `width` samples wide."""
    return {
        "audio_seconds": sum(lengths) / SAMPLING_RATE,
        "padded_audio_seconds": len(lengths) * width / SAMPLING_RATE,
    }
