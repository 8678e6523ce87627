"""Decode the members of a step into one padded tensor, ready to cross from a worker to the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from millrace.asr.loading.batch_slots import BatchSlots, leased, shared_floats
from millrace.asr.loading.decode import SAMPLING_RATE, DecodeError, decode, decode_flac_into, flac_samples
from millrace.asr.loading.reader import ReadError
from millrace.asr.loading.row_table import Row

# A clip this much longer than its manifest says would break the memory budget of its batch.
_LONGER_FACTOR, _LONGER_SECONDS = 2.0, 1.0


@dataclass(frozen=True)
class BadSample:
    """A row that was left out of its batch, and why."""

    row: int
    sample_id: int
    reason: str
    message: str


@dataclass
class Batch:
    """The samples of one step on one rank. Fields can also be had as `batch["audio"]`.

    audio: float32 (B, T), zeros after each sample's end; lengths: int64 (B,), in samples; rows: int64 (B,),
    numbers of the bucket rows; sample_ids: uint64 (B,), the samples' identities; duration_s: float32 (B,),
    the manifest's seconds. `planned` is B plus the number of bad samples. The loss of a `filler`, a repeated
    batch, must count nothing. A batch may be empty (B = 0): it is still a step, so that all ranks take the
    same number.
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
    bad: tuple[BadSample, ...] = field(default=())
    filler: bool = False
    slot: tuple[int, int, int] | None = None  # only on its way from a worker

    @classmethod
    def of(cls, good: Sequence[Row], lengths: Sequence[int], **others: Any) -> Batch:
        """The batch of these rows, with `lengths` in samples; `others` are the fields that rows say nothing
        of."""
        return cls(
            lengths=torch.tensor(lengths, dtype=torch.int64),
            transcripts=[row.transcript for row in good],
            languages=[row.language for row in good],
            rows=np.array([row.number for row in good], dtype=np.int64),
            sample_ids=np.array([row.sample_id for row in good], dtype=np.uint64),
            duration_s=np.array([row.duration_s for row in good], dtype=np.float32),
            **others,
        )

    def __len__(self) -> int:
        return len(self.transcripts)

    def __getitem__(self, name: str) -> object:
        return getattr(self, name)

    @property
    def empty(self) -> bool:
        """Whether no sample of this step could be used."""
        return not self.transcripts

    @property
    def padding(self) -> float:
        """Share of the audio tensor that is padding, 0 to 1."""
        return 1 - int(self.lengths.sum()) / self.audio.numel() if self.audio.numel() else 0.0

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (the DataLoader's pinning thread calls this)."""
        self.audio, self.lengths = self.audio.pin_memory(), self.lengths.pin_memory()
        return self

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch with its tensors on `device`."""
        self.audio = self.audio.to(device, non_blocking=non_blocking)
        self.lengths = self.lengths.to(device, non_blocking=non_blocking)
        return self

    def __getstate__(self) -> dict:
        state = {**self.__dict__, "lengths": self.lengths.numpy()}
        if self.slot:
            # The trainer has the slot mapped already: only its address travels.
            state["audio"] = tuple(self.audio.shape)
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.lengths = torch.from_numpy(self.lengths)
        if self.slot:
            self.audio, self.slot = leased(self.slot, self.audio), None


def collate(
    step: int,
    rows: Sequence[Row],
    raws: Sequence[bytes | ReadError],
    sampling_rate: int = SAMPLING_RATE,
    run: Callable[..., Iterable] = map,
    slots: BatchSlots | None = None,
    worker: int | None = None,
) -> Batch:
    """Decode members and pad them into a batch; what cannot be used is left out and listed in `bad`.

    `run` maps a function over the rows (a thread pool's map, where threads pay). Mono FLAC is decoded into
    its place in the batch. In worker number `worker` the audio goes to a free one of `slots`, or else to
    fresh shared memory.
    """
    early = list(run(partial(_early, sampling_rate), rows, raws))
    known = [position for position, found in enumerate(early) if not isinstance(found, BadSample)]
    lengths = [found if isinstance(found, int) else len(found) for found in map(early.__getitem__, known)]
    audio, slot = _room(len(known), max(lengths, default=0), slots, worker)
    late = run(
        partial(_late, audio.numpy()),
        range(len(known)),
        lengths,
        [rows[position] for position in known],
        [raws[position] for position in known],
        [early[position] for position in known],
    )
    failed = {place: bad for place, bad in enumerate(late) if bad is not None}
    bad = {position: found for position, found in enumerate(early) if isinstance(found, BadSample)}
    if failed:
        bad |= {known[place]: sample for place, sample in failed.items()}
        kept = [place for place in range(len(known)) if place not in failed]
        known, lengths = [known[place] for place in kept], [lengths[place] for place in kept]
        # Row by row towards the front, so that nothing is overwritten before it has moved.
        for place, source in enumerate(kept):
            audio[place] = audio[source]
        audio = audio[: len(kept), : max(lengths, default=0)]
        if slot and not (
            len(kept) and audio.is_contiguous()
        ):  # only what begins at its beginning can stay in a slot
            audio = audio.clone(memory_format=torch.contiguous_format)
            slots.release(*slot[1:])
            slot = None
    good = [rows[position] for position in known]
    return Batch.of(
        good,
        lengths,
        step=step,
        audio=audio.contiguous(),
        planned=len(rows),
        bad=tuple(bad[position] for position in sorted(bad)),
        slot=slot,
    )


def _early(sampling_rate: int, row: Row, raw: bytes | ReadError) -> int | np.ndarray | BadSample:
    """How many samples a mono FLAC holds, to be decoded into its place later; what is something else,
    decoded."""
    try:
        if isinstance(raw, ReadError):
            raise raw
        found = flac_samples(raw, sampling_rate) or decode(raw, sampling_rate)
        seconds = (found if isinstance(found, int) else len(found)) / sampling_rate
        if seconds > _LONGER_FACTOR * row.duration_s + _LONGER_SECONDS:
            message = f"{seconds:.2f} s of sound where the manifest says {row.duration_s:.2f} s"
            raise DecodeError("longer_than_manifest", message)
        return found
    except (ReadError, DecodeError) as error:
        return BadSample(row.number, row.sample_id, error.reason, str(error))


def _late(
    audio: np.ndarray, place: int, length: int, row: Row, raw: bytes, found: int | np.ndarray
) -> BadSample | None:
    line = audio[place]
    line[length:] = 0
    if not isinstance(found, int):
        line[:length] = found
        return None
    try:
        decode_flac_into(raw, line[:length])
    except DecodeError as error:
        return BadSample(row.number, row.sample_id, error.reason, str(error))
    return None


def _room(
    count: int, samples: int, slots: BatchSlots | None, worker: int | None
) -> tuple[torch.Tensor, tuple[int, int, int] | None]:
    """float32 (count, samples), not zeroed; in a worker in a slot (and its address) or else fresh shared
    memory."""
    taken = slots.take(worker, count, samples) if slots is not None and worker is not None else None
    if taken:
        return torch.from_numpy(taken[0]), taken[1]
    if worker is None or not count * samples:
        return torch.empty((count, samples), dtype=torch.float32), None
    return shared_floats(count * samples).reshape(count, samples), None
