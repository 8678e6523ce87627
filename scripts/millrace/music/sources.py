"""The music lane's sources: HDF5 files, folders of .mm files, and the records that point into them.

Imported by every parse, so nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from millrace.common import jsonl
from millrace.common.errors import counted
from millrace.common.workflow import partitions
from millrace.common.workflow.built import Items
from millrace.common.workflow.sources import Contents, SourcesMissing, Tables, misplaced
from millrace.music.features.metadata import Metadata, place_records, read_metadata
from millrace.music.features.roots import H5_ENDINGS, Root, split_files

# Keys whose effect is said otherwise, or that no job of the index reads.
QUIET_KEYS = {"h5_root", "mm_root", "jsonl", "splits"}
REMEDY = "run `snakemake music_fetch_demo` for the demo, or set music.h5_root or music.mm_root"
_VERSION = 4  # of the partition files
DEMO = Path("resources/music/demo")
_EXPECTED = {
    "h5": ("HDF5 files (*.h5)", "*.h5", "*.hdf5"),
    "mm": ("folders of two characters with *.mm", "??/*.mm", "cqt/??/*.mm"),
}


@dataclass
class Settings:
    """What of the lane's config decides on partitions."""

    h5_root: str
    mm_root: str
    jsonl: str
    splits: str | Mapping[str, str] = field(default_factory=dict)


class _Place(NamedTuple):
    """An HDF5 file or a folder of .mm files: a partition."""

    kind: str  # h5 or mm
    path: str  # below its root
    stat: partitions.Stat


class _Found(NamedTuple):
    """What the settings lead to."""

    settings: Settings
    roots: dict[str, Root]
    places: dict[str, _Place]  # by the partition's name
    splits: dict[str, str]  # the file of each split
    lists: dict[str, partitions.Stat]  # of the JSONL ("jsonl") and of the splits' files

    @property
    def listing(self) -> str:
        """What pointers of the JSONL are looked up in."""
        # An .mm that comes into a folder may be what a pointer led to.
        times = [place.stat.mtime_ns for place in self.places.values() if place.kind == "mm"]
        return jsonl.digest(
            [list(self.places), times, self.settings.h5_root, self.settings.mm_root]
        )


def collect(settings: Settings, folder: Path, table: Tables) -> Contents:
    """A partition is an HDF5 file or a folder of .mm files by its stat, with the records that point
    there; `merge` is what the merge of all reads: the partitions, what is wrong with the JSONL, the
    splits.

    Raises SourcesMissing for a place without features, MillraceError for a split that cannot be
    read.
    """
    if settings.h5_root == str(DEMO / "h5") and not DEMO.exists():
        raise SourcesMissing(f"no features at {DEMO}", pristine=True)
    roots = {}
    if settings.h5_root:
        roots["h5"] = Root(settings.h5_root)
    if settings.mm_root:
        roots["mm"] = Root(settings.mm_root)
    places = _places(roots)
    splits = _splits(settings)
    paths = {"jsonl": settings.jsonl, **splits} if settings.jsonl else splits
    found = _Found(settings, roots, places, splits, _stats(paths))

    # Of nothing: the names of partitions say it all.
    assignment = partitions.Assignment(folder / "index/assignment.jsonl", 1)
    stats = [*found.lists.values(), *(place.stat for place in places.values())]
    signatures = [stat.signature for stat in stats]
    results = folder.parent
    features = [f"{results}/features/{{}}.parquet"]
    contents = Contents(
        assignment,
        (),
        {"features": sorted(places)},
        state=jsonl.digest([_VERSION, asdict(settings), list(places), paths, signatures]),
        total=len(places),
        others={"merge": {"all": {}}},
        items={
            "": Items("file", _items, _kinds, features, shown=_shown, noun_of=_noun),
            "merge": Items("list", _lists, _kinds, [f"{results}/index/features.index"]),
        },
        then="the index",
    )
    contents.partitions = _partition_files(found, contents, folder, table)
    return contents


def _places(roots: Mapping[str, Root]) -> dict[str, _Place]:
    """All HDF5 files and folders of .mm files. Raises SourcesMissing for a root without any."""
    if not roots:
        raise SourcesMissing("neither music.h5_root nor music.mm_root is set")
    places = {}
    for kind, root in roots.items():
        paths = root.places(kind)
        if not paths:
            raise SourcesMissing(misplaced(f"music.{kind}_root", root.path, *_EXPECTED[kind]))
        for path in paths:
            places[f"{kind}-{quote(path, safe='')}"] = _Place(kind, path, _stat(root.path / path))
    return places


def _splits(settings: Settings) -> dict[str, str]:
    """The file of each split. Raises SourcesMissing if they are set and there is none."""
    if not settings.splits:
        return {}
    files = split_files(settings.splits)
    if not files:
        wanted = "train.json, valid.json, test.json"
        raise SourcesMissing(misplaced("music.splits", Path(str(settings.splits)), wanted))
    return files


def _stats(paths: Mapping[str, str]) -> dict[str, partitions.Stat]:
    """The stat of the JSONL and of the files of splits. Raises SourcesMissing."""
    for name, path in paths.items():
        if not Path(path).is_file():
            key = "music.jsonl" if name == "jsonl" else "music.splits"
            raise SourcesMissing(f"{key}: {path} does not exist")
    return {name: partitions.Stat.of(path) for name, path in paths.items()}


def _partition_files(
    found: _Found, contents: Contents, folder: Path, table: Tables
) -> Iterator[tuple[str, dict]]:
    """The partition files; completes `contents`. The JSONL is read if it or the list of files is
    new."""
    digests = table("lists", _VERSION)
    said, rows_of = _read_jsonl(found, folder, digests)
    contents.notes += said.get("notes", [])
    for name, (kind, path, stat) in found.places.items():
        yield (
            name,
            {
                "id": name,
                "kind": kind,
                "root": str(found.roots[kind].path),
                "path": path,
                "size": stat.size if kind == "h5" else 0,
                "mtime_ns": stat.mtime_ns,
                "records": rows_of(name),
            },
        )
    contents.others = {"merge": {"all": _merge(found, said, digests)}}


def _read_jsonl(
    found: _Found, folder: Path, digests: Any
) -> tuple[dict, Callable[[str], list[dict]]]:
    """What the parse and the merge need to know of the JSONL, {} without one; and the records that
    point to a partition, by its name."""
    if "jsonl" not in found.lists:
        return {}, lambda name: []
    pointing: dict[str, list] | None = None
    listing = found.listing

    def read(path: str) -> dict:
        nonlocal pointing
        metadata = read_metadata(path)
        pointing, wrong = place_records(metadata.records.values(), found.roots)
        return _said_of(metadata, wrong) | {"listing": listing}

    stat = found.lists["jsonl"]
    is_known = (digests.last(stat.path) or {}).get("listing") == listing
    has_all = all((folder / f"{name}.json").exists() for name in found.places)
    said = digests.get(stat, read, not is_known or not has_all)
    if pointing is None:  # as they were when the JSONL was read
        return said, lambda name: jsonl.read(folder / f"{name}.json")["records"]

    def rows(name: str) -> list[dict]:
        records = [_row(record) for record in pointing.get(found.places[name].path, ())]
        return sorted(records, key=lambda row: (row["id"], row.get("mm", "")))

    return said, rows


def _merge(found: _Found, said: Mapping, digests: Any) -> dict:
    """What the merge reads."""
    lists = {
        path: digests.get(found.lists[split], _split_digest) for split, path in found.splits.items()
    }
    in_jsonl = {}
    if said:
        lists[found.settings.jsonl] = said["ids"]
        in_jsonl = {key: said[key] for key in ("counts", "problems", "loose")}
        if said["loose"]:
            in_jsonl["path"] = found.settings.jsonl
    return {
        "partitions": list(found.places),
        "splits": found.splits,
        "lists": lists,
        "roots": {kind: str(root.path) for kind, root in found.roots.items()},
        "jsonl": in_jsonl,
    }


def _stat(path: Path) -> partitions.Stat:
    """Also of a link to nothing, whose job says that it is one."""
    return partitions.Stat.of(path) if path.exists() else partitions.Stat(str(path), -1, 0, 0)


def _row(record: Any) -> dict:
    """A record without what it does not say; its `h5` is the partition's file."""
    names = ("id", "key", "mm", "hop", "shape", "duration")
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _said_of(metadata: Metadata, wrong: list[dict]) -> dict:
    """What the parse and the merge need to know of a JSONL besides its records."""
    name = os.path.basename(metadata.path)
    notes = [metadata.note] if metadata.note else []
    if metadata.problems:
        count, row = counted(len(metadata.problems), "problem"), metadata.problems[0]
        notes.append(
            f"{name}: {count}, the first in line {row['line']}: {row['reason']}: {row['problem']}"
        )
    if wrong:
        count, row = counted(len(wrong), "pointer"), wrong[0]
        notes.append(f"{name}: {count} to nothing, such as {row['id']}: {row['problem']}")
    counts = {"ids": len(metadata.ids), "pointers": len(metadata.records), **metadata.counts}
    ids = f"{len(metadata.ids)} ids, {jsonl.digest(sorted(metadata.ids))}"
    # Of records without an HDF5 file the merge compares these with the tracks, so that it reads the
    # JSONL.
    said = sorted(
        (each.id, each.hop, each.duration) for each in metadata.records.values() if each.h5 is None
    )
    loose = [row for row in said if row[1] or row[2]]
    result = {"notes": notes, "problems": metadata.problems + wrong, "counts": counts, "ids": ids}
    return result | {"loose": jsonl.digest(loose) if loose else ""}


def _split_digest(path: str) -> str:
    from millrace.music.features.splits import read_split  # not at every parse

    cliques = read_split(path, "train").cliques
    return f"{sum(map(len, cliques.values()))} versions, {jsonl.digest(cliques)}"


def _items(content: Mapping) -> dict[str, Any]:
    """The file, or the folder (with a slash at its end), and the records of a partition by name."""
    name = content["path"] if content["kind"] == "h5" else f"{content['path']}/"
    return {row["id"]: row for row in content["records"]} | {name: content["mtime_ns"]}


def _lists(merge: Mapping) -> dict[str, str]:
    """What the JSONL and the splits hold, by path."""
    return merge["lists"]


def _shown(name: str) -> str:
    return os.path.basename(name.rstrip("/"))


def _noun(name: str) -> str:
    is_file = name.lower().endswith(H5_ENDINGS)
    return "chunk" if is_file else "mm folder" if name.endswith("/") else "record"


def _kinds(old: Any, new: Any) -> list[str]:
    """What differs between two states of a file or folder, a record, or a list."""
    if isinstance(old, dict):
        names = ("key", "mm", "hop", "shape", "duration")
        return [name for name in names if old.get(name) != new.get(name)]
    if not isinstance(old, str):
        return ["touched or replaced"]

    # "40 ids, <digest>"
    before, noun = old.split(",")[0].split(" ")
    now = new.split(",")[0].split(" ")[0]
    more = int(now) - int(before)
    if not more:
        return [f"other {noun}"]
    return [f"{abs(more)} {noun} {'more' if more > 0 else 'fewer'}"]
