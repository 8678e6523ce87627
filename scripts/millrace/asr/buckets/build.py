"""A bucket build from manifests to parquets: which rows are rejected, which of dev and test keeps a
row of both, and when too many rows are in error."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.asr.buckets import config
from millrace.asr.buckets.addresses import TarIndices, find_members
from millrace.asr.buckets.edges import DEFAULT_EDGES, bucket_of
from millrace.asr.buckets.held_out import HeldOut, Rows
from millrace.asr.buckets.order import SortedRows, row_keys, sort_rows
from millrace.asr.buckets.parquets import TRAIN, BucketFiles, write_tars
from millrace.asr.buckets.rejects import RejectFile, RejectPart
from millrace.asr.buckets.spill import RowSpill, parts_for
from millrace.asr.buckets.tar_table import TarTable
from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.identity import bare_names, sample_ids
from millrace.asr.manifests.manifest import Manifest, RowRange
from millrace.common import atomic, hashing, settings
from millrace.common.errors import MillraceError
from millrace.common.leaks import leakage
from millrace.common.ledger import Ledger
from millrace.common.settings import setting

STAGE = "asr_build_bucket_manifests"
SPILL = ".spill"
# Held-out splits, the one before that counts where both hold a row.
_HELD_OUT = ("test", "dev")
_LEAKS = frozenset(map(leakage.reason, _HELD_OUT))
# Rejects by choice of the run; all other reasons are errors of manifests or tars.
CHOICES = frozenset(["longer_than_last_edge", "duplicate_row", "skipme"]) | _LEAKS


@dataclass(frozen=True)
class BucketChoices:
    """How buckets are built; see the flags of build_bucket_manifests.

    `parts` (a power of two) is for tests: neither it nor `threads` changes the result.
    """

    edges: tuple[float, ...] = DEFAULT_EDGES
    over_max: str = setting(
        "keep",
        "samples longer than the last edge join the last bucket, or are rejected",
        among=("keep", "drop"),
    )
    seed: int = setting(42, "seed of the order inside a bucket")
    on_leak: str = setting(leakage.REJECT, leakage.HELP, among=leakage.WORDS)
    copies: str = setting(
        leakage.BY_BYTES, "how rows are found that copy dev or test", among=leakage.COPIES
    )
    threads: int = setting(2, "threads that read and write", at_least=1)
    parts: int | None = None

    def __post_init__(self) -> None:
        settings.check(self, "bucket choices")


@dataclass
class _Split:
    """A split under way: `tars` are the numbers that the manifest's tars have in the whole build,
    then -1; `rejects` those of its second pass."""

    manifest: Manifest
    tars: np.ndarray
    spill: RowSpill
    ledger: Ledger
    rejects: RejectPart | None = None

    @property
    def name(self) -> str:
        return self.manifest.split


class _Spilled(NamedTuple):
    """What became of a range of rows in the first pass."""

    rows: int
    rejected: Counter


class _Part(NamedTuple):
    """A part of a split in the order of its keys, with the addresses of the members."""

    table: pa.Table
    in_order: SortedRows
    offsets: np.ndarray
    sizes: np.ndarray

    def rows(self, places: np.ndarray) -> pa.Table:
        return self.table.take(pa.array(self.in_order.order[places]))

    def column(self, name: str) -> np.ndarray:
        return self.table.column(name).to_numpy()[self.in_order.order]

    def members(self, places: np.ndarray) -> Rows:
        order = pa.array(self.in_order.order[places])
        rows = self.table.select(["tar", "tar_member_name"]).take(order)
        return Rows(
            self.in_order.keys[places],
            rows["tar"].to_numpy(),
            self.offsets[places],
            self.sizes[places],
            rows["tar_member_name"].combine_chunks(),
        )


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
        return building.run(advance)
    finally:
        for spill in building.spills:
            spill.close()
        shutil.rmtree(spills, ignore_errors=True)


def check_errors(ledgers: Sequence[Ledger], max_error_fraction: float, output_dir: Path) -> None:
    """Raise if more rows of a split are in error than allowed. The rejects stay, the config
    goes."""
    for ledger in ledgers:
        if problem := ledger.too_many_errors(CHOICES, max_error_fraction):
            config.remove(output_dir)
            remedy = "Mend manifest or tars, or raise asr.max_error_fraction."
            raise MillraceError(
                problem, ledger.scope, f"{remedy} The rows: {output_dir}/rejects.jsonl"
            )


class _Build:
    """The first pass spills the rows, parted by their keys; the second writes them part by part."""

    def __init__(
        self,
        manifests: list[Manifest],
        index: TarIndices | None,
        output_dir: Path,
        choices: BucketChoices,
    ) -> None:
        self.manifests = sorted(manifests, key=lambda each: (each.split == TRAIN, each.split))
        self.index = index
        self.output_dir = output_dir
        self.choices = choices
        self.tars = TarTable(manifests, index)
        self.seed_key = hashing.key(choices.seed)
        most_rows = max((manifest.rows for manifest in manifests), default=0)
        self.parts = choices.parts or parts_for(most_rows)
        self.spills: list[RowSpill] = []
        self.rejects = RejectFile(
            output_dir / "rejects.jsonl",
            self.tars.paths,
            self.tars.details,
            output_dir / SPILL / "rejects",
        )
        prints = output_dir / SPILL / "prints"
        self.held_out = HeldOut(self.tars.paths, choices.copies, choices.threads, prints)
        self.first_leak = ""

    def run(self, advance: Callable[[int], None]) -> list[Ledger]:
        choices = self.choices
        splits = [self._split(manifest) for manifest in self.manifests]
        members = self._spill_all(splits, advance)
        files = BucketFiles(self.output_dir, choices.edges, self.tars.paths)
        ledgers = [split.ledger for split in splits]
        with contextlib.ExitStack() as stack:
            for split in splits:
                stack.enter_context(files.writing(split.name, split.manifest.has_prompts))
                split.rejects = self.rejects.part(split.name, split.manifest.files)
            # Held-out splits first: train, and dev, must not hold their rows.
            order = [*_HELD_OUT, TRAIN]
            for split in sorted(splits, key=lambda split: order.index(split.name)):
                self._write(split, members, files)
                split.spill.close()
            self.rejects.finish()
            ledger = [ledger.as_dict() for ledger in ledgers]
            atomic.write_json(self.output_dir / "ledger.json", ledger)
            _check_rows(splits, self.output_dir)
            self._check_leaks(ledgers)
            # From here on the files change: the config of an older build goes.
            config.remove(self.output_dir)
            write_tars(self.output_dir / "tars.parquet", self.tars.paths, self.tars.stamps)
        files.sweep()
        config.write(
            self.output_dir,
            config.Built(
                edges=files.edges,
                buckets=files.facts(TRAIN),
                splits={
                    split.name: files.facts(split.name)[0]
                    for split in splits
                    if split.name != TRAIN
                },
                tars=self.tars.paths,
                seed=choices.seed,
                over_max=choices.over_max,
            ),
        )
        return ledgers

    def _split(self, manifest: Manifest) -> _Split:
        return _Split(
            manifest,
            self.tars.numbers(manifest.tars),
            self._new_spill(f"{manifest.split}.rows"),
            Ledger(STAGE, manifest.split, "row", repaired=manifest.repaired),
        )

    def _new_spill(self, name: str) -> RowSpill:
        self.spills.append(RowSpill(self.output_dir / SPILL / name, self.parts))
        return self.spills[-1]

    def _spill_all(self, splits: list[_Split], advance: Callable[[int], None]) -> RowSpill:
        """The first pass: spill all rows, and the members of all indexed tars; returns these."""
        with ThreadPoolExecutor(self.choices.threads) as pool:
            tasks = []
            for split in splits:
                for rows in split.manifest.ranges:
                    part = self.rejects.part(split.name, split.manifest.files)
                    task = pool.submit(self._spill, split, rows, part, advance)
                    tasks.append((split, task))
            members = self._spill_members()
            for split, task in tasks:
                spilled = task.result()
                split.ledger.rows_in += spilled.rows
                split.ledger.rejected.update(spilled.rejected)
        return members

    def _spill(
        self, split: _Split, rows: RowRange, part: RejectPart, advance: Callable[[int], None]
    ) -> _Spilled:
        """Spill the rows of a range that are good so far."""
        count = 0
        rejected: Counter[str] = Counter()
        for read in split.manifest.read(rows):
            count += len(read)
            numbers = split.tars[read.column("tar").to_numpy()]
            problem = read.column("problem").to_numpy().copy()
            table = read.set_column(read.column_names.index("tar"), "tar", pa.array(numbers))
            table = table.drop_columns(["problem"])
            mc.note(problem, self.tars.missing[numbers], "tar_missing")
            mc.note(problem, self.tars.unusable[numbers], "tar_not_indexed")
            if self.choices.over_max == "drop":
                longer = table.column("duration_s").to_numpy() > self.choices.edges[-1]
                mc.note(problem, longer, "longer_than_last_edge")
            if problem.any():
                rejected.update(part.add(table, problem))
                good = problem == 0
                table = table.filter(pa.array(good))
                numbers = numbers[good]
            ids = sample_ids(self.tars.hashes[numbers], table.column("tar_member_name"))
            keys = row_keys(ids, self.seed_key)
            split.spill.add(table.append_column("sample_id", pa.array(ids)), keys)
        advance(count)
        return _Spilled(count, rejected)

    def _spill_members(self) -> RowSpill:
        """Spill the addresses of all members of the indexed tars, parted by the same key as the
        rows."""
        spill = self._new_spill("members.rows")
        if not self.tars.indexed:
            return spill
        assert self.index is not None  # where there is none, no tar is indexed
        numbers = self.tars.numbers(self.tars.indexed)
        for members in self.index.members(self.tars.indexed):
            tar = numbers[members["tar"].to_numpy()]
            ids = sample_ids(self.tars.hashes[tar], bare_names(members["name"]))
            keys = row_keys(ids, self.seed_key)
            columns = {
                "key": keys,
                "tar": tar,
                "offset": members["offset"],
                "size": members["size"],
            }
            spill.add(pa.table(columns), keys)
        return spill

    def _check_leaks(self, ledgers: Sequence[Ledger]) -> None:
        """Raise MillraceError if leaks were found that are an error; the list of rejects has
        them."""
        if self.choices.on_leak == leakage.ERROR and self.first_leak:
            shared = [leak for ledger in ledgers for leak in leakage.rejected(ledger)]
            where = self.output_dir / self.rejects.path.name
            raise leakage.error(shared, self.first_leak, where, "asr.on_leak")

    def _write(self, split: _Split, members: RowSpill, files: BucketFiles) -> None:
        """The second pass over a split: part by part in the order of the keys."""
        held_out: list[Rows] = []
        with ThreadPoolExecutor(1) as writer:
            pending: Future | None = None
            for number in range(self.parts):
                table = split.spill.read(number)
                if table is None:
                    continue
                part = self._part(split, table, members, number)
                problem = self._checked(split, part)
                good = np.flatnonzero(problem == 0)
                _count(split, part, good, files.edges[-1])
                if split.name != TRAIN:
                    held_out.append(part.members(good))
                tables = _by_bucket(part, good, files.edges if split.name == TRAIN else None)
                # One part is written while the next is put in order.
                if pending:
                    pending.result()
                pending = writer.submit(files.write, split.name, tables)
            if pending:
                pending.result()
        self.held_out.add(split.name, held_out)
        self._count_unread(split)

    def _part(self, split: _Split, table: pa.Table, members: RowSpill, number: int) -> _Part:
        """The rows of a part in order, with offset and size of their members."""
        in_order = sort_rows(table, self.tars.paths, self.seed_key)
        order = in_order.order
        if split.manifest.has_offsets:
            offsets = table.column("offset").to_numpy()[order]
            sizes = table.column("size").to_numpy()[order]
            return _Part(table.drop_columns(["offset", "size"]), in_order, offsets, sizes)
        tars = table.column("tar").to_numpy()[order]
        return _Part(table, in_order, *find_members(members.read(number), in_order.keys, tars))

    def _checked(self, split: _Split, part: _Part) -> np.ndarray:
        """The problem of each place, 0 for none. Twins, leaks, and what is in no tar, become
        rejects."""
        in_order = part.in_order
        problem = np.zeros(len(in_order.order), np.uint8)
        problem[in_order.twins] = mc.CODE["duplicate_row"]
        problem[in_order.contradicting] = mc.CODE["contradicting_row"]
        mc.note(problem, part.offsets == -2, "not_in_tar")
        mc.note(problem, part.offsets < 0, "not_a_file")
        mc.note(problem, part.sizes == 0, "empty_member")
        details = self._note_leaks(split, part, problem)

        rejected = np.flatnonzero(problem)
        if len(rejected):
            texts = pa.array([details.get(place, "") for place in rejected.tolist()])
            rows = part.rows(rejected).append_column("detail", texts)
            assert split.rejects is not None  # since the second pass has begun
            split.ledger.rejected.update(split.rejects.add(rows, problem[rejected]))
        return problem

    def _note_leaks(self, split: _Split, part: _Part, problem: np.ndarray) -> dict[int, str]:
        """Note, or count, what is also in a held-out split; what to say of each noted place."""
        good = np.flatnonzero(problem == 0)
        members = part.members(good)
        details: dict[int, str] = {}
        for leak in self.held_out.leaks(members):
            reason = leakage.reason(leak.held_out)
            if self.choices.on_leak == leakage.KEEP:
                split.ledger.warnings[reason] += 1
                continue
            place = int(good[leak.row])
            problem[place] = mc.CODE[reason]
            details[place] = leak.detail
            tar = self.tars.paths[members.tars[leak.row]]
            self.first_leak = self.first_leak or f"{members.names[leak.row]} in {tar}"
        self._count_unread(split)
        return details

    def _count_unread(self, split: _Split) -> None:
        """Count the members that could not be compared."""
        if more := self.held_out.unread():
            split.ledger.warnings["not_compared"] += more


def _by_bucket(part: _Part, good: np.ndarray, edges: tuple[float, ...] | None) -> list[pa.Table]:
    """The rows at the places `good`, one table per bucket of `edges`, or one of all."""
    places = [good]
    if edges is not None:
        bucket = bucket_of(part.column("duration_s")[good], edges)
        places = [good[bucket == number] for number in range(len(edges) - 1)]
    # A take per bucket, not slices of one: one that waits for its row group must not hold others'
    # rows.
    tables = []
    for chosen in places:
        rows = part.rows(chosen)
        rows = rows.append_column("offset", pa.array(part.offsets[chosen]))
        rows = rows.append_column("size", pa.array(part.sizes[chosen]))
        tables.append(rows)
    return tables


def _count(
    split: _Split,
    part: _Part,
    good: np.ndarray,
    last_edge: float,
) -> None:
    """Count the rows that are written."""
    split.ledger.rows_out += len(good)
    # over_max keeps them; if these are many, durations are in another unit.
    if longer := int((part.column("duration_s")[good] > last_edge).sum()):
        split.ledger.warnings["longer_than_last_edge"] += longer


def _check_rows(splits: list[_Split], output_dir: Path) -> None:
    """Raise MillraceError if no row of train is left, or all rows of dev are in test."""
    for split in splits:
        ledger = split.ledger
        is_needed = split.name == TRAIN or leakage.reasons(ledger)
        if is_needed and not ledger.rows_out:
            where = split.manifest.files[0]
            problem = f"no {split.name} row is left of {ledger.rows_in}"
            remedy = split.manifest.remedy_without_rows
            if ledger.rows_in:
                where = output_dir / "rejects.jsonl"
                problem += f": {ledger.reasons()}"
                remedy = "The file lists every rejected row with its reason"
            raise MillraceError(problem, str(where), remedy)
