"""Decode the members of a step into one padded tensor, ready to cross from a worker to the
trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from millrace.asr.loading.decode import (
    SAMPLING_RATE,
    DecodeError,
    decode,
    decode_flac,
    flac_samples,
)
from millrace.asr.loading.reader import ReadError
from millrace.asr.loading.row_table import Row
from millrace.common.loading.bad_samples import BadSample, SampleError
from millrace.common.loading.slots import BatchSlots, leased, shared_floats

# A clip this much longer than its manifest says would break the memory budget of its batch.
_LONGER_FACTOR, _LONGER_SECONDS = 2.0, 1.0


@dataclass
class Batch:
    """The samples of one step on one rank. Fields can also be had as `batch["audio"]`.

    audio: float32 (B, T), zeros after each sample's end; lengths: int64 (B,), in samples; rows:
    int64 (B,), numbers of the bucket rows; sample_ids: uint64 (B,), the samples' identities;
    duration_s: float32 (B,), the manifest's seconds. `planned` is B plus the number of bad samples.
    The loss of a `filler`, a repeated batch, must count nothing. An empty batch (B = 0) is still a
    step: all ranks take the same number.
    """

    step: int
    audio: torch.Tensor
    lengths: torch.Tensor
    transcripts: list[str]
    languages: list[str]
    rows: np.ndarray
    sample_ids: np.ndarray
    duration_s: np.ndarray
    planned: int
    bad: tuple[BadSample, ...] = ()
    filler: bool = False
    epoch: int = 0
    prompts: Sequence[str] = ()  # one a sample, "" for none
    # Seconds of read and decode, where the batch was made.
    spent: dict[str, float] = field(default_factory=dict)
    prepared: dict[str, Any] | None = (
        None  # what a model's preparer has made of the batch: tensors, and more
    )
    slot: tuple[int, int, int] | None = None  # only on its way from a worker

    @classmethod
    def of(cls, good: Sequence[Row], lengths: Sequence[int], **others: Any) -> Batch:
        """The batch of these rows, with `lengths` in samples; `others` are the fields that rows
        lack."""
        return cls(
            lengths=torch.tensor(lengths, dtype=torch.int64),
            transcripts=[row.transcript for row in good],
            languages=[row.language for row in good],
            prompts=[row.prompt for row in good],
            rows=np.array([row.number for row in good], dtype=np.int64),
            sample_ids=np.array([row.sample_id for row in good], dtype=np.uint64),
            duration_s=np.array([row.duration_s for row in good], dtype=np.float32),
            **others,
        )

    def __len__(self) -> int:
        return len(self.transcripts)

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        """The names of the fields, so that trainers may ask `"labels" in batch`."""
        return (
            field.name for field in fields(self) if field.name not in ("slot", "spent", "prepared")
        )

    keys = __iter__

    @property
    def empty(self) -> bool:
        """Whether no sample of this step could be used."""
        return not self.transcripts

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (the DataLoader's pinning thread calls this)."""
        self.audio, self.lengths = self.audio.pin_memory(), self.lengths.pin_memory()
        if self.prepared is not None:
            tensors = {
                name: tensor.pin_memory() for name, tensor in self.prepared["tensors"].items()
            }
            self.prepared = {**self.prepared, "tensors": tensors}
        return self

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch with its tensors on `device`."""
        self.audio = self.audio.to(device, non_blocking=non_blocking)
        self.lengths = self.lengths.to(device, non_blocking=non_blocking)
        return self

    def __getstate__(self) -> dict:
        # Arrays go through the pipe: each tensor would take a file descriptor.
        state = {**self.__dict__, "lengths": self.lengths.numpy()}
        if self.prepared is not None:
            arrays = {name: tensor.numpy() for name, tensor in self.prepared["tensors"].items()}
            state["prepared"] = {**self.prepared, "tensors": arrays}
        if self.slot:
            # The trainer has the slot mapped already: only its address and the shape travel.
            state["audio"] = tuple(self.audio.shape)
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.lengths = torch.from_numpy(self.lengths)
        if self.prepared is not None:
            # Tensors again before the pinning thread sees the batch.
            tensors = {
                name: torch.from_numpy(array) for name, array in self.prepared["tensors"].items()
            }
            self.prepared = {**self.prepared, "tensors": tensors}
        if self.slot:
            self.audio, self.slot = leased(self.slot, self.audio), None


def collate(
    step: int,
    rows: Sequence[Row],
    raws: Sequence[bytes | ReadError],
    sampling_rate: int = SAMPLING_RATE,
    slots: BatchSlots | None = None,
    worker: int | None = None,
    own_decode: Callable[[bytes], np.ndarray] | None = None,
) -> Batch:
    """Decode members and pad them into a batch; what cannot be used is left out and listed in
    `bad`.

    `own_decode` takes the place of `decode`. Mono FLAC is decoded into its place in the batch. In
    worker number `worker` the audio goes to a free one of `slots`, or else to fresh shared memory.
    """
    # First the lengths: of mono FLAC from the header alone, of everything else by decoding it.
    measured = [_measure(sampling_rate, own_decode, *pair) for pair in zip(rows, raws, strict=True)]
    bad = {at: sample for at, sample in enumerate(measured) if isinstance(sample, BadSample)}
    good = [at for at in range(len(rows)) if at not in bad]
    lengths = {
        at: measured[at] if isinstance(measured[at], int) else len(measured[at]) for at in good
    }

    # Then the memory, not zeroed: in a worker a slot or a shared segment.
    count, samples, slot = len(good), max(lengths.values(), default=0), None
    if worker is not None and slots is not None and (free := slots.take(worker, count, samples)):
        audio, slot = torch.from_numpy(free[0]), free[1]
    elif worker is not None and count * samples:
        audio = shared_floats(count * samples).reshape(count, samples)
    else:
        audio = torch.empty((count, samples), dtype=torch.float32)

    # Then every clip goes to its line of the batch, and zeros after it.
    lines = zip(audio.numpy(), good, strict=True)
    fills = [(line, lengths[at], rows[at], raws[at], measured[at]) for line, at in lines]
    failed = {
        at: sample for at, sample in zip(good, map(_fill, fills), strict=True) if sample is not None
    }
    if failed:
        bad |= failed
        places = [place for place, at in enumerate(good) if at not in bad]
        good = [good[place] for place in places]
        # Line by line towards the front, so that nothing is overwritten before it has moved.
        for place, source in enumerate(places):
            audio[place] = audio[source]
        audio = audio[: len(good), : max((lengths[at] for at in good), default=0)]
        # Only what is contiguous from its beginning on can stay in a slot.
        if slot and not (good and audio.is_contiguous()):
            audio = audio.clone(memory_format=torch.contiguous_format)
            slots.release(*slot[1:])
            slot = None
    return Batch.of(
        [rows[at] for at in good],
        [lengths[at] for at in good],
        step=step,
        audio=audio.contiguous(),
        planned=len(rows),
        bad=tuple(bad[at] for at in sorted(bad)),
        slot=slot,
    )


def _measure(
    rate: int, own: Callable | None, row: Row, raw: bytes | ReadError
) -> int | np.ndarray | BadSample:
    """Samples of a mono FLAC by its header, to be decoded into its line later; anything else
    decoded."""
    try:
        if isinstance(raw, ReadError):
            raise raw
        longest = _LONGER_FACTOR * row.duration_s + _LONGER_SECONDS
        sound = own(raw) if own else flac_samples(raw, rate) or decode(raw, rate, longest)
        seconds = (sound if isinstance(sound, int) else len(sound)) / rate
        if seconds > longest:
            message = f"{seconds:.2f} s of sound where the manifest says {row.duration_s:.2f} s"
            raise DecodeError("longer_than_manifest", message)
        return sound
    except SampleError as error:
        return BadSample(row.number, row.sample_id, error.reason, str(error))


def _fill(job: tuple[np.ndarray, int, Row, bytes, int | np.ndarray]) -> BadSample | None:
    """Write one clip and the zeros after it into its line."""
    line, length, row, raw, sound = job
    line[length:] = 0
    if not isinstance(sound, int):
        line[:length] = sound
        return None
    try:
        decode_flac(raw, line[:length])
    except DecodeError as error:
        return BadSample(row.number, row.sample_id, error.reason, str(error))
    return None
