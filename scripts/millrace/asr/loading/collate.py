"""The clips of a step, decoded into one padded tensor: which are left out, as they last longer or
shorter than stated, and what a decoder of the user's may give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from millrace.asr.loading.reader import ReadError
from millrace.asr.loading.row_table import Row
from millrace.common.errors import MillraceError
from millrace.common.loading.bad_samples import BadSample, SampleError
from millrace.common.loading.decode import (
    SAMPLING_RATE,
    DecodeError,
    decode,
    decode_flac,
    flac_samples,
)
from millrace.common.loading.slots import BatchSlots, InSlot, shared_floats

# A clip this much longer than its manifest says would break the memory budget of its batch; of one
# that is so much shorter the words of its end are not heard.
_MOST_FACTOR = 2.0
_MOST_SECONDS = 1.0


@dataclass
class Batch:
    """The samples of one step on one rank. Fields can also be had as `batch["audio"]`.

        from millrace import open_loader

        batch = next(iter(open_loader("results/asr/buckets")))
        weight = 0.0 if batch.filler else 1.0
        print(batch.step, len(batch), batch["audio"].shape, batch.duration_s.sum(), weight)

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
    # What a model's preparer has made of the batch: tensors, and more.
    prepared: dict[str, Any] | None = None
    slot: InSlot | None = None  # only in a worker: where `audio` lay when the batch was made

    @classmethod
    def of(cls, good: Sequence[Row], lengths: Sequence[int], **others: Any) -> Batch:
        """The batch of these rows, with `lengths` in samples; `others` are the fields that rows
        lack."""
        return cls(
            lengths=torch.tensor(lengths, dtype=torch.int64),
            transcripts=[row.transcript for row in good],
            languages=[row.language for row in good],
            prompts=[row.prompt for row in good],
            rows=np.array([row.number for row in good], np.int64),
            sample_ids=np.array([row.sample_id for row in good], np.uint64),
            duration_s=np.array([row.duration_s for row in good], np.float32),
            **others,
        )

    def __len__(self) -> int:
        return len(self.transcripts)

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        """The names of the fields, so that trainers may ask `"labels" in batch`."""
        return (field.name for field in fields(self) if field.name not in ("slot", "prepared"))

    keys = __iter__

    @property
    def empty(self) -> bool:
        """Whether no sample of this step could be used."""
        return not self.transcripts

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (the DataLoader's pinning thread calls this)."""
        self.audio = self.audio.pin_memory()
        self.lengths = self.lengths.pin_memory()
        self.prepared = self._prepared_as(torch.Tensor.pin_memory)
        return self

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch with its tensors on `device`."""
        self.audio = self.audio.to(device, non_blocking=non_blocking)
        self.lengths = self.lengths.to(device, non_blocking=non_blocking)
        return self

    def _prepared_as(self, change: Callable[[Any], Any]) -> dict[str, Any] | None:
        """What was prepared, if anything was, with each of its tensors changed."""
        if self.prepared is None:
            return None
        tensors = {name: change(tensor) for name, tensor in self.prepared["tensors"].items()}
        return {**self.prepared, "tensors": tensors}

    def __getstate__(self) -> dict:
        # Arrays go through the pipe: each tensor would take a file descriptor.
        state = {**self.__dict__, "lengths": self.lengths.numpy()}
        state["prepared"] = self._prepared_as(torch.Tensor.numpy)
        if self.slot and self.audio is self.slot.tensor:
            # The trainer has the slot mapped already. Other audio, of a transform, goes itself.
            state["audio"] = None
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.lengths = torch.from_numpy(self.lengths)
        # Tensors again before the pinning thread sees the batch.
        self.prepared = self._prepared_as(torch.from_numpy)
        if self.slot:
            if self.audio is None:
                self.audio = self.slot.tensor
            self.slot = None


def collate(
    step: int,
    rows: Sequence[Row],
    raws: Sequence[bytes | ReadError],
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
    clips = []
    bad = []
    for row, raw in zip(rows, raws, strict=True):
        sound = _measure(own_decode, row, raw)
        if isinstance(sound, BadSample):
            bad.append(sound)
        else:
            assert not isinstance(raw, ReadError)  # its `sound` would be a BadSample
            clips.append(_Clip(row, raw, sound))

    # Then the memory, then every clip goes to its line of the batch, and zeros after it. A FLAC may
    # break behind its header: then the others are decoded once more, without it.
    while True:
        longest = max((clip.samples for clip in clips), default=0)
        audio, slot = _memory(len(clips), longest, slots, worker)
        problems = list(map(_fill, audio.numpy(), clips))
        failed = [problem for problem in problems if problem is not None]
        if not failed:
            break
        bad += failed
        clips = [clip for clip, problem in zip(clips, problems, strict=True) if problem is None]
        del audio
        if slot and slots is not None:
            slots.release(*slot[1:])

    numbers = {row.number: place for place, row in enumerate(rows)}
    unusable = sorted(bad, key=lambda sample: numbers[sample.row])
    return Batch.of(
        [clip.row for clip in clips],
        [clip.samples for clip in clips],
        step=step,
        audio=audio,
        planned=len(rows),
        bad=tuple(unusable),
        slot=InSlot(audio, slot) if slot else None,
    )


class _Clip(NamedTuple):
    """A member that is to go into the batch: decoded, or a mono FLAC with its number of
    samples."""

    row: Row
    raw: bytes
    sound: int | np.ndarray

    @property
    def samples(self) -> int:
        if isinstance(self.sound, int):
            return self.sound
        return len(self.sound)


def _memory(
    count: int, samples: int, slots: BatchSlots | None, worker: int | None
) -> tuple[torch.Tensor, tuple[int, int, int] | None]:
    """Memory of a batch, not zeroed, and the slot that it is in: in a worker a free slot, or else a
    shared segment."""
    if worker is None or not count * samples:
        return torch.empty((count, samples), dtype=torch.float32), None
    free = None
    if slots is not None:
        free = slots.take(worker, count, samples)
    if free is not None:
        return torch.from_numpy(free[0]), free[1]
    return shared_floats(count * samples).reshape(count, samples), None


def _measure(
    own: Callable[[bytes], np.ndarray] | None, row: Row, raw: bytes | ReadError
) -> int | np.ndarray | BadSample:
    """Samples of a mono FLAC by its header, to be decoded into its line later; anything else
    decoded."""
    try:
        if isinstance(raw, ReadError):
            raise raw
        longest = _at_most(row.duration_s)
        sound: int | np.ndarray
        if own is not None:
            sound = _own_sound(own(raw), row)
        else:
            sound = flac_samples(raw) or decode(raw, SAMPLING_RATE, longest)
        seconds = (sound if isinstance(sound, int) else len(sound)) / SAMPLING_RATE
        message = f"{seconds:.2f} s of sound where the manifest says {row.duration_s:.2f} s"
        if seconds > longest:
            raise DecodeError("longer_than_manifest", message)
        # A decoder of the user's may leave out silence.
        if own is None and row.duration_s > _at_most(seconds):
            raise DecodeError("shorter_than_manifest", message)
        return sound
    except SampleError as error:
        return BadSample(row.number, row.sample_id, error.reason, str(error))


def _own_sound(decoded: Any, row: Row) -> np.ndarray:
    """What a `decode` of the user's gave. Raises MillraceError if it cannot be float32 mono, and
    DecodeError as `decode` does."""
    sound = np.asarray(decoded)
    if sound.ndim != 1 or sound.dtype.kind != "f":
        problem = f"`decode` gave {sound.dtype} {sound.shape}, not float32 (samples,)"
        remedy = "Take one channel, and divide whole numbers by their full scale"
        raise MillraceError(problem, f"row {row.number}", remedy)
    if not len(sound):
        raise DecodeError("no_samples", "`decode` gave no samples")
    with np.errstate(over="ignore"):
        sound = sound.astype(np.float32, copy=False)
    if not np.isfinite(sound).all():
        raise DecodeError("not_finite", "`decode` gave NaN or infinite samples")
    return sound


def _at_most(seconds: float) -> float:
    """How long a clip may be that is said to last so long."""
    return _MOST_FACTOR * seconds + _MOST_SECONDS


def _fill(line: np.ndarray, clip: _Clip) -> BadSample | None:
    """Write one clip and the zeros after it into its line."""
    length = clip.samples
    line[length:] = 0
    if not isinstance(clip.sound, int):
        line[:length] = clip.sound
        return None
    try:
        decode_flac(clip.raw, line[:length])
    except DecodeError as error:
        return BadSample(clip.row.number, clip.row.sample_id, error.reason, str(error))
    return None
