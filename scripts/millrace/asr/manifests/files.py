"""Which files in a folder are the manifests of train, dev and test; run while the workflow is parsed."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from millrace.common.errors import MillraceError

SPLITS = ("train", "dev", "test")
SUFFIXES = ((".parquet", ".jsonl"), (".json", ".ndjson"))  # the second where there is none of the first

_PIECE = re.compile(rf"({'|'.join(SPLITS)})[-_.](.+)")
_OF = re.compile(
    r"(.*?)-?(\d+)-of-(\d+)(?:-[0-9a-f]+)?"
)  # as the Hub writes them, formerly with a hash behind


def find(folder: str | os.PathLike) -> dict[str, list[str]]:
    """The files of train, dev and test in a folder, in the order of their names; a split may be in pieces.

    These are train.parquet; or train-00000-of-00008.parquet, train_*.parquet; or all files in a folder train/
    (or train.parquet/). Raises MillraceError where a split is there twice, in two formats, or with pieces
    missing.
    """
    found: dict[str, list[str]] = {}
    names = _names(folder) if os.fspath(folder) else []
    for split in SPLITS:
        for suffixes in SUFFIXES:
            # Any text may be called .json, so only what is plainly a manifest counts there.
            numbered = suffixes is not SUFFIXES[0]
            ways = [[name] for name in names if name in [split + suffix for suffix in suffixes]]
            ways = [[name] for [name] in ways if not os.path.isdir(os.path.join(folder, name))]
            pieces = [name for name in names if _is_piece(name, split, suffixes, numbered or bool(ways))]
            ways += [pieces] if pieces else []
            ways += filter(None, (_in_folder(folder, name, split, suffixes, numbered) for name in names))
            if ways:
                found[split] = [str(Path(folder) / name) for name in _one_of(ways, split, folder)]
                break
    return found


def split_of(path: Path) -> str:
    """The split that a manifest's name says, or else its folder's; "" where neither says one."""
    piece = _PIECE.fullmatch(path.stem)
    named = path.stem if path.stem in SPLITS else piece[1] if piece else path.parent.name.partition(".")[0]
    return named if named in SPLITS else ""


def shard_number(path: Path) -> int | None:
    """The number in the name of one of many manifests: 3 of manifest_3.json and of
    train-00003-of-00008.jsonl."""
    stem = path.name.split(".")[0]
    of = _OF.fullmatch(stem)
    digits = of[2] if of else re.search(r"\d*$", stem)[0]
    return int(digits) if digits else None


def _names(folder: str | os.PathLike) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith((".", "_")))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_piece(name: str, split: str, suffixes: tuple[str, ...], numbered: bool) -> bool:
    stem, suffix = os.path.splitext(name)
    piece = _PIECE.fullmatch(stem)
    return bool(
        piece and piece[1] == split and suffix in suffixes and (not numbered or re.search(r"\d", piece[2]))
    )


def _in_folder(
    folder: str | os.PathLike, name: str, split: str, suffixes: tuple[str, ...], strict: bool
) -> list[str]:
    if name not in (split, *(split + suffix for suffix in suffixes)):
        return []
    inside = [inner for inner in _names(os.path.join(folder, name)) if os.path.splitext(inner)[1] in suffixes]
    return [f"{name}/{inner}" for inner in inside if not strict or inner.startswith(("manifest", split))]


def _one_of(ways: list[list[str]], split: str, folder: str | os.PathLike) -> list[str]:
    """The only one of several ways to give a split, with all its pieces."""
    if len(ways) > 1:
        shown = " and ".join(way[0] + (f" (of {len(way)} files)" if len(way) > 1 else "") for way in ways)
        problem, remedy = f"there are two manifests of {split}: {shown}", "Keep one of them"
    elif len({name.endswith(".parquet") for name in ways[0]}) > 1:
        problem, remedy = f"parquet and JSONL are mixed in {split}", "Give one kind of manifest per split"
    elif both := [name for name in ways[0] if "/" not in name and _other_splits(name, split)]:
        problem, remedy = f"{both[0]} names two splits", "Rename it, or put it into another folder"
    elif wrong := _incomplete(ways[0]):
        problem, remedy = wrong, "Bring what is missing and remove what is left over, or rename without -of-"
    else:
        return ways[0]
    raise MillraceError(problem, where=os.fspath(folder), remedy=remedy)


def _other_splits(name: str, split: str) -> set[str]:
    return set(re.split(r"[-_.]", name)) & set(SPLITS) - {split}


def _incomplete(names: Iterable[str]) -> str:
    """What is wrong with pieces that say how many they are: some missing, or of two sets; "" where nothing
    is."""
    sets: dict[str, list[re.Match]] = defaultdict(list)
    for name in names:
        if of := _OF.fullmatch(os.path.splitext(name)[0]):
            sets[of[1]].append(of)
    for start, found in sets.items():
        totals = {int(of[3]) for of in found}
        counts = Counter(int(of[2]) for of in found)
        if len(totals) > 1 or max(counts.values()) > 1:
            return f"{start}-… are pieces of several sets, such as {found[0][0]} and {found[-1][0]}"
        (total,) = totals
        first = 0 if 0 in counts or total not in counts else 1
        if len(counts) != total or set(counts) != set(range(first, first + total)):
            missing = next((n for n in range(first, first + total) if n not in counts), total)
            return f"{len(counts)} of {total} pieces of {start} are there: number {missing} is not"
    return ""
