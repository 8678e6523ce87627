"""Bucket parquets out of manifests and tar indices: external, and shuffled by the samples' identity."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from millrace.asr.buckets import samples
from millrace.asr.buckets.edges import EdgePolicy, GivenEdges
from millrace.asr.buckets.files import TRAIN, BucketFiles, RejectFile, write_tars
from millrace.asr.buckets.histogram import DurationHistogram, bucket_of
from millrace.asr.buckets.join import Addresses, TarIndices, row_keys
from millrace.asr.buckets.spill import RowSpill, parts_for
from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.manifest import Manifest, RowRange
from millrace.asr.tars.paths import one_spelling
from millrace.common import atomic, hashing
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger

STAGE = "asr_build_bucket_manifests"
SPILL = ".spill"
# Rejects by choice of the run; all other reasons are errors of manifests or tars.
CHOICES = frozenset(["longer_than_last_edge", "duplicate_row"])


@dataclass(frozen=True)
class BucketChoices:
    """`keep_over_max`: what is longer than the last edge joins the last bucket, else it is rejected.

    `row_group` in rows; `parts` (a power of two) is for tests: neither it nor `threads` changes the result.
    """

    edges: EdgePolicy = field(default_factory=GivenEdges)
    keep_over_max: bool = True
    seed: int = 42
    threads: int = 2
    row_group: int = 1 << 16
    parts: int | None = None


@dataclass
class _Split:
    manifest: Manifest
    spill: RowSpill
    ledger: Ledger
    histogram: DurationHistogram
    keys: list[np.ndarray] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.manifest.split


def build(
    manifests: Iterable[Manifest],
    index: TarIndices | None,
    output_dir: Path,
    choices: BucketChoices,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Ledger]:
    """Write train's bucket parquets, a parquet per other split, and their config, tars, ledger and rejects.

    `manifests` are scanned; `index` may be None if they bring their offsets; `advance` gets numbers of rows
    read. Memory: a few pieces of 131,072 rows per thread, whatever their number; disk: the rows once more,
    under .spill. Raises MillraceError if no train row is left, after rejects and ledger are written.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    spills = output_dir / SPILL
    shutil.rmtree(spills, ignore_errors=True)  # of a run that was killed
    try:
        with contextlib.ExitStack() as closing:
            return _Build(list(manifests), index, output_dir, choices, advance, closing).run(spills)
    finally:
        shutil.rmtree(spills, ignore_errors=True)


def check_errors(ledgers: Sequence[Ledger], max_error_fraction: float, output_dir: Path) -> None:
    """Raise if more rows of a split are in error than allowed. The rejects stay, the config goes."""
    for ledger in ledgers:
        if problem := ledger.too_many_errors(CHOICES, max_error_fraction):
            (output_dir / "bucket_config.json").unlink(missing_ok=True)
            remedy = "Mend manifest or tars, or raise asr.max_error_fraction."
            raise MillraceError(problem, ledger.scope, f"{remedy} The rows: {output_dir}/rejects.jsonl")


class _Build:
    def __init__(
        self,
        manifests: list[Manifest],
        index: TarIndices | None,
        output_dir: Path,
        choices: BucketChoices,
        advance: Callable,
        closing: contextlib.ExitStack,
    ) -> None:
        # Evaluation splits first: their keys show which train rows they share.
        self.manifests = sorted(manifests, key=lambda manifest: (manifest.split == TRAIN, manifest.split))
        self.index, self.output_dir, self.choices, self.advance = index, output_dir, choices, advance
        self.closing = closing
        spelling = one_spelling({tar for manifest in manifests for tar in manifest.tars})
        self.tars = sorted(set(spelling.values()))
        numbers = {tar: number for number, tar in enumerate(self.tars)}
        self.number = {tar: numbers[spelled] for tar, spelled in spelling.items()}
        self.tar_hashes = hashing.hash_strings(pa.array(samples.portable_names(self.tars), mc.TEXT))
        self.seed_key = hashing.key(choices.seed)
        self.parts = choices.parts or parts_for(max((manifest.rows for manifest in manifests), default=0))
        # The tars whose members only the index knows, and those of which the manifest itself has the offsets.
        indexed, addressed = (
            {spelling[tar] for manifest in manifests if manifest.has_offsets == has for tar in manifest.tars}
            for has in (False, True)
        )
        states = {tar: index.state(tar) if index else "no tar index was given" for tar in indexed}
        states |= {tar: _file_state(tar) for tar in addressed}
        # (size, mtime_ns) of the tars that can be used, and the reason of those that cannot.
        self.states = {tar: state for tar, state in states.items() if not isinstance(state, str)}
        self.without = {tar: state for tar, state in states.items() if isinstance(state, str)}
        self.details = {tar: index.remark(tar) for tar in indexed} if index else {}
        self.details |= self.without
        self.indexed = sorted(indexed - self.without.keys())
        self.unusable = np.array([tar in self.without for tar in self.tars] + [False])

    def run(self, spills: Path) -> list[Ledger]:
        choices = self.choices
        rejects = RejectFile(self.output_dir / "rejects.jsonl", self.tars, self.details, spills / "rejects")
        with ThreadPoolExecutor(choices.threads) as pool:
            waiting = [self._spill(manifest, spills, rejects, pool) for manifest in self.manifests]
            addresses = self._spill_members(spills / "members.rows")
            for split, tasks in waiting:
                for rows, rejected, lengths in (task.result() for task in tasks):
                    split.ledger.rows_in += rows
                    split.ledger.rejected.update(rejected)
                    split.histogram.counts += lengths
        splits = [split for split, _ in waiting]
        trains = [split.histogram for split in splits if split.name == TRAIN]
        edges = choices.edges.edges(trains[0] if trains else DurationHistogram(choices.edges.last_edge))
        files = BucketFiles(self.output_dir, edges, self.tars, choices.row_group, choices.seed)
        with contextlib.ExitStack() as stack:
            for split in splits:
                stack.enter_context(files.writing(split.name))
                self._write(split, [other for other in splits if other.keys], addresses, files, rejects)
                split.ledger.check()
                split.spill.close()
            rejects.finish()
            atomic.write_json(self.output_dir / "ledger.json", [split.ledger.as_dict() for split in splits])
            _check_train(splits, self.output_dir)
            files.forget_config()
            write_tars(self.output_dir / "tars.parquet", self.tars, self.states)
        files.sweep()
        files.write_config("keep" if choices.keep_over_max else "drop", choices.edges.as_dict())
        return [split.ledger for split in splits]

    def _opened(self, path: Path) -> RowSpill:
        spill = RowSpill(path, self.parts)
        self.closing.callback(spill.close)
        return spill

    # first pass: check, reject, spill by key

    def _spill(
        self, manifest: Manifest, spills: Path, rejects: RejectFile, pool: Executor
    ) -> tuple[_Split, list[Future]]:
        ledger = Ledger(STAGE, manifest.split, "row", repaired=manifest.repaired)
        histogram = DurationHistogram(self.choices.edges.last_edge)
        split = _Split(manifest, self._opened(spills / f"{manifest.split}.rows"), ledger, histogram)
        tars = np.array([self.number[tar] for tar in manifest.tars] + [-1], dtype=np.int32)

        def spill(row_range: RowRange, part: RejectFile.Part) -> tuple[int, Counter, np.ndarray]:
            rows, counts, lengths = 0, Counter(), DurationHistogram(self.choices.edges.last_edge)
            for table in manifest.read(row_range):
                rows += len(table)
                table, rejected = self._checked(table, tars, part)
                counts.update(rejected)
                lengths.add(table.column("duration_s").to_numpy())
                tar_hashes = self.tar_hashes[table.column("tar").to_numpy()]
                ids = samples.sample_ids(tar_hashes, table.column("tar_member_name"))
                split.spill.add(table.append_column("sample_id", pa.array(ids)), row_keys(ids, self.seed_key))
            self.advance(rows)
            return rows, counts, lengths.counts

        parts = [(rows, rejects.part(manifest.split, manifest.files)) for rows in manifest.ranges]
        return split, [pool.submit(spill, rows, part) for rows, part in parts]

    def _checked(
        self, table: pa.Table, tars: np.ndarray, part: RejectFile.Part
    ) -> tuple[pa.Table, dict[str, int]]:
        """The rows without a problem, their tars numbered as in the whole build; the others go to `part`."""
        numbers, problem = tars[table.column("tar").to_numpy()], table.column("problem").to_numpy().copy()
        table = table.set_column(table.column_names.index("tar"), "tar", pa.array(numbers))
        table = table.drop_columns(["problem"])
        mc.note(problem, self.unusable[numbers], "tar_not_indexed")
        if not self.choices.keep_over_max:
            longer = table.column("duration_s").to_numpy() > self.choices.edges.last_edge
            mc.note(problem, longer, "longer_than_last_edge")
        if not problem.any():
            return table, {}
        return table.filter(pa.array(problem == 0)), part.add(table, problem)

    def _spill_members(self, path: Path) -> RowSpill:
        """The addresses of all members of the indexed tars, parted by the same key as the rows."""
        spill, numbers = (
            self._opened(path),
            np.array([self.number[tar] for tar in self.indexed], dtype=np.int32),
        )
        for members in self.index.members(self.indexed) if self.indexed else ():
            tar = numbers[members["tar"].to_numpy()]
            ids = samples.sample_ids(self.tar_hashes[tar], mc.bare_names(members["name"]))
            keys = row_keys(ids, self.seed_key)
            columns = {"key": keys, "tar": tar, "offset": members["offset"], "size": members["size"]}
            spill.add(pa.table(columns), keys)
        return spill

    # second pass: part by part in the order of the keys

    def _write(
        self,
        split: _Split,
        others: list[_Split],
        addresses: RowSpill,
        files: BucketFiles,
        rejects: RejectFile,
    ) -> None:
        part = rejects.part(split.name, split.manifest.files)
        other_keys = {other.name: np.sort(np.concatenate(other.keys)) for other in others}
        with ThreadPoolExecutor(1) as writer:
            pending: Future | None = None
            for number in range(self.parts):
                table = split.spill.read(number)
                if table is None:
                    continue
                tables, keys = self._ordered(split, table, addresses, number, part, files.edges)
                # over_max keeps them; if these are many, durations are in another unit.
                longer = int((tables[-1].column("duration_s").to_numpy() > files.edges[-1]).sum())
                split.ledger.warnings.update({"longer_than_last_edge": longer} if longer else {})
                for name, theirs in other_keys.items():
                    shared = int(np.isin(keys, theirs).sum())
                    split.ledger.warnings.update({f"also_in_{name}": shared} if shared else {})
                if split.name != TRAIN:
                    split.keys.append(keys)
                split.ledger.rows_out += len(keys)
                # One part is written while the next is put in order.
                if pending:
                    pending.result()
                pending = writer.submit(files.write, split.name, tables)
            if pending:
                pending.result()

    def _ordered(
        self,
        split: _Split,
        table: pa.Table,
        addresses: RowSpill,
        number: int,
        part: RejectFile.Part,
        edges: Sequence[float],
    ) -> tuple[list[pa.Table], np.ndarray]:
        """The rows of part `number` as one table per bucket in the order of the keys, and the keys.

        With offset and size; twins, and what is in no tar, go to `part`.
        """
        keys = row_keys(table.column("sample_id").to_numpy(), self.seed_key)
        order = np.argsort(keys)
        keys = keys[order]
        problem = np.zeros(len(keys), dtype=np.uint8)
        tied = np.flatnonzero(keys[1:] == keys[:-1])
        if len(tied):
            tied = np.union1d(tied, tied + 1)
            order, twins = samples.resolve_collisions(table, self.tars, order, keys, tied)
            problem[twins] = mc.CODE["duplicate_row"]
        if split.manifest.has_offsets:
            offsets, sizes = (table.column(name).to_numpy()[order] for name in ("offset", "size"))
            table = table.drop_columns(["offset", "size"])
        else:
            members = Addresses(addresses.read(number))
            offsets, sizes = members.find(keys, table.column("tar").to_numpy()[order])
        mc.note(problem, offsets == -2, "not_in_tar")
        mc.note(problem, offsets < 0, "not_a_file")
        mc.note(problem, sizes == 0, "empty_member")
        if problem.any():
            rejected = np.flatnonzero(problem)
            split.ledger.rejected.update(part.add(table.take(pa.array(order[rejected])), problem[rejected]))

        good, starts = np.flatnonzero(problem == 0), [0]
        if split.name == TRAIN:
            bucket = bucket_of(table.column("duration_s").to_numpy()[order[good]], edges)
            good = good[np.argsort(bucket, kind="stable")]
            starts = np.searchsorted(np.sort(bucket), np.arange(len(edges) - 1)).tolist()
        # A take per bucket, not slices of one: one that waits for its row group must not hold others' rows.
        buckets = []
        for rows in np.split(good, starts[1:]):
            columns = table.take(pa.array(order[rows])).append_column("offset", pa.array(offsets[rows]))
            buckets.append(columns.append_column("size", pa.array(sizes[rows])))
        return buckets, keys[good]


def _file_state(tar: str) -> tuple[int, int] | str:
    """(size in bytes, mtime_ns) of a tar as it is now, or the reason why it cannot be read."""
    try:
        stat = Path(tar).stat()
        return stat.st_size, stat.st_mtime_ns
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        return getattr(error, "strerror", None) or str(error)


def _check_train(splits: list[_Split], output_dir: Path) -> None:
    for split in splits:
        ledger = split.ledger
        if split.name == TRAIN and not ledger.rows_out:
            where, remedy = split.manifest.files[0], "The manifest has no rows: write it again"
            if ledger.rows_in:
                where, remedy = (
                    output_dir / "rejects.jsonl",
                    "The file lists every rejected row with its reason",
                )
            problem = f"no train row is left of {ledger.rows_in}: {dict(sorted(ledger.rejected.items()))}"
            raise MillraceError(problem, str(where), remedy)
