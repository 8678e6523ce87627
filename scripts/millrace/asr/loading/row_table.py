"""The rows of all bucket parquets as one file of fixed-width records: any row is one small positioned read.

Workers fetch the rows of a batch from it. Nothing is loaded or mapped, so the memory of a worker depends
neither on the number of rows nor on that of tars, and the page cache is shared by all workers and ranks of a
node.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.loading.reader import TarState
from millrace.asr.loading.row_table_writer import MAGIC, RECORD, TAR, write
from millrace.common.errors import MillraceError

_MEMBER_COLUMNS = ("tar_member_name", "member")


class Row(NamedTuple):
    """One sample: where its bytes are (`tar` is a key of the table's tars), and what is known of it."""

    number: int
    tar: int
    offset: int
    size: int
    sample_id: int
    duration_s: float
    transcript: str
    language: str


class RowTable:
    """Rows by number (their position in the concatenation of the bucket parquets). Pickles as its path."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        try:
            with open(self.path, "rb") as table:
                head = table.read(len(MAGIC) + 8)
                table.seek(int.from_bytes(head[len(MAGIC) :], "little"))
                self._facts = orjson.loads(table.read())
        except (OSError, ValueError, OverflowError) as error:
            remedy = "Remove it; it is made again from the buckets"
            raise MillraceError(f"not a row table ({error})", where=str(path), remedy=remedy) from None
        self.tars = TarStates(self)

    @classmethod
    def open(
        cls, bucket_dir: str | os.PathLike, cache_dir: str | os.PathLike | None = None, split: str = "train"
    ) -> RowTable:
        """The table of a bucket folder or of another split in it, made on first use and when the buckets have
        changed.

        It is kept in `cache_dir` (default: the bucket folder), once per node or on shared storage; several
        ranks may call this at the same time. Costs about a second for two million rows, once.
        """
        files = BucketConfig.read(bucket_dir).parquets(split)
        tars = Path(bucket_dir) / "tars.parquet"
        folder = Path(cache_dir or bucket_dir)
        # A cache folder may serve several bucket folders (train, dev): each sweeps its own old tables only.
        origin = hashlib.sha256(os.fsencode(Path(bucket_dir).resolve() / split)).hexdigest()[:8]
        path = folder / f"rows-{origin}-{_digest([*files, tars] if tars.exists() else files)}.table"
        if path.exists():  # also where nothing can be written
            return cls(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / ".rows.lock"):
                if not path.exists():
                    write(path, files, tars if tars.exists() else None)
                    for old in folder.glob(f"rows-{origin}-*.table"):
                        if old != path:
                            old.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            remedy = "Make it writable, or copy the folder of the buckets (not the tars) to a place that is"
            raise MillraceError(
                "the row table cannot be written here", where=str(folder), remedy=remedy
            ) from None
        return cls(path)

    def __len__(self) -> int:
        return self._facts["rows"]

    def rows(self, numbers: Sequence[int] | np.ndarray) -> list[Row]:
        """The rows with these numbers, in this order. Raises MillraceError for a number beyond the last
        row."""
        rows = []
        for number in np.asarray(numbers, dtype=np.int64).tolist():
            if not 0 <= number < len(self):
                remedy = "Make the plan again from these buckets"
                raise MillraceError(
                    f"there is no row {number} of {len(self)}", where=str(self.path), remedy=remedy
                )
            record = self._pread(RECORD.itemsize, self._facts["records"] + number * RECORD.itemsize)
            offset, size, sample_id, text, text_bytes, tar, language, seconds = np.frombuffer(record, RECORD)[
                0
            ].tolist()
            transcript = self._pread(text_bytes, text).decode() if text_bytes else ""
            language = self._facts["languages"][language]
            rows.append(Row(number, tar, offset, size, sample_id, seconds, transcript, language))
        return rows

    @property
    def files(self) -> list[tuple[str, int, int]]:
        """(path, number of its first row, rows) of each bucket parquet, in order."""
        return [tuple(file) for file in self._facts["files"]]

    def durations(self) -> list[np.ndarray]:
        """Seconds (float32) of the rows of each bucket, in the order of the buckets: what the planner
        wants."""
        files = [file for file, *_ in self.files]
        return [
            pq.read_table(file, columns=["duration_s"]).column(0).to_numpy().astype(np.float32)
            for file in files
        ]

    def member(self, number: int) -> str:
        """The member name of a row, out of its parquet (slow: for messages)."""
        for file, first, rows in self.files:
            if first <= number < first + rows:
                with contextlib.suppress(OSError, pa.ArrowException, StopIteration):
                    parquet = pq.ParquetFile(file)
                    column = next(name for name in _MEMBER_COLUMNS if name in parquet.schema_arrow.names)
                    return _one_value(parquet, column, number - first)
        return ""

    def tar_state(self, tar: int) -> TarState:
        """Path of a tar, and its size and mtime when it was indexed."""
        if not 0 <= tar < self._facts["tar_count"]:
            raise KeyError(tar)
        record = self._pread(TAR.itemsize, self._facts["tars"] + tar * TAR.itemsize)
        name, name_bytes, size, mtime_ns = np.frombuffer(record, TAR)[0].tolist()
        path = os.fsdecode(self._pread(name_bytes, name))
        return TarState(path, size if size >= 0 else None, mtime_ns if mtime_ns >= 0 else None)

    def _pread(self, size: int, offset: int) -> bytes:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                problem, remedy = (
                    "the row table is gone: the buckets were built again meanwhile",
                    "Start again",
                )
                raise MillraceError(problem, where=str(self.path), remedy=remedy) from None
        # Positioned reads do not move a shared file offset: a descriptor inherited by fork is safe.
        raw = os.pread(self._descriptor, size, offset)
        if len(raw) != size:
            raise MillraceError(
                "the row table is cut", where=str(self.path), remedy="Remove it; it is made again"
            )
        return raw

    def __getstate__(self) -> dict:
        return {"path": self.path, "_facts": self._facts}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._descriptor, self.tars = None, TarStates(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            os.close(self._descriptor)


class TarStates:
    """The tars of a row table as a read-only mapping: number -> TarState."""

    def __init__(self, table: RowTable) -> None:
        self._table = table

    def __getitem__(self, tar: int) -> TarState:
        return self._table.tar_state(tar)


def _one_value(parquet: pq.ParquetFile, column: str, number: int) -> str:
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if number < rows:
            return str(parquet.read_row_group(group, columns=[column]).column(0)[number].as_py())
        number -= rows
    return ""


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(MAGIC)
    for file in files:
        state = file.stat()
        digest.update(
            f"{file.resolve()}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock among the ranks of a node, where the file system has locks; the write itself is atomic
    anyway."""
    with open(path, "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
