"""Bucket parquets out of manifests and tar indices: external, and shuffled by the samples'
identity."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from millrace.asr.buckets import samples
from millrace.asr.buckets.edges import EdgePolicy, GivenEdges
from millrace.asr.buckets.files import TRAIN, BucketFiles, RejectFile, write_tars
from millrace.asr.buckets.histogram import DurationHistogram, bucket_of
from millrace.asr.buckets.join import Addresses, TarIndices, row_keys
from millrace.asr.buckets.names import Names, with_unicode_forms
from millrace.asr.buckets.spill import RowSpill, parts_for
from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.manifest import Manifest, RowRange
from millrace.asr.tars.paths import one_spelling
from millrace.asr.tars.stamp import Stamp
from millrace.common import atomic, hashing
from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger

STAGE = "asr_build_bucket_manifests"
SPILL = ".spill"
_LOGGED = 20  # members with contradicting rows in the log; rejects.jsonl has all
_EXPLAINED = 1000  # rows in no tar that get the nearest name, which takes milliseconds each
# Rejects by choice of the run; all other reasons are errors of manifests or tars.
CHOICES = frozenset(["longer_than_last_edge", "duplicate_row"])


@dataclass(frozen=True)
class BucketChoices:
    """`keep_over_max`: what is longer than the last edge joins the last bucket, else it is
    rejected.

    `row_group` in rows; `parts` (a power of two) is for tests: neither it nor `threads` changes the
    result.
    """

    edges: EdgePolicy = field(default_factory=GivenEdges)
    keep_over_max: bool = True
    seed: int = 42
    threads: int = 2
    row_group: int = 1 << 16
    parts: int | None = None


@dataclass
class _Split:
    name: str
    manifest: Manifest
    tars: np.ndarray  # the numbers that the manifest's tars have in the whole build, then -1
    spill: RowSpill
    ledger: Ledger
    histogram: DurationHistogram
    keys: list[np.ndarray] = field(default_factory=list)


def build(
    manifests: Iterable[Manifest],
    index: TarIndices | None,
    output_dir: Path,
    choices: BucketChoices,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Ledger]:
    """Write train's bucket parquets, a parquet per other split, and their config, tars, ledger and
    rejects.

    `manifests` are scanned; `index` may be None if they bring their offsets; `advance` gets numbers
    of rows read. Memory: a few pieces of 131,072 rows per thread, whatever their number; disk: the
    rows once more, under .spill. Raises MillraceError if no train row is left, after rejects and
    ledger are written.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    spills = output_dir / SPILL
    shutil.rmtree(spills, ignore_errors=True)  # of a run that was killed
    building = _Build(list(manifests), index, output_dir, choices)
    try:
        return building.run(spills, advance)
    finally:
        for spill in building.spills:
            spill.close()
        shutil.rmtree(spills, ignore_errors=True)


def check_errors(ledgers: Sequence[Ledger], max_error_fraction: float, output_dir: Path) -> None:
    """Raise if more rows of a split are in error than allowed. The rejects stay, the config
    goes."""
    for ledger in ledgers:
        if problem := ledger.too_many_errors(CHOICES, max_error_fraction):
            (output_dir / "bucket_config.json").unlink(missing_ok=True)
            remedy = "Mend manifest or tars, or raise asr.max_error_fraction."
            raise MillraceError(
                problem, ledger.scope, f"{remedy} The rows: {output_dir}/rejects.jsonl"
            )


class _Build:
    def __init__(
        self,
        manifests: list[Manifest],
        index: TarIndices | None,
        output_dir: Path,
        choices: BucketChoices,
    ) -> None:
        # Evaluation splits first: their keys show which train rows they share.
        self.manifests = sorted(
            manifests, key=lambda manifest: (manifest.split == TRAIN, manifest.split)
        )
        self.index, self.output_dir, self.choices = index, output_dir, choices
        self.spills: list[RowSpill] = []
        spelling = one_spelling({tar for manifest in manifests for tar in manifest.tars})
        self.tars = sorted(set(spelling.values()))
        numbers = {tar: number for number, tar in enumerate(self.tars)}
        self.number = {tar: numbers[spelled] for tar, spelled in spelling.items()}
        self.tar_hashes = hashing.hash_strings(pa.array(samples.portable_names(self.tars), mc.TEXT))
        self.seed_key = hashing.key(choices.seed)
        self.parts = choices.parts or parts_for(
            max((manifest.rows for manifest in manifests), default=0)
        )
        # The tars whose members only the index knows, and those of which the manifest itself has
        # the offsets.
        indexed, addressed = (
            {
                spelling[tar]
                for manifest in manifests
                if manifest.has_offsets == has
                for tar in manifest.tars
            }
            for has in (False, True)
        )
        states = {tar: index.state(tar) if index else "no tar index was given" for tar in indexed}
        states |= {tar: _file_state(tar) for tar in addressed}
        # The tars that can be used as they were indexed, and the reason of those that cannot.
        self.stamps = {tar: state for tar, state in states.items() if not isinstance(state, str)}
        self.without = {tar: state for tar, state in states.items() if isinstance(state, str)}
        self.details = {tar: index.remark(tar) for tar in indexed} if index else {}
        self.details |= self.without
        self.indexed = sorted(indexed - self.without.keys())
        reasons = [self.without.get(tar, "") for tar in self.tars]
        self.missing = np.array(
            [reason.startswith(("missing", "No such file")) for reason in reasons] + [False]
        )
        self.names_of, self.contradictions = lru_cache(16)(self._names), 0
        self.unusable = np.array([tar in self.without for tar in self.tars] + [False])

    def run(self, spills: Path, advance: Callable[[int], None]) -> list[Ledger]:
        choices = self.choices
        rejects = RejectFile(
            self.output_dir / "rejects.jsonl", self.tars, self.details, spills / "rejects"
        )
        with ThreadPoolExecutor(choices.threads) as pool:
            waiting = []
            for manifest in self.manifests:
                ledger = Ledger(STAGE, manifest.split, "row", repaired=manifest.repaired)
                histogram, spill = (
                    self._histogram(),
                    self._opened(spills / f"{manifest.split}.rows"),
                )
                tars = np.array([self.number[tar] for tar in manifest.tars] + [-1], dtype=np.int32)
                split = _Split(manifest.split, manifest, tars, spill, ledger, histogram)
                parts = [
                    (rows, rejects.part(split.name, manifest.files)) for rows in manifest.ranges
                ]
                waiting.append(
                    (split, [pool.submit(self._spill, split, *part, advance) for part in parts])
                )
            members = self._spill_members(spills / "members.rows")
            for split, tasks in waiting:
                for rows, rejected, lengths in (task.result() for task in tasks):
                    split.ledger.rows_in += rows
                    split.ledger.rejected.update(rejected)
                    split.histogram.counts += lengths
        splits = [split for split, _ in waiting]
        trains = [split.histogram for split in splits if split.name == TRAIN]
        edges = choices.edges.edges(trains[0] if trains else self._histogram())
        files = BucketFiles(self.output_dir, edges, self.tars, choices.row_group, choices.seed)
        with contextlib.ExitStack() as stack:
            for split in splits:
                stack.enter_context(files.writing(split.name, split.manifest.has_prompts))
                self._write(split, splits, members, files, rejects)
                split.ledger.check()
                split.spill.close()
            rejects.finish()
            atomic.write_json(
                self.output_dir / "ledger.json", [split.ledger.as_dict() for split in splits]
            )
            _check_train(splits, self.output_dir)
            # From here on the files change: the config of an older build goes.
            (self.output_dir / "bucket_config.json").unlink(missing_ok=True)
            write_tars(self.output_dir / "tars.parquet", self.tars, self.stamps)
        files.sweep()
        files.write_config("keep" if choices.keep_over_max else "drop", choices.edges.as_dict())
        return [split.ledger for split in splits]

    def _opened(self, path: Path) -> RowSpill:
        self.spills.append(RowSpill(path, self.parts))
        return self.spills[-1]

    def _histogram(self) -> DurationHistogram:
        return DurationHistogram(self.choices.edges.last_edge)

    def _spill(
        self, split: _Split, rows: RowRange, part: RejectFile.Part, advance: Callable[[int], None]
    ) -> tuple[int, Counter, np.ndarray]:
        """First pass: spill checked rows by key; return the number of rows, rejects, counts of
        durations."""
        count, rejected, lengths = 0, Counter(), self._histogram()
        for table in split.manifest.read(rows):
            count += len(table)
            numbers = split.tars[table.column("tar").to_numpy()]
            problem = table.column("problem").to_numpy().copy()
            table = table.set_column(table.column_names.index("tar"), "tar", pa.array(numbers))
            table = table.drop_columns(["problem"])
            mc.note(problem, self.missing[numbers], "tar_missing")
            mc.note(problem, self.unusable[numbers], "tar_not_indexed")
            if not self.choices.keep_over_max:
                longer = table.column("duration_s").to_numpy() > self.choices.edges.last_edge
                mc.note(problem, longer, "longer_than_last_edge")
            if problem.any():
                rejected.update(part.add(table, problem))
                table, numbers = table.filter(pa.array(problem == 0)), numbers[problem == 0]
            lengths.add(table.column("duration_s").to_numpy())
            ids = samples.sample_ids(self.tar_hashes[numbers], table.column("tar_member_name"))
            split.spill.add(
                table.append_column("sample_id", pa.array(ids)), row_keys(ids, self.seed_key)
            )
        advance(count)
        return count, rejected, lengths.counts

    def _spill_members(self, path: Path) -> RowSpill:
        """The addresses of all members of the indexed tars, parted by the same key as the rows."""
        spill = self._opened(path)
        numbers = np.array([self.number[tar] for tar in self.indexed], dtype=np.int32)
        for members in self.index.members(self.indexed) if self.indexed else ():
            members = with_unicode_forms(members)
            tar = numbers[members["tar"].to_numpy()]
            ids = samples.sample_ids(self.tar_hashes[tar], mc.bare_names(members["name"]))
            keys = row_keys(ids, self.seed_key)
            columns = {
                "key": keys,
                "tar": tar,
                "offset": members["offset"],
                "size": members["size"],
            }
            spill.add(pa.table(columns), keys)
        return spill

    def _write(
        self,
        split: _Split,
        splits: list[_Split],
        members: RowSpill,
        files: BucketFiles,
        rejects: RejectFile,
    ) -> None:
        """Second pass: part by part in the order of the keys."""
        part = rejects.part(split.name, split.manifest.files)
        other_keys = {
            other.name: np.sort(np.concatenate(other.keys)) for other in splits if other.keys
        }
        with ThreadPoolExecutor(1) as writer:
            pending: Future | None = None
            for number in range(self.parts):
                table = split.spill.read(number)
                if table is None:
                    continue
                addresses = None if split.manifest.has_offsets else Addresses(members.read(number))
                tables, keys = self._ordered(split, table, addresses, part, files.edges)
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
        members: Addresses | None,
        part: RejectFile.Part,
        edges: tuple,
    ) -> tuple[list[pa.Table], np.ndarray]:
        """The rows of one part as one table per bucket in the order of the keys, and the keys.

        With offset and size; twins, and what is in no tar, go to `part`.
        """
        keys = row_keys(table.column("sample_id").to_numpy(), self.seed_key)
        order = np.argsort(keys)
        keys = keys[order]
        problem, differing = np.zeros(len(keys), dtype=np.uint8), []
        tied = np.flatnonzero(keys[1:] == keys[:-1])
        if len(tied):
            tied = np.union1d(tied, tied + 1)
            order, twins, differing = samples.resolve_collisions(
                table, self.tars, order, keys, tied
            )
            problem[twins] = mc.CODE["duplicate_row"]
        if members is None:
            offsets, sizes = (table.column(name).to_numpy()[order] for name in ("offset", "size"))
            table = table.drop_columns(["offset", "size"])
        else:
            offsets, sizes = members.find(keys, table.column("tar").to_numpy()[order])
        details: dict[int, str] = {}
        for places in differing:
            rows = table.take(pa.array(order[places])).to_pylist()
            problem[places], more = self._judge(split, rows, offsets[places[0]])
            details |= zip(places.tolist(), more, strict=True)
        mc.note(problem, offsets == -2, "not_in_tar")
        mc.note(problem, offsets < 0, "not_a_file")
        mc.note(problem, sizes == 0, "empty_member")
        if problem.any():
            rejected = np.flatnonzero(problem)
            rows = table.take(pa.array(order[rejected]))
            missing = np.flatnonzero(problem[rejected] == mc.CODE["not_in_tar"])
            missing = missing[: max(0, _EXPLAINED - split.ledger.rejected["not_in_tar"])]
            unknown = rows.take(pa.array(missing)).to_pylist()
            for at, row in zip(rejected[missing].tolist(), unknown, strict=True):
                if name := self.names_of(row["tar"]).nearest(row["tar_member_name"]):
                    details[at] = f"nearest name in the tar: {name}"
            rows = rows.append_column(
                "detail", pa.array([details.get(at, "") for at in rejected.tolist()])
            )
            split.ledger.rejected.update(part.add(rows, problem[rejected]))

        good, starts = np.flatnonzero(problem == 0), [0]
        if split.name == TRAIN:
            bucket = bucket_of(table.column("duration_s").to_numpy()[order[good]], edges)
            good = good[np.argsort(bucket, kind="stable")]
            starts = np.searchsorted(np.sort(bucket), np.arange(len(edges) - 1)).tolist()
        # A take per bucket, not slices of one: one that waits for its row group must not hold
        # others' rows.
        buckets = []
        for rows in np.split(good, starts[1:]):
            columns = table.take(pa.array(order[rows])).append_column(
                "offset", pa.array(offsets[rows])
            )
            buckets.append(columns.append_column("size", pa.array(sizes[rows])))
        return buckets, keys[good]

    def _judge(self, split: _Split, rows: list[dict], offset: int) -> tuple[list[int], list[str]]:
        """The problems of a member's rows, which contradict each other, and a text that names the
        others.

        The rows with the duration of the member's header win if they agree; else all are rejected.
        """
        tar, files = self.tars[rows[0]["tar"]], split.manifest.files
        seconds = samples.header_seconds(tar, offset)
        fits = [seconds is not None and abs(row["duration_s"] - seconds) <= 0.05 for row in rows]
        fitting = [at for at, fit in enumerate(fits) if fit]
        decided = bool(fitting) and samples.agree_in_language(
            [rows[at]["language"] for at in fitting]
        )
        problems = [
            mc.CODE["duplicate_row" if decided and fit else "contradicting_row"] for fit in fits
        ]
        if decided:
            used = next((at for at in fitting if rows[at]["language"]), fitting[0])
            problems[used] = 0
        texts = [
            f"{files[row['row'] >> 40]} row {row['row'] & ((1 << 40) - 1)} says {row['duration_s']:g} s, "
            f"{row['language'] or 'no language'}"
            for row in rows
        ]
        header = f" (its header: {seconds:.3f} s)" if seconds is not None else ""
        self.contradictions += 1
        if self.contradictions <= _LOGGED:
            verdict = "the one that fits is used" if decided else "none is used"
            line = "%s: rows contradict each other about %s in %s%s: %s; %s"
            log.error(
                line, split.name, rows[0]["tar_member_name"], tar, header, ", ".join(texts), verdict
            )
        return problems, [
            ", ".join(other for other in texts if other != own) + header for own in texts
        ]

    def _names(self, tar: int) -> Names:
        pieces = self.index.members([self.tars[tar]])
        return Names(name for piece in pieces for name in piece["name"].to_pylist())


def _file_state(tar: str) -> Stamp | str:
    """A tar as it is now, or the reason why it cannot be read."""
    try:
        return Stamp.of(tar)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        return getattr(error, "strerror", None) or str(error)


def _check_train(splits: list[_Split], output_dir: Path) -> None:
    for split in splits:
        ledger = split.ledger
        if split.name == TRAIN and not ledger.rows_out:
            where, remedy = split.manifest.files[0], "The manifest has no rows: write it again"
            if ledger.rows_in:
                where = output_dir / "rejects.jsonl"
                remedy = "The file lists every rejected row with its reason"
            problem = f"no train row is left of {ledger.rows_in}: {ledger.reasons()}"
            raise MillraceError(problem, str(where), remedy)
