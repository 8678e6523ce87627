"""Kinds of manifest by the endings of files; which files in a folder are train, dev and test, also
NeMo's, and whether numbered pieces are complete."""

from __future__ import annotations

import importlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common.errors import MillraceError

SPLITS = ("train", "dev", "test")
# NeMo's folder of manifests, one a tar; the tars lie beside it.
SHARDED = "sharded_manifests"


class Kind(NamedTuple):
    """A kind of manifest: the module of this room with its class `Reader`, and how its files are
    named.

    `weak_suffixes` count only with a plain name, as any text may be called .json. A file called
    `whole` holds all splits.
    """

    module: str
    suffixes: tuple[str, ...] = ()
    weak_suffixes: tuple[str, ...] = ()
    whole: str = ""

    def reader(self) -> type[Any]:
        """The subclass of `manifest.Manifest`; imported late, as pyarrow is too heavy for the
        parse."""
        return importlib.import_module(f"millrace.asr.manifests.{self.module}").Reader


# A new kind of manifest is a module with a `Reader`, and one line here.
KINDS = {
    "parquet": Kind("parquet", (".parquet",)),
    "JSONL": Kind("jsonl", (".jsonl",), (".json", ".ndjson")),
    "the speech lane's index": Kind("speech_index", whole="index.parquet"),
}
# The weak ones count if a split has no file with one of the others.
SUFFIXES = (
    tuple(suffix for kind in KINDS.values() for suffix in kind.suffixes),
    tuple(suffix for kind in KINDS.values() for suffix in kind.weak_suffixes),
)

_NEMO_WHOLE = re.compile(r"tarred_audio_manifest(_version_\d+)?\.json")
_NEMO_SHARD = re.compile(r"manifest_(\d+)\.json")
_NEMO_BUCKET = re.compile(r"bucket_?\d+")
_PIECE = re.compile(rf"({'|'.join(SPLITS)})[-_.](.+)")
# What dev and test are called elsewhere begins so.
_HELD_OUT = ("dev", "val", "eval", "test")
# As the Hub names pieces; its older names end in a hash.
_OF = re.compile(r"(.*?)-?(\d+)-of-(\d+)(?:-[0-9a-f]+)?")


def kind_of(paths: Iterable[str | os.PathLike], split: str, where: str) -> str:
    """The one kind of the files of a split; a file with an unknown suffix is taken for parquet."""
    kinds = {_kind(os.fspath(path)) for path in paths}
    if len(kinds) > 1:
        mixed = " and ".join(kind for kind in KINDS if kind in kinds)
        problem = f"{mixed} are mixed in {split}"
        raise MillraceError(problem, where, "Give one kind of manifest per split")
    return kinds.pop()


def _kind(name: str) -> str:
    for kind, facts in KINDS.items():
        if name.endswith(facts.suffixes + facts.weak_suffixes):
            return kind
    return "parquet"


def find(folder: str | os.PathLike) -> dict[str, list[str]]:
    """The files of train, dev and test in a folder, in the order of their names; a split may be in
    pieces.

    These are train.parquet; or train-00000-of-00008.parquet, train_*.parquet; or all files in a
    folder train/ (or train.parquet/), or what NeMo has written there. Raises MillraceError if a
    split occurs twice, in two formats, or with pieces missing.
    """
    splits: dict[str, list[str]] = {}
    for split in SPLITS:
        ways = _ways(folder, split, is_weak=False) or _ways(folder, split, is_weak=True)
        if ways:
            names = _one_of(ways, split, str(folder))
            splits[split] = [str(Path(folder) / name) for name in names]
    return splits


def held_out_unread(folder: str | os.PathLike, found: dict[str, list[str]]) -> list[str]:
    """Names in a folder that sound like dev or test and are read for no split, as valid.parquet; of
    no tars, which may lie beside manifests."""
    return [name for name in _unread(folder, found, _HELD_OUT) if not name.endswith(".tar")]


def train_unread(folder: str | os.PathLike, found: dict[str, list[str]]) -> list[str]:
    """Manifests in a folder that sound like pieces of train and are read for no split, as
    train2.jsonl."""
    return [name for name in _unread(folder, found, ("train",)) if name.endswith(SUFFIXES[0])]


def _unread(
    folder: str | os.PathLike, found: dict[str, list[str]], beginnings: tuple[str, ...]
) -> list[str]:
    read = {Path(path) for paths in found.values() for path in paths}
    read |= {parent for path in read for parent in path.parents}
    names = [name for name in _names(folder) if name.lower().startswith(beginnings)]
    return [name for name in names if Path(folder, name) not in read]


def _ways(folder: str | os.PathLike, split: str, is_weak: bool) -> list[list[str]]:
    """Ways to give a split in files of the strong suffixes, or of the weak ones: one plain file,
    pieces beside each other, or all files of a folder."""
    names = _names(folder)
    suffixes = SUFFIXES[is_weak]
    whole = {split + suffix for suffix in suffixes}
    plain = [name for name in names if name in whole and not Path(folder, name).is_dir()]

    # With a plain file or a weak suffix only names with a number are pieces.
    needs_number = is_weak or bool(plain)
    piece = re.compile(rf"{split}[-_.].*\d.*" if needs_number else rf"{split}[-_.].+")
    pieces = [name for name in names if piece.fullmatch(_stem(name, suffixes))]

    folders = [name for name in names if name in {split, *whole}]
    inside = [_inside(folder, name, split, is_weak) for name in folders]
    ways = [*([name] for name in plain), pieces, *inside]
    return [way for way in ways if way]


def _inside(
    folder: str | os.PathLike,
    name: str,
    split: str,
    is_weak: bool,
) -> list[str]:
    """The manifests in a split's folder, or what NeMo has written there."""
    place = os.path.join(folder, name)
    files = _nemo(place) if is_weak else []
    if not files:
        files = [inner for inner in _names(place) if _stem(inner, SUFFIXES[is_weak])]
        if is_weak:
            files = [inner for inner in files if inner.startswith(("manifest", split))]
    return [f"{name}/{inner}" for inner in files]


def _nemo(folder: str) -> list[str]:
    """The manifests of NeMo's tarred datasets: one of all tars, in its latest version, or one a
    tar; in buckets too."""
    names = _names(folder)
    whole = [name for name in names if _NEMO_WHOLE.fullmatch(name)]
    if whole:
        return [max(whole, key=lambda name: (len(name), name))]
    if SHARDED in names:
        inner = _names(os.path.join(folder, SHARDED))
        return [f"{SHARDED}/{name}" for name in inner if _NEMO_SHARD.fullmatch(name)]

    found = []
    for bucket in names:
        if _NEMO_BUCKET.fullmatch(bucket):
            inner = _nemo(os.path.join(folder, bucket))
            found += [f"{bucket}/{name}" for name in inner]
    return found


class MissingShards(NamedTuple):
    """What is missing between the numbers of NeMo's manifests in a folder; behind the last one it
    cannot be known."""

    first: Path  # of the manifests that are missing
    manifests: int


def missing_shards(paths: Iterable[str]) -> list[MissingShards]:
    """What is missing in each folder `sharded_manifests` that has gaps."""
    shards: dict[Path, set[int]] = defaultdict(set)
    for path in map(Path, paths):
        shard = _NEMO_SHARD.fullmatch(path.name)
        if shard and path.parent.name == SHARDED:
            shards[path.parent].add(int(shard[1]))

    missing = []
    for folder, numbers in shards.items():
        count = max(numbers) + 1 - min(numbers) - len(numbers)
        if count:
            first = min(number + 1 for number in numbers if number + 1 not in numbers)
            missing.append(MissingShards(folder / f"manifest_{first}.json", count))
    return missing


def split_of(path: Path) -> str:
    """The split that a manifest's name says, else its folder's name; "" if neither says one."""
    if path.stem in SPLITS:
        return path.stem
    piece = _PIECE.fullmatch(path.stem)
    if piece:
        return piece[1]
    folder = path.parent.name.partition(".")[0]
    return folder if folder in SPLITS else ""


def shard_number(path: Path) -> int | None:
    """The number in a manifest's name: 3 of manifest_3.json and of train-00003-of-00008.jsonl."""
    stem = path.name.split(".")[0]
    of = _OF.fullmatch(stem)
    if of:
        digits = of[2]
    else:
        digits = re.findall(r"\d*$", stem)[0]
    return int(digits) if digits else None


def _names(folder: str | os.PathLike) -> list[str]:
    names = []
    if os.path.isdir(folder):
        names = os.listdir(folder)
    return sorted(name for name in names if not name.startswith((".", "_")))


def _stem(name: str, suffixes: Iterable[str]) -> str:
    """`name` without its suffix; "" if it has none of `suffixes`."""
    for suffix in suffixes:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return ""


def _one_of(ways: list[list[str]], split: str, where: str) -> list[str]:
    """The only one of several ways to give a split, with all its pieces."""
    if len(ways) > 1:
        shown = []
        for way in ways:
            count = f" (of {len(way)} files)" if len(way) > 1 else ""
            shown.append(way[0] + count)
        problem = f"there are two manifests of {split}: {' and '.join(shown)}"
        raise MillraceError(problem, where, "Keep one of them")
    (names,) = ways
    kind_of(names, split, where)  # raises if they are mixed
    for name in names:
        words = set(re.split(r"[-_.]", name))
        if "/" not in name and words & set(SPLITS) - {split}:
            remedy = "Rename it, or put it into another folder"
            raise MillraceError(f"{name} names two splits", where, remedy)

    _check_pieces(names, where)
    return names


def _check_pieces(names: list[str], where: str) -> None:
    """Pieces that say how many they are must be complete, and of one set."""
    sets: dict[str, list[re.Match]] = defaultdict(list)
    for name in names:
        of = _OF.fullmatch(_stem(name, SUFFIXES[0] + SUFFIXES[1]))
        if of:
            sets[of[1]].append(of)
    for start, pieces in sets.items():
        problem = _problem_of_pieces(start, pieces)
        if problem:
            remedy = "Bring what is missing and remove what is left over, or rename without -of-"
            raise MillraceError(problem, where, remedy)


def _problem_of_pieces(start: str, pieces: list[re.Match]) -> str:
    """What is wrong with the pieces that begin with `start`, as `_OF` matches them."""
    numbers = {int(of[2]) for of in pieces}
    totals = {int(of[3]) for of in pieces}
    if len(numbers) < len(pieces) or len(totals) > 1:
        examples = f"{pieces[0][0]} and {pieces[-1][0]}"
        return f"{start}-… are pieces of several sets, such as {examples}"
    total = totals.pop()
    counts_from_one = 0 not in numbers and total in numbers
    expected = range(counts_from_one, total + counts_from_one)
    missing = [number for number in expected if number not in numbers]
    if not missing and len(numbers) == total:
        return ""
    number = missing[0] if missing else total
    return f"{len(numbers)} of {total} pieces of {start} are there: number {number} is not"
