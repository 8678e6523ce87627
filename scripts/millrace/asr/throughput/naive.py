"""The naive pipeline, to measure ours against: random batches of a fixed size, tarfile, decoding in the
collator.

As fine-tuning scripts do it, and as the seed did before (its run E1): every tar is scanned when it is first
opened, members go through `extractfile`, and the collator decodes them one by one in the training process. It
is given what such a pipeline has in its favour: rows are shuffled within a buffer of rows of neighbouring
tars, so that tars are scanned about once an epoch and not once a sample.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import soundfile
import torch

from millrace.asr.loading.batch_loader import BadSamples
from millrace.asr.loading.collate import BadSample, Batch
from millrace.asr.loading.decode import SAMPLING_RATE, DecodeError, decode
from millrace.asr.loading.row_table import Row, RowTable
from millrace.common.errors import MillraceError
from millrace.common.training import seeding

SHUFFLE_ROWS = 10_000


class BaselinePlan:
    """Batches of `batch_size` random rows, the same number on every rank; rows that fill no whole step are
    dropped.

    The interface of plan.Plan. Tars come in random order, their rows shuffled within windows of
    `shuffle_rows`. Where there are fewer rows than one step takes, that step has them all, and fillers.
    """

    def __init__(self, order: np.ndarray, batch_size: int, world_size: int) -> None:
        self.order, self.batch_size, self.world_size = order, batch_size, world_size

    @classmethod
    def of(
        cls,
        table: RowTable,
        batch_size: int,
        seed: int,
        epoch: int,
        world_size: int = 1,
        shuffle_rows: int = SHUFFLE_ROWS,
    ) -> BaselinePlan:
        """The plan of an epoch, a function of these arguments alone."""
        if batch_size < 1 or world_size < 1 or shuffle_rows < 1:
            raise MillraceError(
                "batch_size, world_size and shuffle_rows must be at least 1", where="baseline"
            )
        tars = _tars(table)
        draw = seeding.generator(seed, "baseline", epoch)
        place = draw.permutation(int(tars.max(initial=-1)) + 1)
        order = np.argsort(place[tars], kind="stable")
        for start in range(0, len(order), shuffle_rows):
            draw.shuffle(order[start : start + shuffle_rows])
        return cls(order, batch_size, world_size)

    def __len__(self) -> int:
        whole = len(self.order) // (self.batch_size * self.world_size)
        return max(whole, min(len(self.order), 1))

    def batch(self, step: int, rank: int) -> np.ndarray:
        """int64 row numbers of the batch of `rank` at `step`; of a filler, the first batch's."""
        start = self._start(step, rank)
        start = 0 if start >= len(self.order) else start
        return self.order[start : start + self.batch_size]

    def is_filler(self, step: int, rank: int) -> bool:
        """Whether there are no rows left for this rank."""
        return self._start(step, rank) >= len(self.order)

    def _start(self, step: int, rank: int) -> int:
        if not (0 <= step < len(self) and 0 <= rank < self.world_size):
            raise IndexError(f"step {step}, rank {rank} of {len(self)} steps on {self.world_size} ranks")
        return (step * self.world_size + rank) * self.batch_size


class BaselineLoader:
    """Iterates over the batches of a rank, at most `steps` of them; give it a `plan`, or what makes one.

    The interface of BatchLoader: set `plan` and `start_step` between passes; `bad` counts what was left out.
    `spent` sums the seconds of reading and decoding, which are part of what training waits for. Raises
    MillraceError above `max_bad_fraction`.
    """

    def __init__(
        self,
        table: RowTable,
        batch_size: int,
        seed: int = 42,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        steps: int | None = None,
        *,
        plan: BaselinePlan | None = None,
        start_step: int = 0,
        max_open_tars: int = 64,
        max_bad_fraction: float = 0.01,
        sampling_rate: int = SAMPLING_RATE,
        shuffle_rows: int = SHUFFLE_ROWS,
    ) -> None:
        self.table, self.rank, self.steps, self.start_step = table, rank, steps, start_step
        self.plan = plan or BaselinePlan.of(table, batch_size, seed, epoch, world_size, shuffle_rows)
        self.sampling_rate = sampling_rate
        self.bad = BadSamples(max_bad_fraction, min(1000, len(table)))
        self.spent: Counter[str] = Counter(read=0.0, decode=0.0)
        self._tars = TarfileReader(max_open_tars)
        self._names: tuple[BaselinePlan, np.ndarray, pa.Array] | None = None

    def __len__(self) -> int:
        left = max(0, len(self.plan) - self.start_step)
        return left if self.steps is None else min(left, self.steps)

    def __iter__(self) -> Iterator[Batch]:
        plan, first = self.plan, self.start_step
        for step in range(first, first + len(self)):
            batch = self._collated(step, plan.batch(step, self.rank), plan.is_filler(step, self.rank))
            self.bad.add(batch)
            self.bad.check()
            yield batch

    def _collated(self, step: int, numbers: np.ndarray, filler: bool) -> Batch:
        waves, good, bad = [], [], []
        for row, name in zip(self.table.rows(numbers), self._members(numbers), strict=True):
            try:
                waves.append(torch.from_numpy(self._wave(row, name)))
                good.append(row)
            except DecodeError as error:
                bad.append(BadSample(row.number, row.sample_id, error.reason, str(error)))
        begin = time.perf_counter()
        padded = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True) if waves else torch.zeros((0, 0))
        self.spent["decode"] += time.perf_counter() - begin
        return Batch.of(
            good,
            [len(wave) for wave in waves],
            step=step,
            audio=padded,
            planned=len(numbers),
            bad=tuple(bad),
            filler=filler,
        )

    def _wave(self, row: Row, name: str) -> np.ndarray:
        begin = time.perf_counter()
        try:
            raw = self._read(self.table.tar_state(row.tar).path, name)
        finally:
            middle = time.perf_counter()
            self.spent["read"] += middle - begin
        try:
            return soundfile_wave(raw, self.sampling_rate)
        finally:
            self.spent["decode"] += time.perf_counter() - middle

    def _read(self, tar: str, name: str) -> bytes:
        bare = name.removeprefix("./")
        for spelt in dict.fromkeys((name, bare, f"./{bare}")):
            try:
                return self._tars.read(tar, spelt)
            except KeyError:
                continue
            except AttributeError:  # extractfile gives None for what is no file
                raise DecodeError("not_a_file", f"{name} in {tar} is no file") from None
            except (tarfile.TarError, OSError) as error:
                raise DecodeError("unreadable", f"tarfile cannot read {name} in {tar}: {error}") from None
        raise DecodeError("missing", f"tarfile finds no {name} in {tar}")

    def _members(self, numbers: np.ndarray) -> list[str]:
        """The member names of rows, out of those of all rows of this rank's batches, read once for a plan."""
        if self._names is None or self._names[0] is not self.plan:
            steps = range(self.start_step, self.start_step + len(self))
            wanted = [self.plan.batch(step, self.rank) for step in steps]
            rows = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, np.int64)
            self._names = self.plan, rows, _member_names(self.table, rows)
        _, rows, names = self._names
        at = np.searchsorted(rows, numbers)
        if len(at) and (at.max() >= len(rows) or (rows[at] != numbers).any()):
            rows = np.unique(numbers)  # the start was moved back
            names = _member_names(self.table, rows)
            at = np.searchsorted(rows, numbers)
        return names.take(pa.array(at)).to_pylist()


def soundfile_wave(raw: bytes, sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """float32 (samples,) as the seed decodes: soundfile, channels averaged, other rates resampled. Raises
    DecodeError.

    What soundfile cannot read is left to our decoder.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(raw)) as sound:
            wave, rate, declared = (
                sound.read(dtype="float32", always_2d=False),
                sound.samplerate,
                sound.frames,
            )
            lossless = sound.format in {"FLAC", "WAV", "WAVEX", "AIFF"}
    except (soundfile.LibsndfileError, RuntimeError, ValueError, MemoryError):
        return decode(raw, sampling_rate)
    if (
        not len(wave)
        or (lossless and len(wave) < declared)
        or rate != sampling_rate
        or not np.isfinite(wave).all()
    ):
        return decode(raw, sampling_rate)  # which resamples, or says what is wrong
    return np.ascontiguousarray(wave.mean(axis=1) if wave.ndim == 2 else wave, dtype=np.float32)


def _parquets(table: RowTable) -> Iterator[tuple[int, pq.ParquetFile]]:
    """The bucket parquets of a table, each with the number of its first row."""
    for path, first, _ in table.files:
        yield first, pq.ParquetFile(path)


def _tars(table: RowTable) -> np.ndarray:
    """int32: for every row, a number that rows of the same tar share."""
    numbers: dict[str, int] = {}
    parts = [np.zeros(0, np.int32)]
    for _, parquet in _parquets(table):
        for group in parquet.iter_batches(columns=["tar_path"]):
            column = group.column(0)
            coded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
            codes = [numbers.setdefault(path, len(numbers)) for path in coded.dictionary.to_pylist()]
            parts.append(np.array(codes, dtype=np.int32)[coded.indices.to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


def _member_names(table: RowTable, rows: np.ndarray) -> pa.Array:
    """Member names of `rows` (sorted numbers), one row group in memory at a time."""
    found: list[pa.Array] = [pa.array([], pa.string())]
    for first, parquet in _parquets(table):
        names = parquet.schema_arrow.names
        column = next((name for name in ("tar_member_name", "member") if name in names), None)
        if column is None:
            raise MillraceError(
                "a bucket without member names", where=str(table.path), remedy="Build it again"
            )
        start = first
        for group in range(parquet.num_row_groups):
            stop = start + parquet.metadata.row_group(group).num_rows
            low, high = np.searchsorted(rows, (start, stop))
            if high > low:
                values = parquet.read_row_group(group, columns=[column]).column(0).combine_chunks()
                found.append(values.take(pa.array(rows[low:high] - start)).cast(pa.string()))
            start = stop
    return pa.concat_arrays(found)


class TarfileReader:
    """tarfile, each tar scanned on its first use, then extractfile."""

    def __init__(self, max_open_files: int = 64) -> None:
        self.max_open_files = max_open_files
        self._tars: OrderedDict[str, tuple[tarfile.TarFile, dict]] = OrderedDict()

    def read(self, tar: str, name: str) -> bytes:
        """The bytes of a member."""
        if tar not in self._tars:
            handle = tarfile.open(tar, "r:")  # noqa: SIM115 - kept open
            self._tars[tar] = handle, {member.name: member for member in handle.getmembers()}
            if len(self._tars) > self.max_open_files:
                self._tars.popitem(last=False)[1][0].close()
        handle, names = self._tars[tar]
        return handle.extractfile(names[name]).read()
