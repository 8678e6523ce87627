"""What the partitions were last built from, and how the sources differ from that, in the user's
words; an edit that was undone makes nothing pending.

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

from millrace.common import atomic, jsonl
from millrace.common.errors import counted

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
    # The noun of an item by its name, if there are several kinds.
    noun_of: Callable[[str], str] | None = None
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
        outputs = [output.format(path.stem) for output in self.outputs]
        return _in_order([str(path), *outputs])

    def is_merged(self, group: str) -> bool:
        """Whether the merge of this stage knows the group as it is now."""
        if not self.stage or not self.merged:
            return False
        return _in_order([path.format(group) for path in self.merged])

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
        atomic.sweep_folder(copies)
        for path in folder.glob("*.json"):
            copy = copies / path.name
            if not _equal(path, copy) and each.is_current(path):
                # A copy that was cut would end each later parse.
                partial = atomic.partial_of(copy)
                shutil.copy2(path, partial)
                os.replace(partial, copy)
    paths = [*folder.glob("*.json"), *(folder / "built").glob("*.json")]
    return {path.stem for path in paths}


def restore_times(folder: Path, items: Items) -> None:
    """Give partition files that say again what all that is there was built from the time that they
    had then.

    So an edit that was undone makes nothing pending, however large the file is, and whatever has
    been written in between by dry runs.
    """
    stages = [items, *map(items.until, items.stages)]
    for path in folder.glob("*.json"):
        times = [_mtime(each.copies(folder) / path.name) for each in stages]
        if _mtime(path) in times:
            continue
        copies = []
        for each in stages:
            if os.path.exists(each.outputs[-1].format(path.stem)):
                copies.append(each.copies(folder) / path.name)
        if copies and all(_equal(path, copy) for copy in copies):
            built = min(map(_mtime, copies))
            if built < _mtime(path):
                os.utime(path, ns=(built, built))


class Changes(NamedTuple):
    """How partition files differ from what was built."""

    phrases: list[str]  # for the user
    lines: list[str]  # one for each difference
    pending: int  # partitions that differ


class _Edit(NamedTuple):
    """What has happened to an item: "changed", "new" or "gone"."""

    kind: str
    name: str
    what: str = ""  # that has changed

    def line(self) -> str:
        """The line of the file that lists all of them."""
        return "\t".join(filter(None, self))


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

    # Items may have moved from partitions that are no more to those that are pending.
    moved: dict[str, Any] = {}
    vanished: Counter[str] = Counter()
    groups = {items.group(name) for name in names}
    for name in sorted(copied - set(names)):
        copy = copies / f"{name}.json"
        group = items.group(name)
        if not items.has_output(name) or items.is_merged(group):
            copy.unlink()  # The merge has deleted them, or no longer reads them.
            continue
        former = items.of(jsonl.read(copy))
        if group in groups:
            moved.update(former)
        elif group not in left_out and not items.stage:
            vanished[group] += len(former)

    before, after = _differing(folder, copies, pending, items)
    edits = _edits(moved | before, after, items)
    phrases = [f"{group}: {counted(number, items.noun)} gone" for group, number in vanished.items()]
    phrases += _phrases(edits, items)
    return Changes(phrases, [edit.line() for edit in edits], len(pending))


def _first(names: Collection[str], total: int, items: Items, pending: int) -> Changes:
    """All is new, if this is no build of an earlier version, which took no copies."""
    if not total or any(os.path.exists(items.outputs[-1].format(name)) for name in names):
        return Changes([], [], 0)
    return Changes([f"{counted(total, items.noun)} new"], [], pending)


def _differing(
    folder: Path, copies: Path, names: Collection[str], items: Items
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The items of partitions as they were built and as they are, without those that are equal,
    which are most of them and would take the most memory."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for name in names:
        copy = copies / f"{name}.json"
        old: Mapping[str, Any] = {}
        if copy.exists():
            old = items.of(jsonl.read(copy))
        new = items.of(jsonl.read(folder / copy.name))
        equal = {item for item in old if item in new and old[item] == new[item]}
        before.update((item, old[item]) for item in old if item not in equal)
        after.update((item, new[item]) for item in new if item not in equal)
    return before, after


def _edits(before: Mapping[str, Any], after: Mapping[str, Any], items: Items) -> list[_Edit]:
    """What leads from one state of items to another."""
    edits = []
    for name in after:
        if name in before and before[name] != after[name]:
            kinds = items.kinds(before[name], after[name]) or ["content"]
            edits.append(_Edit("changed", name, " and ".join(kinds)))
    edits += [_Edit("new", name) for name in after if name not in before]
    edits += [_Edit("gone", name) for name in before if name not in after]
    return edits


def _phrases(edits: Sequence[_Edit], items: Items) -> list[str]:
    """A phrase for each kind of item: how many have changed, are new, and are gone; few are
    named."""
    by_noun: dict[str, dict[str, list[str]]] = {}
    for edit in edits:
        noun = items.noun_of(edit.name) if items.noun_of else items.noun
        shown = by_noun.setdefault(noun, {"changed": [], "new": [], "gone": []})
        name = f"{items.shown(edit.name)}: {edit.what}" if edit.what else edit.name
        shown[edit.kind].append(name)

    phrases = []
    for noun, shown in by_noun.items():
        parts = []
        for kind, names in shown.items():
            if kind == "changed":
                count = counted(len(names), noun)
            else:
                count = str(len(names))
            listed = f" ({', '.join(names)})" if names and len(edits) <= NAMED else ""
            parts.append(f"{count} {kind}{listed}")
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
        one = os.stat(path)
        two = os.stat(copy)
        if one.st_size != two.st_size:
            return False
        if one.st_mtime_ns == two.st_mtime_ns:
            return True
        return path.read_bytes() == copy.read_bytes()
    return False
