"""A partition of tars: which tars it names, their scans with several threads, and the report of how that
went."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson

from millrace.asr.manifests import files as manifest_files
from millrace.asr.tars.header import CUT, DIRECTORY, KIND_REASONS, SYMLINK
from millrace.asr.tars.index import TarRecord
from millrace.asr.tars.scan import TarScan, scan
from millrace.common import cli
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger

_REJECTS = {3: "directory", 4: "sparse", 5: "broken_link", 6: "special", 7: "multi_volume", 8: "cut"}
assert _REJECTS.keys() == set(range(DIRECTORY, CUT + 1)) == KIND_REASONS.keys() - {255}


@dataclasses.dataclass(frozen=True)
class TarPartition:
    """`id` and the paths of the tars; `expected` holds (size, mtime_ns) where the partition file says it."""

    id: str
    tars: list[str]
    expected: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


def read_partition(path: str | os.PathLike) -> TarPartition:
    """A partition file: {"id": ..., "tars": [{"path", "size", "mtime_ns"}, ...]}."""
    try:
        content = orjson.loads(Path(path).read_bytes())
        tars, expected = [], {}
        for tar in content["tars"]:
            tars.append(str(tar["path"]))
            if tar.get("size") is not None and tar.get("mtime_ns") is not None:
                expected[str(tar["path"])] = (int(tar["size"]), int(tar["mtime_ns"]))
        return TarPartition(str(content["id"]), list(dict.fromkeys(tars)), expected)
    except OSError as error:
        raise MillraceError(f"cannot be read: {error.strerror}", where=os.fspath(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MillraceError(
            f"not a partition of tars ({type(error).__name__}: {error})",
            where=os.fspath(path),
            remedy="It is written when the workflow is parsed: delete it and run snakemake again",
        ) from None


def manifest_tars(folder: str | os.PathLike) -> list[str]:
    """The tars which the manifests in `folder` name, sorted; of parquet no other column is needed."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from millrace.asr.manifests.manifest import Manifest

    paths: set[str] = set()
    found = manifest_files.find(folder)
    if not found:
        raise MillraceError("neither train.parquet nor another manifest is there", where=os.fspath(folder))
    for split, files in found.items():
        for manifest in files:
            if not manifest.endswith(".parquet"):
                paths.update(Manifest(split, "jsonl", [Path(manifest)]).scan().tars)
                continue
            try:
                with pq.ParquetFile(manifest) as file:
                    for group in range(file.num_row_groups):
                        column = file.read_row_group(group, columns=["tar_path"])["tar_path"]
                        paths.update(path for path in pc.unique(column).to_pylist() if path)
            except (pa.ArrowException, KeyError, OSError) as error:
                raise MillraceError(f"no column tar_path can be read ({error})", where=manifest) from None
    return sorted(paths)


def scan_all(tars: Iterable[str], threads: int, chains: int) -> Iterator[TarScan]:
    """Scan tars with `threads` threads; yields in their order, with a bounded number of results waiting."""
    ahead: deque = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for tar in tars:
                ahead.append(pool.submit(scan, tar, chains))
                if len(ahead) >= 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


class ScanLog:
    """Counts while scans pass by: progress, members by kind, and a line for every tar that is not simply
    right."""

    def __init__(self, partition: TarPartition) -> None:
        self.partition = partition
        self.kinds: Counter = Counter()
        self.stale: list[str] = []

    def watch(self, scans: Iterable[TarScan]) -> Iterator[TarScan]:
        """Pass the scans on."""
        with cli.Progress(len(self.partition.tars), "tars", f"index {self.partition.id}") as progress:
            for found in scans:
                self.kinds.update(found.kinds.tolist())
                expected = self.partition.expected.get(found.path)
                if expected and found.size >= 0 and expected != (found.size, found.mtime_ns):
                    self.stale.append(found.path)
                    cli.log.warning(
                        "%s: has changed since the workflow was parsed; indexed as it is now", found.path
                    )
                if found.reason:
                    level = (
                        logging.INFO if found.status in ("ok", "unterminated", "empty") else logging.WARNING
                    )
                    cli.log.log(level, "%s: %s: %s", found.path, found.status, found.reason)
                progress.advance(
                    1, errors=int(found.status not in ("ok", "concatenated", "unterminated", "empty"))
                )
                yield found

    def report(self, records: list[TarRecord]) -> dict:
        """The report: a ledger of tars, one of members, and every tar with status and reason."""
        statuses = Counter(record.status for record in records)
        tars = Ledger("build_tar_indices", self.partition.id, "tar", rows_in=len(self.partition.tars))
        tars.rejected.update(record.status for record in records if record.failed)
        tars.rows_out = sum(not record.failed for record in records)
        tars.warnings.update(
            record.status for record in records if not record.failed and record.status != "ok"
        )
        if self.stale:
            tars.warnings["changed_since_parsed"] = len(self.stale)
        members = Ledger("build_tar_indices", self.partition.id, "member", rows_in=sum(self.kinds.values()))
        members.rows_out = sum(count for kind, count in self.kinds.items() if kind <= SYMLINK)
        members.rejected.update(
            {_REJECTS[kind]: count for kind, count in self.kinds.items() if kind > SYMLINK}
        )
        for name in ("duplicates", "recovered"):
            if count := sum(getattr(record, name) for record in records):
                members.warnings[name] = count
        tars.check()
        members.check()
        return {
            "partition": self.partition.id,
            "statuses": dict(sorted(statuses.items())),
            "ledgers": [tars.as_dict(), members.as_dict()],
            "tars": [dataclasses.asdict(record) for record in records],
        }
