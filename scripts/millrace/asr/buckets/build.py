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

from millrace.asr.buckets import edges as bucket_edges
from millrace.asr.buckets import join, samples
from millrace.asr.buckets.files import TRAIN, BucketFiles, RejectFile, write_tars
from millrace.asr.buckets.join import Addresses, MemberIndex, row_keys
from millrace.asr.buckets.spill import RowSpill, parts_for
from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.manifest import Manifest, Task
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
    """`edges` in seconds, or None for the best `auto` buckets up to `last_edge`.

    `keep_over_max`: what is longer than the last edge joins the last bucket, else it is rejected. `row_group`
    in rows; `parts` (a power of two) is for tests: the result does not depend on it, nor on `threads`.
    """

    edges: tuple[float, ...] | None = bucket_edges.SEED_EDGES
    auto: int = 7
    last_edge: float = 30.0
    keep_over_max: bool = True
    seed: int = 42
    threads: int = 2
    row_group: int = 1 << 16
    parts: int | None = None

    @property
    def longest(self) -> float:
        return self.edges[-1] if self.edges else self.last_edge

    def histogram(self) -> bucket_edges.DurationHistogram:
        """An empty histogram of durations; of one step where the edges are given and nobody needs it."""
        return bucket_edges.DurationHistogram(bucket_edges.STEP_SECONDS if self.edges else self.last_edge)


@dataclass
class _Split:
    manifest: Manifest
    spill: RowSpill
    ledger: Ledger
    histogram: bucket_edges.DurationHistogram
    keys: list[np.ndarray] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.manifest.split


def build(
    manifests: Iterable[Manifest],
    index: MemberIndex | None,
    output_dir: Path,
    choices: BucketChoices,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Ledger]:
    """Write the bucket parquets of train, one parquet per other split, and their config, tars, ledger and
    rejects.

    `manifests` are scanned; `index` may be None where they bring their offsets; `advance` is told the rows
    read. Memory: a few pieces of 131,072 rows per thread, whatever their number; disk: the rows once more,
    under .spill. Raises MillraceError where no train row is left, after rejects and ledger are written.
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
    """Raise when more rows of a split are in error than allowed. The rejects stay, the config goes: not a
    whole set."""
    for ledger in ledgers:
        if problem := ledger.too_many_errors(CHOICES, max_error_fraction):
            (output_dir / "bucket_config.json").unlink(missing_ok=True)
            raise MillraceError(
                problem,
                where=ledger.scope,
                remedy=f"Mend manifest or tars, or raise asr.max_error_fraction. The rows: {output_dir}/rejects.jsonl",
            )


class _Build:
    def __init__(
        self,
        manifests: list[Manifest],
        index: MemberIndex | None,
        output_dir: Path,
        choices: BucketChoices,
        advance: Callable,
        closing: contextlib.ExitStack,
    ) -> None:
        # Evaluation splits first: their keys show which train rows they share.
        self.manifests = sorted(manifests, key=lambda manifest: (manifest.split == TRAIN, manifest.split))
        self.index, self.output_dir, self.choices, self.advance = index, output_dir, choices, advance
        self.closing = closing
        self.spelling = one_spelling({tar for manifest in manifests for tar in manifest.tars})
        self.tars = sorted(set(self.spelling.values()))
        numbers = {tar: at for at, tar in enumerate(self.tars)}
        self.number = {tar: numbers[spelling] for tar, spelling in self.spelling.items()}
        self.tar_hashes = hashing.hash_strings(pa.array(samples.portable_names(self.tars), mc.TEXT))
        self.seed_key = hashing.key(choices.seed)
        self.parts = choices.parts or parts_for(max((manifest.rows for manifest in manifests), default=0))
        self.states, self.without = self._tar_states()
        self.unindexed = np.array([tar in self.without for tar in self.tars] + [False])

    def _tar_states(self) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """(size, mtime_ns) of the tars that can be used, and the reason of those that cannot."""
        states, without = {}, {}
        for tar in sorted(self._asked()):
            state = self.index.state(tar) if self.index else "no tar index was given"
            (without if isinstance(state, str) else states)[tar] = state
        for tar in {
            self.spelling[tar] for manifest in self.manifests if manifest.has_offsets for tar in manifest.tars
        }:
            try:
                stat = Path(tar).stat()
                states[tar] = (stat.st_size, stat.st_mtime_ns)
            except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
                without[tar] = getattr(error, "strerror", None) or str(error)
        return states, without

    def _asked(self) -> set[str]:
        """The tars whose members the index must tell."""
        return {
            self.spelling[tar]
            for manifest in self.manifests
            if not manifest.has_offsets
            for tar in manifest.tars
        }

    def run(self, spills: Path) -> list[Ledger]:
        details = {tar: self.index.remark(tar) for tar in self._asked()} if self.index else {}
        details |= self.without
        rejects = RejectFile(self.output_dir / "rejects.jsonl", self.tars, details, spills / "rejects")
        with ThreadPoolExecutor(self.choices.threads) as pool:
            waiting = [self._spill(manifest, spills, rejects, pool) for manifest in self.manifests]
            addresses = self._spill_members(spills / "members.rows")
            splits = [_spilled(split, tasks) for split, tasks in waiting]
        files = BucketFiles(
            self.output_dir, self._edges(splits), self.tars, self.choices.row_group, self.choices.seed
        )
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
        auto = {"num_buckets": self.choices.auto, "last_edge": self.choices.last_edge}
        files.write_config(
            "keep" if self.choices.keep_over_max else "drop", None if self.choices.edges else auto
        )
        return [split.ledger for split in splits]

    def _opened(self, path: Path) -> RowSpill:
        spill = RowSpill(path, self.parts)
        self.closing.callback(spill.close)
        return spill

    def _edges(self, splits: list[_Split]) -> tuple[float, ...]:
        if self.choices.edges:
            return bucket_edges.checked_edges(self.choices.edges)
        histogram = self.choices.histogram()
        for split in splits:
            if split.name == TRAIN:
                histogram.counts += split.histogram.counts
        return bucket_edges.auto_edges(histogram.counts, self.choices.auto, histogram.step)

    # first pass: check, reject, spill by key

    def _spill(
        self, manifest: Manifest, spills: Path, rejects: RejectFile, pool: Executor
    ) -> tuple[_Split, list[Future]]:
        ledger = Ledger(STAGE, manifest.split, "row", repaired=manifest.repaired)
        histogram = self.choices.histogram()
        split = _Split(manifest, self._opened(spills / f"{manifest.split}.rows"), ledger, histogram)
        tars = np.array([self.number[tar] for tar in manifest.tars] + [-1], dtype=np.int32)

        def spill(task: Task, part: RejectFile.Part) -> tuple[int, Counter, np.ndarray]:
            rows, counts, lengths = 0, Counter(), self.choices.histogram()
            for table in manifest.read(task):
                rows += len(table)
                table, rejected = self._kept(table, tars, part)
                counts.update(rejected)
                lengths.add(table.column("duration_s").to_numpy())
                ids = samples.sample_ids(
                    self.tar_hashes[table.column("tar").to_numpy()], table.column("tar_member_name")
                )
                split.spill.add(table.append_column("sample_id", pa.array(ids)), row_keys(ids, self.seed_key))
            self.advance(rows)
            return rows, counts, lengths.counts

        parts = [(task, rejects.part(manifest.split, manifest.files)) for task in manifest.tasks]
        return split, [pool.submit(spill, task, part) for task, part in parts]

    def _kept(
        self, table: pa.Table, tars: np.ndarray, part: RejectFile.Part
    ) -> tuple[pa.Table, dict[str, int]]:
        """The rows without a problem, their tars numbered as in the whole build; the others go to `part`."""
        numbers, problem = tars[table.column("tar").to_numpy()], table.column("problem").to_numpy().copy()
        table = table.set_column(table.column_names.index("tar"), "tar", pa.array(numbers)).drop_columns(
            ["problem"]
        )
        mc.note(problem, self.unindexed[numbers], "tar_not_indexed")
        if not self.choices.keep_over_max:
            mc.note(
                problem, table.column("duration_s").to_numpy() > self.choices.longest, "longer_than_last_edge"
            )
        if not problem.any():
            return table, {}
        return table.filter(pa.array(problem == 0)), part.add(table, problem)

    def _spill_members(self, path: Path) -> RowSpill:
        spill = self._opened(path)
        usable = sorted(self._asked() - set(self.without))
        if self.index and usable:
            numbers = np.array([self.number[tar] for tar in usable], dtype=np.int32)
            join.spill_members(self.index, usable, numbers, self.tar_hashes, self.seed_key, spill)
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
        known = {other.name: np.sort(np.concatenate(other.keys)) for other in others}
        with ThreadPoolExecutor(1) as writer:
            pending: Future | None = None
            for number in range(self.parts):
                table = split.spill.read(number)
                if table is None:
                    continue
                members = None if split.manifest.has_offsets else Addresses(addresses.read(number))
                tables, keys = self._ordered(split, table, members, part, files.edges)
                # Kept by over_max; where these are many, durations are in another unit.
                longer = int((tables[-1].column("duration_s").to_numpy() > files.edges[-1]).sum())
                split.ledger.warnings.update({"longer_than_last_edge": longer} if longer else {})
                for name, theirs in known.items():
                    shared = int(np.isin(keys, theirs).sum())
                    split.ledger.warnings.update({f"also_in_{name}": shared} if shared else {})
                if split.name != TRAIN:
                    split.keys.append(keys)
                split.ledger.rows_out += len(keys)
                if pending:
                    pending.result()
                pending = writer.submit(files.write, split.name, tables)
            if pending:
                pending.result()

    def _ordered(
        self,
        split: _Split,
        table: pa.Table,
        members: Addresses | None,
        part: RejectFile.Part,
        edges: Sequence[float],
    ) -> tuple[list[pa.Table], np.ndarray]:
        """The rows of one part as one table per bucket in the order of the keys, and the keys.

        With offset and size; twins, and what is in no tar, go to `part`.
        """
        keys = row_keys(table.column("sample_id").to_numpy(), self.seed_key)
        order = np.argsort(keys)
        keys = keys[order]
        problem = np.zeros(len(keys), dtype=np.uint8)
        tied = np.flatnonzero(keys[1:] == keys[:-1])
        if len(tied):
            order, twins = samples.untangled(table, self.tars, order, keys, np.union1d(tied, tied + 1))
            problem[twins] = mc.CODE["duplicate_row"]
        tars = table.column("tar").to_numpy()[order]
        if members is None:
            offsets, sizes = (table.column(name).to_numpy()[order] for name in ("offset", "size"))
            table = table.drop_columns(["offset", "size"])
        else:
            offsets, sizes = members.find(keys, tars)
        mc.note(problem, offsets == -2, "not_in_tar")
        mc.note(problem, offsets < 0, "not_a_file")
        mc.note(problem, sizes == 0, "empty_member")
        if problem.any():
            rejected = np.flatnonzero(problem)
            split.ledger.rejected.update(part.add(table.take(pa.array(order[rejected])), problem[rejected]))
        kept = np.flatnonzero(problem == 0)
        starts = [0]
        if split.name == TRAIN:
            bucket = bucket_edges.bucket_of(table.column("duration_s").to_numpy()[order[kept]], edges)
            kept = kept[np.argsort(bucket, kind="stable")]
            starts = np.searchsorted(np.sort(bucket), np.arange(len(edges) - 1)).tolist()
        # One take per bucket, not slices of one: a bucket waiting for its row group must not hold the others'
        # rows.
        buckets = []
        for rows in np.split(kept, starts[1:]):
            columns = table.take(pa.array(order[rows]))
            columns = columns.append_column("offset", pa.array(offsets[rows]))
            buckets.append(columns.append_column("size", pa.array(sizes[rows])))
        return buckets, keys[kept]


def _spilled(split: _Split, tasks: Sequence[Future]) -> _Split:
    """Wait for the tasks of a split and count what they did."""
    for task in tasks:
        rows, counts, lengths = task.result()
        split.ledger.rows_in += rows
        split.ledger.rejected.update(counts)
        split.histogram.counts += lengths
    return split


def _check_train(splits: list[_Split], output_dir: Path) -> None:
    for split in splits:
        if split.name == TRAIN and not split.ledger.rows_out:
            raise MillraceError(
                f"no train row is left of {split.ledger.rows_in}: {dict(sorted(split.ledger.rejected.items()))}",
                where=str(output_dir / "rejects.jsonl" if split.ledger.rows_in else split.manifest.files[0]),
                remedy="The file lists every rejected row with its reason"
                if split.ledger.rows_in
                else "The manifest has no rows: write it again",
            )
