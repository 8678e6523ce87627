"""What the partitions were last built from, and how the sources differ from that, in the user's words.

A partition file is copied to `built/` when the outputs of its jobs are up to date: so the comparison is with
what was built, whatever dry runs have seen since.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.common import jsonl

# More changes than this are listed in a file.
NAMED = 5


@dataclass(frozen=True)
class Items:
    """What a lane's partition files hold: `of` gives the items of a content by name, `kinds` what differs
    between two states of one ("text", "audio"), `outputs` what the jobs write, in that order, {} for the id.
    """

    noun: str
    of: Callable[[Mapping], Mapping[str, Any]]
    kinds: Callable[[Any, Any], Sequence[str]]
    outputs: Sequence[str]
    group: Callable[[str], str] = lambda name: "tars"  # of a partition, by its id
    shown: Callable[[str], str] = os.path.basename  # an item's name in a line
    noun_of: Callable[[str], str] | None = None  # of an item by its name, if there are several kinds

    def is_current(self, path: Path) -> bool:
        """Whether the outputs of a partition file are all there, none older than what it was made from."""
        with contextlib.suppress(OSError):
            times = [os.stat(name.format(path.stem)).st_mtime_ns for name in (str(path), *self.outputs)]
            return times == sorted(times)
        return False

    def has_output(self, name: str) -> bool:
        """Whether anything is left that the jobs of a partition wrote."""
        return any(os.path.exists(output.format(name)) for output in self.outputs)


def keep(folder: Path, items: Items) -> set[str]:
    """Copy the partition files of `folder` that are built as they are; return all ids, old ones too."""
    (folder / "built").mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json"):
        copy = folder / "built" / path.name
        if not _equal(path, copy) and items.is_current(path):
            shutil.copy2(path, copy)
    return {path.stem for place in (folder, folder / "built") for path in place.glob("*.json")}


def compare(
    folder: Path, names: Collection[str], total: int, items: Items, left_out: Collection[str]
) -> tuple[list[str], list[str], int]:
    """How the partition files `names` in `folder`, of `total` items, differ from what was built: phrases for
    the user, a line for each difference, how many partitions differ. Groups in `left_out` are not chosen, but
    not gone.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    vanished: Counter = Counter()
    copies = {path.stem: path for path in (folder / "built").glob("*.json")}
    pairs = {name: (folder / f"{name}.json", folder / f"built/{name}.json") for name in names}
    pending = [name for name, pair in pairs.items() if not _equal(*pair)]
    if not copies:  # A first build, if it is not that of an earlier version, which took no copies.
        first = total and not any(os.path.exists(items.outputs[-1].format(name)) for name in names)
        return ([f"{_count(total, items.noun)} new"], [], len(pending)) if first else ([], [], 0)
    groups = {items.group(name) for name in names}
    for name in sorted(copies.keys() - pairs.keys()):
        if not items.has_output(name):
            copies[name].unlink()  # The merge has deleted them.
        elif (group := items.group(name)) in groups:
            before |= items.of(jsonl.read(copies[name]))
        elif group not in left_out:
            vanished[group] += len(items.of(jsonl.read(copies[name])))
    for name in pending:
        one = items.of(jsonl.read(copies[name])) if name in copies else {}
        two = items.of(jsonl.read(pairs[name][0]))
        # Equal ones are most of them, and take the most memory.
        same = {item for item in one if one[item] == two.get(item)}
        before |= {item: one[item] for item in one if item not in same}
        after |= {item: two[item] for item in two if item not in same}

    new, gone = ([name for name in one if name not in two] for one, two in ((after, before), (before, after)))
    both = [name for name in after if name in before and before[name] != after[name]]
    changed = {name: " and ".join(items.kinds(before[name], after[name]) or ["content"]) for name in both}
    lines = [f"changed\t{name}\t{kinds}" for name, kinds in changed.items()]
    lines += [f"new\t{name}" for name in new] + [f"gone\t{name}" for name in gone]
    phrases = [f"{group}: {_count(number, items.noun)} gone" for group, number in vanished.items()]
    nouns: dict[str, tuple[list[str], ...]] = {}
    for kind, each in enumerate((changed, new, gone)):
        for name in each:
            of_noun = nouns.setdefault(items.noun_of(name) if items.noun_of else items.noun, ([], [], []))
            of_noun[kind].append(f"{items.shown(name)}: {changed[name]}" if kind == 0 else name)
    for noun, parts in nouns.items():
        counts = f"{_count(len(parts[0]), noun)} changed", f"{len(parts[1])} new", f"{len(parts[2])} gone"
        shown = [f" ({', '.join(each)})" if each and len(lines) <= NAMED else "" for each in parts]
        phrases.append(", ".join(map("".join, zip(counts, shown, strict=True))))
    return phrases, lines, len(pending)


def _equal(path: Path, copy: Path) -> bool:
    with contextlib.suppress(OSError):
        one, two = os.stat(path), os.stat(copy)
        same_time = one.st_mtime_ns == two.st_mtime_ns
        return one.st_size == two.st_size and (same_time or path.read_bytes() == copy.read_bytes())
    return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
