"""A partition of tars: which tars it names, their scans with several threads, and the report of the
scans, with the kinds of members that are rejected."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from millrace.asr.tars import header
from millrace.asr.tars.index import TarRecord
from millrace.asr.tars.scan import FAILED, PARTIAL, TarScan, scan
from millrace.common import cli
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger

_REJECTS = {
    header.DIRECTORY: "directory",
    header.SPARSE: "sparse",
    header.BROKEN_LINK: "broken_link",
    header.SPECIAL: "special",
    header.MULTI_VOLUME: "multi_volume",
}


@dataclasses.dataclass(frozen=True)
class TarPartition:
    """`id` and the paths of the tars."""

    id: str
    tars: list[str]


def read_partition(path: str | os.PathLike) -> TarPartition:
    """A partition file: {"id": ..., "tars": [{"path", ...}, ...]}."""
    try:
        content = json.loads(Path(path).read_bytes())  # orjson refuses a path that is not UTF-8
        tars = dict.fromkeys(str(tar["path"]) for tar in content["tars"])
        return TarPartition(str(content["id"]), list(tars))
    except OSError as error:
        raise MillraceError(f"cannot be read: {error.strerror}", os.fspath(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"not a partition of tars ({type(error).__name__}: {error})"
        remedy = (
            "The workflow's: delete it and run snakemake again; your own: build_tar_indices --help"
        )
        raise MillraceError(problem, os.fspath(path), remedy) from None


def scan_all(tars: Iterable[str], threads: int) -> Iterator[TarScan]:
    """Scan tars with `threads` threads; yields in their order, with a bounded number of results
    waiting."""
    ahead: deque[Future[TarScan]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for tar in tars:
                ahead.append(pool.submit(scan, tar))
                if len(ahead) >= 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


class ScanLog:
    """Counts while scans pass by: progress, members by kind, and a line for every tar with a
    remark."""

    def __init__(self, partition: TarPartition) -> None:
        self.partition = partition
        self.kinds: Counter = Counter()

    def watch(self, scans: Iterable[TarScan]) -> Iterator[TarScan]:
        """Pass the scans on."""
        with cli.Progress(
            len(self.partition.tars), "tars", f"index {self.partition.id}"
        ) as progress:
            for tar in scans:
                self.kinds.update(tar.kinds.tolist())
                if tar.reason:
                    is_odd = tar.status not in ("ok", "unterminated", "empty")
                    level = logging.WARNING if is_odd else logging.INFO
                    cli.log.log(level, "%s: %s: %s", tar.path, tar.status, tar.reason)
                progress.advance(1, errors=int(tar.status in (*FAILED, *PARTIAL)))
                yield tar

    def report(self, records: list[TarRecord]) -> dict:
        """The report: a ledger of tars, one of members, and every tar with status and reason."""
        statuses = Counter(record.status for record in records)
        tars = Ledger(
            "build_tar_indices", self.partition.id, "tar", rows_in=len(self.partition.tars)
        )
        tars.rejected.update(
            {status: count for status, count in statuses.items() if status in FAILED}
        )
        tars.rows_out = sum(not record.failed for record in records)
        odd = {*statuses} - {*FAILED, "ok"}
        tars.warnings.update({status: statuses[status] for status in odd})
        members = Ledger(
            "build_tar_indices", self.partition.id, "member", rows_in=self.kinds.total()
        )
        for kind, count in self.kinds.items():
            if kind <= header.SYMLINK:
                members.rows_out += count
            else:
                members.rejected[_REJECTS[kind]] = count
        for name in ("duplicates", "recovered"):
            count = sum(getattr(record, name) for record in records)
            if count:
                members.warnings[name] = count
        return {
            "partition": self.partition.id,
            "statuses": dict(sorted(statuses.items())),
            "ledgers": [tars.as_dict(), members.as_dict()],
            "tars": [dataclasses.asdict(record) for record in records],
        }
