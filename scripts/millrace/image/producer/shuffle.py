"""One epoch: the records of K files at a time, drawn without replacement, shuffled into K new
files."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import atomic, hashing, jsonl
from millrace.common.cli import Progress
from millrace.common.errors import MillraceError
from millrace.image.producer import epochs
from millrace.image.records.reader import RecordReader, Records
from millrace.image.records.record_file import RecordFile, multiset_digest, record_writer
from millrace.image.records.record_set import RecordSet, file_name

_THREADS = 2  # files that are read or written at once


def order(count: int, *numbers: int) -> np.ndarray:
    """The numbers below `count` in the random order that belongs to `numbers` (seed, epoch,
    ...)."""
    key = hashing.key(*numbers)
    mixed = hashing.mix(np.arange(count, dtype=np.uint64) ^ key)
    return np.argsort(mixed, kind="stable")


def groups(
    lengths: np.ndarray, pool: int, seed: int, epoch: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The files of each pool of an epoch, and the order in which the records of all of them are
    written."""
    files = order(len(lengths), seed, epoch)
    for start in range(0, len(files), pool):
        group = files[start : start + pool]
        records = int(lengths[group].sum())
        yield group, order(records, seed, epoch, start + 1)


def pool_bytes(records: RecordSet) -> np.ndarray:
    """Bytes of memory that pools of 1, 2, ... files take at most."""
    sizes = records.lengths * math.prod((*records.size, 3))
    return np.cumsum(np.sort(sizes)[::-1])


def _digest_of(records: RecordSet) -> str:
    """Multiset digest of the ids that the files hold."""
    return multiset_digest(map(RecordReader(records).ids, range(len(records.files))))


class EpochMaker:
    """Makes epochs of `records` in `root`, `pool` files at a time: each time the same bytes."""

    def __init__(self, records: RecordSet, root: str | os.PathLike, pool: int, seed: int) -> None:
        self.records = records
        self.root = Path(root)
        self.pool = pool
        self.seed = seed
        # One array for the images of all groups.
        longest = np.sort(records.lengths)[::-1][:pool]
        most = int(longest.sum())
        self._buffer = np.empty((most, *records.size, 3), np.uint8)
        self.digest = _digest_of(records)
        self._source = jsonl.digest([dataclasses.astuple(file) for file in records.files])
        if records.ids_digest not in ("", self.digest):
            problem = (
                f"its files hold ids with the digest {self.digest}, the index says"
                f" {records.ids_digest}"
            )
            raise MillraceError(problem, str(records.folder), "Convert the images again")

    def mark(self, epoch: int) -> dict[str, Any]:
        """The mark of an epoch that is made so."""
        return {
            "maker": epochs.MAKER,
            "epoch": epoch,
            "seed": self.seed,
            "pool": self.pool,
            "source": self._source,
            "records": len(self.records),
            "digest": self.digest,
        }

    def make(self, epoch: int, report: Callable[[str], None]) -> None:
        """Write `train_<epoch>/`; it appears whole. `report` is told how far it is, and may
        raise."""
        folder = epochs.folder_of(self.root, epoch)
        if folder.exists():
            problem = "is in the way of an epoch, and was not made by the producer"
            raise MillraceError(
                problem, str(folder), "Move it, or name another --local_scratch_dir"
            )
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
        try:
            aside.mkdir()
            made = self._write(epoch, aside, report)
            digest = _digest_of(made)
            if digest != self.digest:
                problem = f"does not hold each record once (digest {digest}, not {self.digest})"
                raise MillraceError(problem, str(folder), "Please report this defect of Millrace")
            made.write(is_scratch=True)
            (aside / epochs.MARK).write_bytes(atomic.json_bytes(self.mark(epoch)))
            report(f"publishes epoch {epoch}")
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _write(self, epoch: int, folder: Path, report: Callable[[str], None]) -> RecordSet:
        total = len(self.records.files)
        written: list[RecordFile] = []
        with (
            Progress(total, "files", f"epoch {epoch}") as progress,
            ThreadPoolExecutor(_THREADS) as threads,
        ):
            for group, rows in groups(self.records.lengths, self.pool, self.seed, epoch):
                report(f"makes epoch {epoch}: {len(written)} of {total} files")
                content = self._read(group, threads)
                start = len(written)
                numbers = range(start, start + len(group))
                names = [folder / file_name(self.records.split, at, total) for at in numbers]
                parts = np.array_split(rows, len(group))
                write = partial(self._write_file, content)
                for file in threads.map(write, names, parts):
                    written.append(file)
                    progress.advance(1)
                    report(f"makes epoch {epoch}: {len(written)} of {total} files")
        return dataclasses.replace(
            self.records,
            folder=folder,
            files=written,
            has_index=True,
            epoch=epoch,
            pool=self.pool,
            ids_digest=self.digest,
            source=self.digest,
        )

    def _read(self, group: np.ndarray, threads: ThreadPoolExecutor) -> Records:
        """The records of a group of files."""
        ends = np.cumsum(self.records.lengths[group])

        def read(number: int) -> Records:
            count = int(self.records.lengths[group[number]])
            end = int(ends[number])
            out = self._buffer[end - count : end]
            with closing(RecordReader(self.records)) as reader:
                return reader.read(int(group[number]), 0, count, out)

        parts = list(threads.map(read, range(len(group))))
        labels = np.concatenate([part.labels for part in parts])
        ids = np.concatenate([part.ids for part in parts])
        return Records(self._buffer[: len(ids)], labels, ids)

    def _write_file(self, group: Records, path: Path, rows: np.ndarray) -> RecordFile:
        """Write the rows of a group as a file."""
        images = [group.images[row] for row in rows]
        with record_writer(path, len(rows), self.records.size, is_scratch=True) as writer:
            writer.append(images, group.labels[rows], group.ids[rows])
        return writer.file
