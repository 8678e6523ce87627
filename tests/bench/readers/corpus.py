"""The corpus of the reader benchmark: made-up tars of speech-like FLAC with buckets, or the user's
own."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.buckets.config import ROW_GROUP, BucketConfig
from millrace.asr.buckets.parquets import write_tars
from millrace.asr.tars.stamp import Stamp
from millrace.common import atomic
from millrace.common.errors import MillraceError
from tests.asr.audio_tars import RATE, encoded
from tests.bench.bench_buckets import seed_durations
from tests.bench.bench_cut import speech_like
from tests.bench.readers.peers import Member

_COLUMNS = ["tar_path", "tar_member_name", "offset", "size", "duration_s"]


@dataclass(frozen=True)
class Corpus:
    """Members with their rows' numbers in the buckets; `durations` in seconds, in the same
    order."""

    members: list[Member]
    rows: np.ndarray
    durations: np.ndarray

    @property
    def tars(self) -> list[str]:
        return sorted({member.tar for member in self.members})

    @property
    def hours(self) -> float:
        return float(self.durations.sum()) / 3600

    def batches(self, seconds: float, seed: int) -> list[np.ndarray]:
        """Positions of the members in shuffled batches of at most `seconds` with padding, the same
        for all random-access readers. Inside windows of 2,000 random members, they are sorted by
        duration."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.members))
        batches = []
        for window in np.split(order, range(2000, len(order), 2000)):
            batch = []
            for position in window[np.argsort(self.durations[window], kind="stable")].tolist():
                if batch and self.durations[position] * (len(batch) + 1) > seconds:
                    batches.append(np.array(batch))
                    batch = []
                batch.append(position)
            batches.append(np.array(batch))
        return [batches[at] for at in rng.permutation(len(batches))]


def load(bucket_dir: str | os.PathLike, count: int) -> Corpus:
    """The rows in the first tars (by name), about `count`, as streaming readers read whole tars."""
    config = BucketConfig.read(bucket_dir)
    table = pa.concat_tables([pq.read_table(file, columns=_COLUMNS) for file in config.parquets()])
    tar_of = table.column("tar_path").cast(pa.string())
    counts = dict(
        sorted((entry["values"], entry["counts"]) for entry in tar_of.value_counts().to_pylist())
    )
    if not counts:
        raise MillraceError("the buckets hold no rows", where=str(bucket_dir))
    wanted = 1 + int(np.searchsorted(np.cumsum(list(counts.values())), count))
    rows = np.flatnonzero(pc.is_in(tar_of, value_set=pa.array(list(counts)[:wanted])))
    table = table.take(pa.array(rows))
    tars, *others = (table.column(name).to_pylist() for name in _COLUMNS[:4])
    members = list(map(Member, (os.path.join(config.tar_root, tar) for tar in tars), *others))
    return Corpus(members, rows, table.column("duration_s").to_numpy())


def make(folder: Path, tars: int, members_per_tar: int) -> Path:
    """Write tars of 16 kHz mono FLAC, long as in a real corpus; return their buckets."""
    folder.mkdir(parents=True, exist_ok=True)
    clips = list(_clips(min(400, tars * members_per_tar)))
    rng = np.random.default_rng(0)
    columns = {name: [] for name in _COLUMNS}
    stamps = {}
    for number in range(tars):
        path = folder / f"shard-{number:05d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for member in range(members_per_tar):
                raw, seconds = clips[rng.integers(len(clips))]
                entry = tarfile.TarInfo(f"{number:05d}_{member:06d}.flac")
                entry.size = len(raw)
                position = tar.offset + tarfile.BLOCKSIZE
                tar.addfile(entry, io.BytesIO(raw))
                values = (str(path), entry.name, position, len(raw), seconds)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
        stamps[str(path)] = Stamp.of(path)
    count = len(columns["size"])
    columns |= {"transcript": ["what was said"] * count, "language": ["English"] * count}
    table = pa.table({**columns, "sample_id": pa.array(np.arange(count), pa.uint64())})
    buckets = folder / "buckets"
    buckets.mkdir(exist_ok=True)
    shuffled = table.take(pa.array(rng.permutation(count)))
    pq.write_table(shuffled, buckets / "b_0_30.parquet", row_group_size=ROW_GROUP)
    write_tars(buckets / "tars.parquet", list(stamps), stamps)
    bucket = {"bucket_id": "b_0_30", "path": "b_0_30.parquet"}
    atomic.write_json(buckets / "bucket_config.json", {"buckets": [bucket], "splits": {}})
    os.sync()  # pages still to be written cannot be dropped for the cold runs
    return buckets


def _clips(count: int) -> Iterator[tuple[bytes, float]]:
    """(FLAC, seconds) of what shrinks as speech does."""
    rng = np.random.default_rng(0)
    signal = speech_like(60, RATE)
    for seconds in seed_durations(count).tolist():
        samples = int(RATE * seconds)
        start = rng.integers(len(signal) - samples)
        yield encoded(signal[start : start + samples]), samples / RATE
