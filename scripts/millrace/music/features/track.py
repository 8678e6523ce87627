"""One track's features in a file: where its values lie, how they are stored, where each fact is
from; and the contract: the bins, hop and pooling of the model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.common import atomic
from millrace.common.errors import Unusable, own_file
from millrace.common.settings import setting

if TYPE_CHECKING:
    import pyarrow as pa

H5 = "h5"
MM = "mm"
# How values are read: `raw` is an array in the file, `chunks` plain chunks at addresses, `h5py` the
# rest.
RAW = "raw"
CHUNKS = "chunks"
BY_H5PY = "h5py"
# Where the hop is from: the HDF5 file, the JSONL, what all published .mm files have, the config.
FROM_FILE = "file"
FROM_JSONL = "jsonl"
PUBLISHED = "published"
FROM_CONFIG = "config"


@dataclasses.dataclass(frozen=True)
class Contract:
    """What the model takes: `bins` in frames of `hop * pool` seconds.

    Files that do not say their hop have this one.
    """

    bins: int = setting(84, "bins of a frame", at_least=1)
    hop: float = setting(0.02, "seconds a frame of files that do not say it", above=0)
    pool: int = setting(5, "stored frames that make one frame of the model", at_least=1)

    def pooling(self, hop: float) -> int | None:
        """How many stored frames make one of the model's; None if no whole number does."""
        ratio = self.hop * self.pool / hop
        if ratio > 0.5 and abs(ratio - round(ratio)) < 1e-4 * ratio:
            return round(ratio)
        return None

    def mismatch(self, hop: float) -> str:
        """What speaks against features of these seconds a frame; empty if nothing does."""
        if self.pooling(hop):
            return ""
        frame = self.hop * self.pool
        return f"hop {hop:.6g} s, of which no whole number makes the model's frame of {frame:g} s"


class Refused(Unusable):
    """Features that cannot be used."""


@dataclasses.dataclass
class Track:
    """Features of the recording `id` in `file` (relative to its root), or why they are refused.

    `owner` is whose they are by attributes or names, "" in an array of many tracks.
    `time_axis` is 0 for stored (T, C) and 1 for (C, T); `offset` is the byte of the first value,
    `pitch` the values from one row to the next; `first` is the first frame in a shared array. In
    `chunks` `addresses` is the grid of chunks that holds the track, row by row, `pitch` its
    columns, and `first` counts from it. `refused` is a slug, `problem` says it in words. `crc` is
    the CRC-32 of the values as they are stored, 0 in a table of an earlier build. `is_pointed_to`
    says that the JSONL names this file for the recording.
    """

    id: str
    source: str
    file: str
    key: str = ""
    owner: str = ""
    storage: str = ""
    dtype: str = ""
    time_axis: int = 0
    frames: int = 0
    bins: int = 0
    offset: int = -1
    pitch: int = 0
    first: int = 0
    chunks: Sequence[int] = ()
    addresses: Sequence[int] = ()
    hop: float = math.nan
    hop_from: str = ""
    refused: str = ""
    problem: str = ""
    size: int = -1
    mtime_ns: int = -1
    crc: int = 0
    is_pointed_to: bool = False

    def refuse(self, reason: str, problem: str) -> Track:
        """Itself, refused for this reason (the first one given stays)."""
        if not self.refused:
            self.refused = reason
            self.problem = problem
        return self


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {
        "str": pa.string(),
        "int": pa.int64(),
        "bool": pa.bool_(),
        "float": pa.float64(),
        "Sequence[int]": pa.list_(pa.int64()),
    }
    fields = dataclasses.fields(Track)
    return pa.schema([(field.name, kinds[str(field.type)]) for field in fields])


def write_tracks(path: str | Path, tracks: Iterable[Track]) -> None:
    """Write the table of a partition as parquet, in the order of the ids: the same tracks, the same
    bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = sorted(tracks, key=lambda track: (track.id, track.source, track.file))
    rows = list(map(vars, ordered))
    with atomic.replacing(path) as partial:
        table = pa.Table.from_pylist(rows, _schema())
        pq.write_table(table, partial, compression="zstd", store_schema=False)


def read_tracks(path: str | Path) -> list[Track]:
    """The tracks of a partition's table."""
    import pyarrow.parquet as pq

    with own_file(path):
        return [Track(**row) for row in pq.read_table(path).to_pylist()]
