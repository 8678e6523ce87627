"""The rows of all bucket parquets as one file, any row by one small read: when it is made anew, and
where tars are looked for that have moved.

Nothing is loaded or mapped, so that the memory of a worker depends neither on the number of rows
nor on that of tars, and all workers and ranks of a node share the page cache. (A mapped Arrow IPC
file is as fast, but every worker's resident memory grows by it.)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.buckets.config import ROW_GROUP, BucketConfig
from millrace.asr.loading.reader import TarState
from millrace.asr.loading.row_table_writer import MAGIC, PROMPT_MARK, RECORD, TAR, write
from millrace.asr.manifests.identity import leads_out
from millrace.common import atomic
from millrace.common.errors import MillraceError


class Row(NamedTuple):
    """One sample: where its bytes are (`tar` is a key of the table's tars), and what is known of
    it."""

    number: int
    tar: int
    offset: int
    size: int
    sample_id: int
    duration_s: float
    transcript: str
    language: str
    prompt: str = ""


class RowTable:
    """Gives the rows of a bucket folder by number, however many there are, without loading them.

        table = RowTable.open("results/asr/buckets")
        row = table.rows([len(table) - 1])[0]
        raw = IndexedTarReader(tars=table.tars).read(row.tar, row.offset, row.size)

    A row's number is its position in the concatenation of the bucket parquets. Relative tar paths
    are resolved from `tar_root`, never from the working folder. Pickles as a few hundred bytes.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        parquets: Sequence[Path] = (),
        tar_root: str = "",
        built_root: str | None = None,
    ) -> None:
        """`built_root`: what `tar_root` was when the buckets were built, if the tars have moved."""
        self.path = Path(path)
        self.tar_root = tar_root
        self._built_root = tar_root if built_root is None else built_root
        self._parquets = [os.path.abspath(parquet) for parquet in parquets]
        self._descriptor: int | None = None
        try:
            with open(self.path, "rb") as table:
                head = table.read(len(MAGIC) + 8)
                if not head.startswith(MAGIC):
                    raise ValueError("it begins with other bytes, or was made by another version")
                table.seek(int.from_bytes(head[len(MAGIC) :], "little"))
                self._facts = orjson.loads(table.read())
        except (OSError, ValueError, OverflowError) as error:
            remedy = "Remove it; it is made again from the buckets"
            raise MillraceError(f"not a row table ({error})", str(path), remedy) from None
        self._moved_from = "" if built_root is None else self._shared_folder()

    @classmethod
    def open(
        cls,
        bucket_dir: str | os.PathLike,
        split: str = "train",
        tar_root: str | os.PathLike | None = None,
    ) -> RowTable:
        """The table of a bucket folder or of another split in it, made on first use and after a new
        build.

        It lies in the bucket folder; several ranks may call this at the same time. Costs about a
        second for two million rows, once. `tar_root` is the folder of relative tar paths (default:
        what bucket_config.json says, else the bucket folder); if it is given, also the folder that
        tars with absolute paths, or those that begin with `..`, were moved to, in place of the one
        they share.
        """
        config = BucketConfig.read(bucket_dir)
        parquets = config.parquets(split)
        root = os.path.realpath(tar_root if tar_root is not None else config.tar_root)
        arguments = parquets, root, None if tar_root is None else str(config.tar_root)
        folder = config.file.parent

        # No absolute path takes part, so that a moved folder keeps its table.
        digest = hashlib.sha256(MAGIC)
        for file in (*parquets, config.tars):
            state = f"{file.name}\0{file.stat().st_size}\0{file.stat().st_mtime_ns}\n"
            digest.update(state.encode(errors="surrogateescape"))
        path = folder / f"rows-{split}-{digest.hexdigest()[:16]}.table"
        if path.exists():  # also if nothing can be written
            return cls(path, *arguments)

        try:
            with atomic.locked(folder / ".rows.lock"):  # one of the node's ranks writes
                if not path.exists():
                    write(path, parquets, config.tars)
                    for old in {*folder.glob(f"rows-{split}-*.table")} - {path}:
                        old.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            problem = "the row table cannot be written here"
            remedy = (
                "Make it writable, or copy the folder of the buckets (not the tars) to a place"
                " that is"
            )
            raise MillraceError(problem, str(folder), remedy) from None
        return cls(path, *arguments)

    @property
    def tars(self) -> TarStates:
        return TarStates(self)

    def __len__(self) -> int:
        return self._facts["rows"]

    @property
    def digest(self) -> str:
        """Of durations, texts, languages, identities and sizes of all rows, and of the content of
        their tars; not of where these lie."""
        return self._facts["digest"]

    def rows(self, numbers: Sequence[int] | np.ndarray) -> list[Row]:
        """The rows with these numbers, in this order. Raises MillraceError for a number beyond the
        last."""
        return [self._row(number) for number in np.asarray(numbers, np.int64).tolist()]

    def _row(self, number: int) -> Row:
        if not 0 <= number < len(self):
            remedy = "Make the plan again from these buckets"
            raise MillraceError(f"there is no row {number} of {len(self)}", str(self.path), remedy)
        record = self._record(RECORD, "records", number)
        offset, size, sample_id, text, text_bytes, tar, code, seconds = record
        written = self._pread(text_bytes, text) if text_bytes else b""
        transcript, prompt = (part.decode() for part in written.partition(PROMPT_MARK)[::2])
        language = self._facts["languages"][code]
        return Row(number, tar, offset, size, sample_id, seconds, transcript, language, prompt)

    @property
    def files(self) -> list[tuple[str, int, int]]:
        """(path, number of its first row, rows) of each bucket parquet, in order."""
        counts = self._facts["counts"]
        files = []
        first = 0
        for file, count in zip(self._parquets, counts, strict=True):
            files.append((file, first, count))
            first += count
        return files

    def durations(self) -> list[np.ndarray]:
        """Seconds (float32) of the rows of each bucket, in the order of the buckets, for the
        planner."""
        tables = (pq.read_table(file, columns=["duration_s"]) for file in self._parquets)
        return [table.column(0).to_numpy().astype(np.float32) for table in tables]

    def member(self, number: int) -> str:
        """The member name of a row, out of its parquet (slow: for messages); "" if it cannot be
        read."""
        for file, first, rows in self.files:
            if first <= number < first + rows:
                group, at = divmod(number - first, ROW_GROUP)
                with contextlib.suppress(OSError, pa.ArrowException):
                    parquet = pq.ParquetFile(file)
                    names = parquet.read_row_group(group, columns=["tar_member_name"])
                    return str(names.column(0)[at])
        return ""

    def place(self, number: int, message: str = "") -> str:
        """Member and tar of a row, or the member alone if `message` names the tar (slow, as
        `member`)."""
        tar = self.tar_state(self.rows([number])[0].tar).path
        return self.member(number) + (f" in {tar}" if tar not in message else "")

    def tar_state(self, tar: int) -> TarState:
        """Absolute path of a tar, what it was when it was indexed, and the root of a relative
        path."""
        if not 0 <= tar < self._facts["tar_count"]:
            raise KeyError(tar)
        path, *recorded, digest = self._tar(tar)
        if leads_out(path):
            path = self._as_built(path)
            if self._moved_from:
                path = os.path.relpath(path, self._moved_from)
        root = "" if os.path.isabs(path) else self.tar_root
        size, mtime_ns = (None if value < 0 else value for value in recorded)
        return TarState(os.path.join(root, path), size, mtime_ns, root, digest.decode())

    def _as_built(self, path: str) -> str:
        """Where a tar lay when the buckets were built. An absolute path stays as it is written: it
        may lead through links."""
        if os.path.isabs(path):
            return path
        return os.path.normpath(os.path.join(self._built_root, path))

    def _shared_folder(self) -> str:
        """The deepest folder that held all tars whose paths lead out; "" if there are none."""
        folders = []
        for tar in range(self._facts["tar_count"]):
            path, *_ = self._tar(tar)
            if leads_out(path):
                folders.append(os.path.dirname(self._as_built(path)))
        return os.path.commonpath(folders) if folders else ""

    def _tar(self, tar: int) -> tuple:
        """The path of a tar as it is written, and what was recorded of it."""
        place, size, *recorded = self._record(TAR, "tars", tar)
        return os.fsdecode(self._pread(size, place)), *recorded

    def _record(self, kind: np.dtype, region: str, number: int) -> tuple:
        raw = self._pread(kind.itemsize, self._facts[region] + number * kind.itemsize)
        return np.frombuffer(raw, kind)[0].tolist()

    def _pread(self, size: int, offset: int) -> bytes:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                problem = "the row table is missing: the buckets were built again meanwhile"
                raise MillraceError(problem, str(self.path), "Start again") from None
        # Positioned reads do not move a shared file offset: a descriptor inherited by fork is safe.
        raw = os.pread(self._descriptor, size, offset)
        if len(raw) != size:
            remedy = "Remove it; it is made again"
            raise MillraceError("the row table is cut", str(self.path), remedy)
        return raw

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_descriptor": None}

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._descriptor is not None:
                os.close(self._descriptor)


class TarStates:
    """The tars of a row table as a read-only mapping: number -> TarState."""

    def __init__(self, table: RowTable) -> None:
        self._table = table

    def __getitem__(self, tar: int) -> TarState:
        return self._table.tar_state(tar)
