"""The music lane's sources: HDF5 files, folders of .mm files, and the records that point into them.

Imported by every parse, so nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from millrace.common import jsonl
from millrace.common.errors import counted
from millrace.common.workflow import placements
from millrace.common.workflow.differences import Items
from millrace.common.workflow.partitions import Assignment, DigestCache, Stat
from millrace.common.workflow.sources import (
    Found,
    Partitions,
    SourcesMissing,
    Tables,
    Write,
    misplaced,
)
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
    """A file or folder with features: a partition."""

    kind: str  # h5 or mm
    path: str  # below its root
    stat: Stat


def collect(settings: Settings, folder: Path, table: Tables) -> Found:
    """A partition is an HDF5 file or a folder of .mm files by its stat, with the records that point
    there; `merge` is what the merge of all reads: the partitions, what is wrong with the JSONL, the
    splits.

    Raises SourcesMissing for a place without features, MillraceError for a split that cannot be
    read.
    """
    roots = _roots(settings)
    places = _places(roots)
    files = _split_files(settings.splits)
    lists = {"jsonl": settings.jsonl, **files} if settings.jsonl else files
    for name, path in lists.items():
        if not Path(path).is_file():
            key = "jsonl" if name == "jsonl" else "splits"
            raise SourcesMissing(f"music.{key}: {path} does not exist")
    list_stats = {name: Stat.of(path) for name, path in lists.items()}
    # Before `build`: a sync deletes it at its beginning.
    has_ended = (folder / placements.STATE).exists()

    def build(write: Write) -> Partitions:
        digests = table("lists", _VERSION)
        pointers = _pointers(settings, folder, roots, places, digests, has_ended)
        for name, place in places.items():
            write(name, _partition(name, place, roots[place.kind], pointers.of(name, place.path)))
        facts = pointers.facts
        shown = {path: digests.get(list_stats[name], _split_digest) for name, path in files.items()}
        if facts:
            shown[settings.jsonl] = facts["ids"]
        merge: dict[str, Any] = {
            "partitions": list(places),
            "splits": files,
            "lists": shown,
            "roots": {kind: str(root.path) for kind, root in roots.items()},
            "jsonl": {key: facts[key] for key in ("counts", "problems", "loose") if facts},
        }
        if facts and facts["loose"]:
            merge["jsonl"]["path"] = settings.jsonl
        return Partitions(
            Assignment(folder / "index/assignment.jsonl", 1),  # of nothing: names say it all
            groups={"features": sorted(places)},
            total=len(places),
            others={"merge": {"all": merge}},
            notes=facts.get("notes", []),
        )

    stats = [*list_stats.values(), *(place.stat for place in places.values())]
    signatures = [stat.signature for stat in stats]
    return Found(
        build,
        state=jsonl.digest([_VERSION, asdict(settings), list(places), lists, signatures]),
        items=_compared(folder.parent),
        then="the index",
    )


def _roots(settings: Settings) -> dict[str, Root]:
    """The folders with features, by kind. Raises SourcesMissing if none is set."""
    if settings.h5_root == str(DEMO / "h5") and not DEMO.exists():
        raise SourcesMissing(f"no features at {DEMO}", pristine=True)
    paths = {"h5": settings.h5_root, "mm": settings.mm_root}
    return {kind: Root(path) for kind, path in paths.items() if path}


def _places(roots: Mapping[str, Root]) -> dict[str, _Place]:
    """The partitions by id. Raises SourcesMissing for a folder without features."""
    places: dict[str, _Place] = {}
    for kind, root in roots.items():
        paths = list(root.places(kind))
        if not paths:
            raise SourcesMissing(misplaced(f"music.{kind}_root", root.path, *_EXPECTED[kind]))
        for path in paths:
            places[f"{kind}-{quote(path, safe='')}"] = _Place(kind, path, _stat(root.path / path))
    if not roots:
        raise SourcesMissing("neither music.h5_root nor music.mm_root is set")
    return places


def _split_files(splits: str | Mapping[str, str]) -> dict[str, str]:
    """The lists of the splits. Raises SourcesMissing for a folder without them."""
    files = split_files(splits) if splits else {}
    if splits and not files:
        wanted = "train.json, valid.json, test.json"
        raise SourcesMissing(misplaced("music.splits", Path(str(splits)), wanted))
    return files


class _Pointers(NamedTuple):
    """What the JSONL says."""

    facts: dict[str, Any]  # {} without a JSONL
    records: Mapping[str, list] | None  # by place; None if it was not read now
    folder: Path  # of the partition files, which hold the records as they were read last

    def of(self, name: str, path: str) -> list[dict]:
        """The records that point to a place, by the id of its partition."""
        if self.facts and self.records is None:
            return jsonl.read(self.folder / f"{name}.json")["records"]
        rows = [_row(record) for record in (self.records or {}).get(path, ())]
        return sorted(rows, key=lambda row: (row["id"], row.get("mm", "")))


def _pointers(
    settings: Settings,
    folder: Path,
    roots: Mapping[str, Root],
    places: Mapping[str, _Place],
    digests: DigestCache,
    has_ended: bool,
) -> _Pointers:
    """Read the JSONL, if it or the list of files is new, or the last sync has not ended: partition
    files may then hold records of another JSONL."""
    if not settings.jsonl:
        return _Pointers({}, None, folder)
    # An .mm that comes into a folder may be what a pointer led to.
    times = [place.stat.mtime_ns for place in places.values() if place.kind == "mm"]
    listing = jsonl.digest([list(places), times, settings.h5_root, settings.mm_root])
    records: dict[str, list] | None = None

    def read(path: str) -> dict[str, Any]:
        nonlocal records
        metadata = read_metadata(path)
        records, wrong = place_records(metadata.records.values(), roots)
        return _said_of(metadata, wrong) | {"listing": listing}

    is_known = (digests.last(settings.jsonl) or {}).get("listing") == listing
    are_there = all((folder / f"{name}.json").exists() for name in places)
    again = not (is_known and are_there and has_ended)
    facts = digests.get(Stat.of(settings.jsonl), read, again)
    return _Pointers(facts, records, folder)


def _partition(name: str, place: _Place, root: Root, records: list[dict]) -> dict[str, Any]:
    """The content of a partition file."""
    return {
        "id": name,
        "kind": place.kind,
        "root": str(root.path),
        "path": place.path,
        "size": place.stat.size if place.kind == "h5" else 0,
        "mtime_ns": place.stat.mtime_ns,
        "records": records,
    }


def _compared(results: Path) -> dict[str, Items]:
    """How partition files, and the file of the merge, are compared with what was built."""
    tables = f"{results}/features/{{}}.parquet"
    index = f"{results}/index/features.index"
    return {
        "": Items("file", _items, _kinds, [tables], shown=_shown, noun_of=_noun),
        "merge": Items("list", lambda merge: merge["lists"], _kinds, [index]),
    }


def _stat(path: Path) -> Stat:
    """Also of a link to nothing, whose job says that it is one."""
    if path.exists():
        return Stat.of(path)
    return Stat(str(path), -1, 0, 0)


def _row(record: Any) -> dict:
    """A record without what it does not say; its `h5` is the partition's file."""
    names = ("id", "key", "mm", "hop", "shape", "duration")
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _said_of(metadata: Metadata, wrong: list[dict]) -> dict:
    """What the parse and the merge need to know of a JSONL besides its records."""
    name = os.path.basename(metadata.path)
    notes = [metadata.note] if metadata.note else []
    if metadata.problems:
        count = counted(len(metadata.problems), "problem")
        row = metadata.problems[0]
        notes.append(
            f"{name}: {count}, the first in line {row['line']}: {row['reason']}: {row['problem']}"
        )
    if wrong:
        count = counted(len(wrong), "pointer")
        row = wrong[0]
        notes.append(f"{name}: {count} to nothing, such as {row['id']}: {row['problem']}")
    counts = {
        "ids": len(metadata.ids),
        "pointers": len(metadata.records),
        **metadata.counts,
    }
    ids = f"{len(metadata.ids)} ids, {jsonl.digest(sorted(metadata.ids))}"
    # Of records without an HDF5 file the merge compares these with the tracks, so that it reads the
    # JSONL.
    said = sorted(
        (each.id, each.hop, each.duration) for each in metadata.records.values() if each.h5 is None
    )
    loose = [row for row in said if row[1] or row[2]]
    result = {
        "notes": notes,
        "problems": metadata.problems + wrong,
        "counts": counts,
        "ids": ids,
    }
    return result | {"loose": jsonl.digest(loose) if loose else ""}


def _split_digest(path: str) -> str:
    from millrace.music.features.splits import read_split  # not at every parse

    cliques = read_split(path, "train").cliques
    return f"{sum(map(len, cliques.values()))} versions, {jsonl.digest(cliques)}"


def _items(content: Mapping) -> dict[str, Any]:
    """The file, or the folder (with a slash at its end), and the records of a partition by name."""
    name = content["path"] if content["kind"] == "h5" else f"{content['path']}/"
    return {row["id"]: row for row in content["records"]} | {name: content["mtime_ns"]}


def _shown(name: str) -> str:
    return os.path.basename(name.rstrip("/"))


def _noun(name: str) -> str:
    is_file = name.lower().endswith(H5_ENDINGS)
    if is_file:
        return "chunk"
    return "mm folder" if name.endswith("/") else "record"


def _kinds(old: Any, new: Any) -> list[str]:
    """What differs between two states of a file or folder, a record, or a list."""
    if isinstance(old, dict):
        return [
            name
            for name in ("key", "mm", "hop", "shape", "duration")
            if old.get(name) != new.get(name)
        ]
    if isinstance(old, str):
        before, noun = old.split(",")[0].split(" ")
        now, _ = new.split(",")[0].split(" ")
        more = int(now) - int(before)
        return [
            f"{abs(more)} {noun} {'more' if more > 0 else 'fewer'}" if more else f"other {noun}"
        ]
    return ["touched or replaced"]
