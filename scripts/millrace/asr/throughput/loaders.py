"""The loader to measure ours against, the baseline: random batches of a fixed size, read through
tarfile and decoded one by one.

It gives random batches of a fixed size, as the original script does: every tar is scanned
when first opened, members go through `extractfile`, and the collator decodes them one by one in the
training process. In its favour, rows are shuffled within a buffer of rows of neighbouring tars, so
that tars are scanned about once an epoch and not once a sample.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
import torch
from pyarrow import dataset

from millrace.asr.loading.collate import Batch
from millrace.asr.loading.row_table import RowTable
from millrace.common.loading.bad_samples import BadSample, BadSamples
from millrace.common.loading.decode import SAMPLING_RATE, DecodeError, decode
from millrace.common.loading.open_files import OpenFiles
from millrace.common.training import seeding


class BaselinePlan:
    """Batches of `batch_size` random rows, the same number on every rank: the interface of
    plan.Plan.

    Tars come in random order, their rows shuffled within windows of `window` rows. Rows that fill
    no whole step are dropped; if there are fewer than one step takes, that step has them all, and
    fillers.
    """

    def __init__(
        self,
        table: RowTable,
        size: int,
        seed: int,
        epoch: int,
        world_size: int = 1,
        window: int = 10_000,
    ) -> None:
        """The plan of an epoch with batches of `size`, a function of these arguments alone."""
        self.batch_size = size
        self.world_size = world_size
        tars = _tars(table)
        draw = seeding.generator(seed, "baseline", epoch)
        place = draw.permutation(int(tars.max(initial=-1)) + 1)
        self.order = np.argsort(place[tars], kind="stable")
        for start in range(0, len(self.order), window):
            draw.shuffle(self.order[start : start + window])

    def __len__(self) -> int:
        whole = len(self.order) // (self.batch_size * self.world_size)
        return max(whole, min(len(self.order), 1))

    def batch(self, step: int, rank: int) -> np.ndarray:
        """int64 row numbers of the batch of `rank` at `step`; of a filler, the first batch's."""
        start = 0
        if not self.is_filler(step, rank):
            start = self._start(step, rank)
        return self.order[start : start + self.batch_size]

    def is_filler(self, step: int, rank: int) -> bool:
        """Whether there are no rows left for this rank."""
        return self._start(step, rank) >= len(self.order)

    def _start(self, step: int, rank: int) -> int:
        return (step * self.world_size + rank) * self.batch_size


class BaselineLoader:
    """Iterates over the batches of `plan` on a rank, from `start_step` on, as BatchLoader does.

    Set `plan` and `start_step` between passes; `bad` counts what was left out. Raises
    MillraceError above `max_bad_fraction`.
    """

    def __init__(
        self,
        table: RowTable,
        plan: BaselinePlan,
        rank: int = 0,
        *,
        max_open_tars: int = 64,
        max_bad_fraction: float = 0.01,
    ) -> None:
        self.table = table
        self.plan = plan
        self.rank = rank
        self.start_step = 0
        self.bad = BadSamples(max_bad_fraction, len(table), table.place)
        self._tars = TarfileReader(max_open_tars)

    def __len__(self) -> int:
        return max(0, len(self.plan) - self.start_step)

    def __iter__(self) -> Iterator[Batch]:
        plan = self.plan
        steps = range(self.start_step, len(plan))
        # Names are read once a pass, of this rank's rows alone: those of all rows may be too many
        # to hold.
        numbers = [plan.batch(step, self.rank) for step in steps]
        rows = np.unique(np.concatenate([plan.order[:0], *numbers]))
        names = _member_names(self.table, rows)
        for step in steps:
            batch = self._collated(step, rows, names)
            self.bad.add(batch)
            self.bad.check()
            yield batch

    def _collated(self, step: int, rows: np.ndarray, names: pa.Array) -> Batch:
        """The batch of a step; `names` are those of the members of `rows`."""
        numbers = self.plan.batch(step, self.rank)
        members = names.take(pa.array(np.searchsorted(rows, numbers))).to_pylist()
        waves = []
        good = []
        bad = []
        for row, member in zip(self.table.rows(numbers), members, strict=True):
            try:
                raw = self._tars.read(self.table.tar_state(row.tar).path, member)
                waves.append(torch.from_numpy(soundfile_wave(raw)))
                good.append(row)
            except DecodeError as error:
                bad.append(BadSample(row.number, row.sample_id, error.reason, str(error)))
        audio = torch.zeros((0, 0))
        if waves:
            audio = torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)
        return Batch.of(
            good,
            [len(wave) for wave in waves],
            step=step,
            audio=audio,
            planned=len(numbers),
            bad=tuple(bad),
            filler=self.plan.is_filler(step, self.rank),
        )


class _ScannedTar:
    """An open tar and all of its members by name."""

    def __init__(self, path: str) -> None:
        self.handle = tarfile.open(path, "r:")  # noqa: SIM115 - kept open
        members = self.handle.getmembers()
        self.members = {member.name.removeprefix("./"): member for member in members}

    def close(self) -> None:
        self.handle.close()


class TarfileReader:
    """Members of tars through tarfile: each tar scanned on its first use, then extractfile."""

    def __init__(self, max_open_files: int = 64) -> None:
        self._tars = OpenFiles(_ScannedTar, max_open_files)

    def read(self, tar: str, name: str) -> bytes:
        """The bytes of a member, named with or without a leading "./". Raises DecodeError."""
        try:
            scanned = self._tars.get(tar)
            member = scanned.members[name.removeprefix("./")]
            file = scanned.handle.extractfile(member)
            raw = file.read() if file else None
        except KeyError:  # the member, or the one that it links to
            raise DecodeError("missing", f"tarfile finds no {name} in {tar}") from None
        except (tarfile.TarError, OSError) as error:
            problem = f"tarfile cannot read {name} in {tar}: {error}"
            raise DecodeError("unreadable", problem) from None
        if raw is None:
            raise DecodeError("not_a_file", f"{name} in {tar} is no file")
        return raw


def soundfile_wave(raw: bytes) -> np.ndarray:
    """float32 (samples,) at SAMPLING_RATE, as the original script decodes: soundfile, channels
    averaged.

    What soundfile cannot read, and what has another rate, is left to our decoder, which resamples,
    or raises DecodeError.
    """
    try:
        wave, rate = soundfile.read(io.BytesIO(raw), dtype="float32")
    except (soundfile.LibsndfileError, RuntimeError, ValueError):
        return decode(raw)
    if rate != SAMPLING_RATE or not len(wave):
        return decode(raw)
    if wave.ndim == 2:
        wave = wave.mean(axis=1)
    return np.ascontiguousarray(wave, np.float32)


def _tars(table: RowTable) -> np.ndarray:
    """int32: for every row, a number that rows of the same tar share."""
    numbers: dict[str, int] = {}
    parts = [np.zeros(0, np.int32)]
    for path, *_ in table.files:
        for batch in pq.ParquetFile(path).iter_batches(columns=["tar_path"]):
            column = batch.column(0).dictionary_encode()
            tars = column.dictionary.to_pylist()
            codes = [numbers.setdefault(tar, len(numbers)) for tar in tars]
            indices = column.indices.to_numpy(zero_copy_only=False)
            parts.append(np.array(codes, np.int32)[indices])
    return np.concatenate(parts)


def _member_names(table: RowTable, rows: np.ndarray) -> pa.Array:
    """Member names of `rows`; a part of a file is in memory at a time."""
    files = dataset.dataset([path for path, *_ in table.files])
    names = files.take(pa.array(rows), columns=["tar_member_name"]).column(0)
    return names.cast(pa.string()).combine_chunks()
