"""What the partitions were last built from, and how the sources differ from that, in the user's
words.

A partition file is copied to `built/` when the jobs' outputs are up to date, and to
`built/<stage>/` when those of the first jobs are: so the comparison is with what was built,
whatever dry runs have seen since.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl

# More changes than this are listed in a file.
NAMED = 5


@dataclass(frozen=True)
class Items:
    """What a lane's partition files hold: `of` gives the items of a content by name, `kinds` what
    differs between two states of one ("text", "audio"), `outputs` what the jobs write, in that
    order, {} for the id.

    `stages` are the first of the outputs, by the name of the targets that end there
    (`<lane>_<stage>`); `merged`, for the items of a stage, what its merge reads of a group and then
    writes, {} for the group. Of files without a `noun` nothing is said: only their times are kept.
    """

    noun: str
    of: Callable[[Mapping], Mapping[str, Any]]
    kinds: Callable[[Any, Any], Sequence[str]]
    outputs: Sequence[str]
    group: Callable[[str], str] = lambda name: "tars"  # of a partition, by its id
    shown: Callable[[str], str] = os.path.basename  # an item's name in a line
    noun_of: Callable[[str], str] | None = (
        None  # of an item by its name, if there are several kinds
    )
    stages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    merged: Sequence[str] = ()
    stage: str = ""

    def until(self, stage: str) -> Items:
        """As the targets of a stage know them; itself for those that make everything."""
        if stage not in self.stages:
            return self
        return replace(self, outputs=self.stages[stage], stages={}, stage=stage)

    def copies(self, folder: Path) -> Path:
        """Where the partition files of `folder` lie as they were last built, until this stage."""
        return folder / "built" / self.stage

    def is_current(self, path: Path) -> bool:
        """Whether the outputs of a partition file are all there, none older than what it was made
        from."""
        return _in_order([str(path), *(output.format(path.stem) for output in self.outputs)])

    def is_merged(self, group: str) -> bool:
        """Whether the merge of this stage knows the group as it is now."""
        return bool(self.stage and self.merged) and _in_order(
            [path.format(group) for path in self.merged]
        )

    def has_output(self, name: str) -> bool:
        """Whether anything is left that the jobs of a partition wrote."""
        return any(os.path.exists(output.format(name)) for output in self.outputs)


def unsaid(outputs: Sequence[str], stages: Mapping[str, Sequence[str]] | None = None) -> Items:
    """Files of which nothing is said, as only merges read them."""
    return Items("", lambda content: {}, lambda old, new: [], outputs, stages=stages or {})


def keep(folder: Path, items: Items) -> set[str]:
    """Copy the partition files of `folder` that are built as they are; return all ids, old ones
    too."""
    for each in (items, *map(items.until, items.stages)):
        copies = each.copies(folder)
        copies.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.json"):
            copy = copies / path.name
            if not _equal(path, copy) and each.is_current(path):
                shutil.copy2(path, copy)
    return {path.stem for place in (folder, folder / "built") for path in place.glob("*.json")}


def restore_times(folder: Path, items: Items) -> None:
    """Give partition files that say again what all that is there was built from the time that they
    had then.

    So an edit that was undone makes nothing pending, however large the file is, and whatever has
    been written in between by dry runs.
    """
    stages = [items, *map(items.until, items.stages)]
    for path in folder.glob("*.json"):
        if _mtime(path) in [_mtime(each.copies(folder) / path.name) for each in stages]:
            continue
        made = [each for each in stages if os.path.exists(each.outputs[-1].format(path.stem))]
        copies = [each.copies(folder) / path.name for each in made]
        if copies and all(_equal(path, copy) for copy in copies):
            built = min(map(_mtime, copies))
            if built < _mtime(path):
                os.utime(path, ns=(built, built))


class Changes(NamedTuple):
    """How partition files differ from what was built."""

    phrases: list[str]  # for the user
    lines: list[str]  # one for each difference
    pending: int  # partitions that differ


class _States(NamedTuple):
    """Items of partitions that differ from what was built, then and now, without those that are
    equal; how many items have vanished with each group."""

    before: dict[str, Any]
    after: dict[str, Any]
    vanished: Counter[str]


class _Edits(NamedTuple):
    """What has happened to items."""

    changed: dict[str, str]  # what differs, by name
    new: list[str]
    gone: list[str]


def compare(
    folder: Path, names: Collection[str], total: int, items: Items, left_out: Collection[str]
) -> Changes:
    """How the partition files `names` in `folder`, of `total` items, differ from what was built.

    Groups in `left_out` are not chosen, but not gone; those that have gone end with the last stage.
    """
    copies = items.copies(folder)
    copied = {path.stem for path in copies.glob("*.json")}
    pending = [
        name for name in names if not _equal(folder / f"{name}.json", copies / f"{name}.json")
    ]
    if not copied:
        return _first(names, total, items, len(pending))

    states = _States({}, {}, Counter())
    groups = {items.group(name) for name in names}
    for name in sorted(copied - set(names)):
        _add_former(states, copies / f"{name}.json", items, groups, left_out)
    for name in pending:
        before = items.of(jsonl.read(copies / f"{name}.json")) if name in copied else {}
        _add_differing(states, before, items.of(jsonl.read(folder / f"{name}.json")))

    edits = _edits(states.before, states.after, items)
    lines = [f"changed\t{name}\t{kinds}" for name, kinds in edits.changed.items()]
    lines += [f"new\t{name}" for name in edits.new]
    lines += [f"gone\t{name}" for name in edits.gone]
    phrases = [
        f"{group}: {_count(number, items.noun)} gone" for group, number in states.vanished.items()
    ]
    phrases += _phrases(edits, items, are_named=len(lines) <= NAMED)
    return Changes(phrases, lines, len(pending))


def _first(names: Collection[str], total: int, items: Items, pending: int) -> Changes:
    """All is new, if this is no build of an earlier version, which took no copies."""
    if not total or any(os.path.exists(items.outputs[-1].format(name)) for name in names):
        return Changes([], [], 0)
    return Changes([f"{_count(total, items.noun)} new"], [], pending)


def _add_differing(states: _States, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Add the items of a partition that differ; equal ones are most of them, and take the most
    memory."""
    same = {item for item in before if before[item] == after.get(item)}
    states.before.update((item, before[item]) for item in before if item not in same)
    states.after.update((item, after[item]) for item in after if item not in same)


def _add_former(
    states: _States, copy: Path, items: Items, groups: Collection[str], left_out: Collection[str]
) -> None:
    """Add the items of a partition that is no more to the states; `groups` are those of today."""
    group = items.group(copy.stem)
    if not items.has_output(copy.stem) or items.is_merged(group):
        copy.unlink()  # The merge has deleted them, or no longer reads them.
    elif group in groups:
        states.before.update(items.of(jsonl.read(copy)))
    elif group not in left_out and not items.stage:
        states.vanished[group] += len(items.of(jsonl.read(copy)))


def _edits(before: Mapping[str, Any], after: Mapping[str, Any], items: Items) -> _Edits:
    """What leads from one state of items to another."""
    changed = {
        name: " and ".join(items.kinds(before[name], after[name]) or ["content"])
        for name in after
        if name in before and before[name] != after[name]
    }
    new = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    return _Edits(changed, new, gone)


def _phrases(edits: _Edits, items: Items, are_named: bool) -> list[str]:
    """A phrase for each kind of item: how many have changed, are new, and are gone."""
    by_noun: dict[str, _Edits] = {}

    def of_noun(name: str) -> _Edits:
        noun = items.noun_of(name) if items.noun_of else items.noun
        return by_noun.setdefault(noun, _Edits({}, [], []))

    for name, kinds in edits.changed.items():
        of_noun(name).changed[name] = f"{items.shown(name)}: {kinds}"
    for name in edits.new:
        of_noun(name).new.append(name)
    for name in edits.gone:
        of_noun(name).gone.append(name)

    phrases = []
    for noun, (changed, new, gone) in by_noun.items():
        counts = {
            f"{_count(len(changed), noun)} changed": changed.values(),
            f"{len(new)} new": new,
            f"{len(gone)} gone": gone,
        }
        parts = [
            f"{count} ({', '.join(names)})" if names and are_named else count
            for count, names in counts.items()
        ]
        phrases.append(", ".join(parts))
    return phrases


def _mtime(path: str | os.PathLike) -> int:
    """In nanoseconds; 0 if there is no such file."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _in_order(paths: Sequence[str]) -> bool:
    """Whether all of these files are there, none older than those before it."""
    times = [_mtime(path) for path in paths]
    return 0 not in times and times == sorted(times)


def _equal(path: Path, copy: Path) -> bool:
    with contextlib.suppress(OSError):
        one, two = os.stat(path), os.stat(copy)
        same_time = one.st_mtime_ns == two.st_mtime_ns
        return one.st_size == two.st_size and (same_time or path.read_bytes() == copy.read_bytes())
    return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
