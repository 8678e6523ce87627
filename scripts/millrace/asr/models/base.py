"""The interface of a speech recogniser: prepare a batch, its loss, transcribe, save and load."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from millrace.asr.loading.collate import Batch
from millrace.asr.models.mel import SAMPLING_RATE


class Prepared:
    """A batch as a model takes it: named tensors, and what the host must know without asking the
    device.

    No mapping and no dataclass, so that wrappers which cast what they recognise leave the audio
    float32. audio: float32 (B, T); lengths: int64 (B,); others are the model's. `count` is what the
    loss is a sum over; `dropped` the (sample id, reason) of what takes no part in the loss;
    `counts` is for the meters: those of `meter_counts`, unlearned_<reason> of `dropped`,
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
        self.tensors = {
            "audio": batch.audio,
            "lengths": batch.lengths,
            **tensors,
        }
        self.count = 0 if batch.filler else count
        self.counts = dict(counts)
        self.host = dict(host or {})
        self.dropped = tuple(dropped)
        reasons = [f"unlearned_{reason}" for _, reason in self.dropped]
        reasons += [f"unusable_{sample.reason}" for sample in batch.bad]
        self.counts |= {name: float(number) for name, number in Counter(reasons).items()}
        self.filler = batch.filler
        self.sample_ids = np.asarray(batch.sample_ids)

    @classmethod
    def of(cls, batch: Batch) -> Prepared:
        """The batch with what `PrepareInWorker` has made of it."""
        assert batch.prepared is not None  # the caller has looked
        return cls(batch, **batch.prepared)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __len__(self) -> int:
        return len(self.sample_ids)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Prepared:
        """The same batch with its tensors on `device`."""
        self.tensors = {
            name: t.to(device, non_blocking=non_blocking) for name, t in self.tensors.items()
        }
        return self


@dataclass
class PrepareInWorker:
    """A dataset's transform: the batch with what a model's preparer makes of it, for
    `Prepared.of`."""

    preparer: Callable[[Batch], Prepared]

    def __call__(self, batch: Batch) -> Batch:
        made = self.preparer(batch)
        own = ("audio", "lengths")
        tensors = {name: t for name, t in made.tensors.items() if name not in own}
        batch.prepared = {
            "tensors": tensors,
            "count": made.count,
            "counts": made.counts,
            "host": made.host,
            "dropped": made.dropped,
        }
        return batch


class AsrModel(nn.Module, ABC):
    """A speech recogniser. `preparer` is its host part, without weights: small enough to travel to
    a worker.

    The registry asks for `model_types`, the values of config.json's model_type that the class
    reads, and for the options of a new model and of one from a folder: name -> type, as annotations
    name it.
    """

    model_types: ClassVar[Collection[str]]
    option_types: ClassVar[Mapping[str, str]] = {}
    folder_option_types: ClassVar[Mapping[str, str]] = {}
    layouts: ClassVar[Collection[str]] = ("transformers",)
    layout = "transformers"  # one of `layouts`: how save_pretrained writes
    preparer: Callable[[Batch], Prepared]

    @classmethod
    def create(cls, name: str, options: Mapping[str, Any], transcripts: Iterable[str]) -> AsrModel:
        """A model with random weights, for classes that have names in the registry."""
        raise NotImplementedError(f"{cls.__name__} is only read from folders")

    @classmethod
    @abstractmethod
    def from_pretrained(cls, folder: str | Path, options: Mapping[str, Any]) -> AsrModel:
        """The model saved in `folder`. Raises MillraceError for a folder without a whole model."""

    def prepare(self, batch: Batch) -> Prepared:
        """Labels, masks and counts of a batch; on the host, best before the batch goes to the
        device."""
        if batch.prepared is None:
            return self.preparer(batch)
        return Prepared.of(batch)

    @abstractmethod
    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        """(Sum of the loss, float32 scalar; what it is a sum over).

        A batch of which nothing can be used gives (0, 0), the zero with gradients for all
        parameters.
        """

    def transcribe(self, prepared: Prepared) -> list[str]:
        """Greedy transcriptions, one for each sample, also for those that take no part in the
        loss."""
        return [text for _, text in self.recognise(prepared)]

    @abstractmethod
    def recognise(self, prepared: Prepared, language: str = "") -> list[tuple[str, str]]:
        """(language, text) of each sample. A model that takes a language is told `language`, or
        finds it; of others it is what was given."""

    @property
    def max_seconds(self) -> float:
        """The longest clip that the model hears to its end."""
        return math.inf

    def reference(self, transcript: str) -> str:
        """The transcript as this model is taught to write it: what transcriptions are compared
        with."""
        return " ".join(transcript.split())

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
        firsts = [part.flatten()[:1].sum().float() for part in self.parameters()]
        return torch.stack(firsts).nan_to_num(0.0, 0.0, 0.0).sum() * 0.0


class Flops(NamedTuple):
    """Operations of a forward pass over the clips of a batch, alone and with padding."""

    used: np.ndarray
    padded: np.ndarray


def meter_counts(
    lengths: Sequence[int], width: int, tokens: Sequence[int], flops: Flops | None = None
) -> dict[str, float]:
    """x and padded_x in audio_seconds, tokens, and flops if they are known, of a batch.

    lengths: samples of the clips, padded to `width`; tokens: of the clips, padded to the longest.
    """
    counts = {
        "audio_seconds": sum(lengths) / SAMPLING_RATE,
        "padded_audio_seconds": len(lengths) * width / SAMPLING_RATE,
        "tokens": float(sum(tokens)),
        "padded_tokens": float(len(tokens) * max(tokens, default=0)),
    }
    if flops is not None:
        counts["flops"] = float(flops.used.sum())
        counts["padded_flops"] = float(flops.padded.sum())
    return counts
