"""The music lane's sources: HDF5 files, folders of .mm files, and the records that point into them.

Imported by every parse, so nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from millrace.common import jsonl
from millrace.common.errors import counted
from millrace.common.workflow.differences import Items
from millrace.common.workflow.partitions import Assignment, Stat
from millrace.common.workflow.sources import (
    Found,
    Partitions,
    SourcesMissing,
    Tables,
    Write,
    misplaced,
)
from millrace.music.features.metadata import Metadata, Record, place_records, read_metadata
from millrace.music.features.roots import H5_ENDINGS, Root, split_files

# Keys whose effect is said otherwise, or that no job of the index reads.
QUIET_KEYS = {"jsonl", "splits"}
REMEDY = "run `snakemake music_fetch_demo` for the demo, or set music.h5_root or music.mm_root"
# Of the partition files. They hold it, so that the tables of an earlier one are made again.
_VERSION = 8
DEMO = Path("resources/music/demo")
_RECORD = ("id", "key", "mm", "hop", "shape")  # of a record, in a partition file
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

    def build(write: Write) -> Partitions:
        metadata = read_metadata(settings.jsonl)
        records, wrong = place_records(metadata.records.values(), roots)
        for name, place in places.items():
            write(name, _partition(name, place, roots[place.kind], records.get(place.path, ())))
        lists = {path: _split_digest(path) for path in files.values()}
        if settings.jsonl:
            lists[settings.jsonl] = _jsonl_digest(metadata)
        problems = metadata.problems + wrong
        merge: dict[str, Any] = {
            "partitions": list(places),
            "splits": files,
            "lists": lists,
            "roots": {kind: str(root.path) for kind, root in roots.items()},
            "jsonl": settings.jsonl,
            "problems": problems,
        }
        return Partitions(
            Assignment(folder / "index/assignment.jsonl", 1),  # of nothing: names say it all
            groups={"features": sorted(places)},
            total=len(places),
            others={"merge": {"all": merge}},
            notes=_notes(metadata, problems),
        )

    stats = [Stat.of(path) for path in lists.values()]
    stats += [place.stat for place in places.values()]
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


def _partition(name: str, place: _Place, root: Root, records: Iterable[Record]) -> dict[str, Any]:
    """The content of a partition file."""
    rows = [_row(record) for record in records]
    return {
        "version": _VERSION,
        "id": name,
        "kind": place.kind,
        "root": str(root.path),
        "path": place.path,
        "size": place.stat.size if place.kind == "h5" else 0,
        "mtime_ns": place.stat.mtime_ns,
        "records": sorted(rows, key=lambda row: (row["id"], row.get("mm", ""))),
    }


def _compared(results: Path) -> dict[str, Items]:
    """How partition files, and the file of the merge, are compared with what was built."""
    tables = f"{results}/features/{{}}.parquet"
    index = f"{results}/index/features.index"
    return {
        "": Items("file", _items, _kinds, [tables], shown=_shown, noun_of=_noun),
        "merge": Items("list", _lists, _kinds, [index]),
    }


def _stat(path: Path) -> Stat:
    """Also of a link to nothing, whose job says that it is one."""
    if path.exists():
        return Stat.of(path)
    return Stat(str(path), -1, 0, 0)


def _row(record: Record) -> dict[str, Any]:
    """A record without what it does not say; its `h5` is the partition's file."""
    fields = {name: getattr(record, name) for name in _RECORD}
    return {name: value for name, value in fields.items() if value is not None}


def _notes(metadata: Metadata, problems: Sequence[Mapping]) -> list[str]:
    """What the parse says of a JSONL."""
    notes = [metadata.note] if metadata.note else []
    if problems:
        row = problems[0]
        place = row.get("line") or row["id"]
        count = counted(len(problems), "problem")
        words = f"the first ({place}): {row['reason']}: {row['problem']}"
        notes.append(f"{os.path.basename(metadata.path)}: {count}, {words}")
    return notes


def _jsonl_digest(metadata: Metadata) -> str:
    """What the merge depends on: the ids, and the hops, which also count without a pointer."""
    hops = [(record.id, record.hop) for record in metadata.records.values() if record.hop]
    return f"{len(metadata.ids)} ids, {jsonl.digest([sorted(metadata.ids), sorted(hops)])}"


def _split_digest(path: str) -> str:
    from millrace.music.features.splits import read_split  # which imports much

    cliques = read_split(path, "train").cliques
    return f"{sum(map(len, cliques.values()))} versions, {jsonl.digest(cliques)}"


def _items(content: Mapping) -> dict[str, Any]:
    """The file, or the folder (with a slash at its end), and the records of a partition by name."""
    name = content["path"] if content["kind"] == "h5" else f"{content['path']}/"
    records = {row["id"]: {**row, "file": name} for row in content["records"]}
    # The copies of 0.4.0 state no version, and no problems.
    return records | {name: [content.get("version"), content["size"], content["mtime_ns"]]}


def _lists(merge: Mapping) -> dict[str, str]:
    """What the merge of all reads beside the partitions: how much of it, and a digest."""
    problems = merge.get("problems", [])
    state = f"{len(problems)}, {jsonl.digest(problems)}"
    return {**merge["lists"], "problems of the JSONL": state}


def _shown(name: str) -> str:
    return os.path.basename(name.rstrip("/"))


def _noun(name: str) -> str:
    is_file = name.lower().endswith(H5_ENDINGS)
    if is_file:
        return "chunk"
    return "mm folder" if name.endswith("/") else "record"


def _kinds(old: Any, new: Any) -> list[str]:
    """What differs between two states of a record, a list, or a file or folder."""
    if isinstance(old, dict):
        return [name for name in (*_RECORD, "file") if old.get(name) != new.get(name)]
    if isinstance(old, str):
        before, _ = old.split(", ")
        now, _ = new.split(", ")
        return [f"{before} -> {now}"] if before != now else []
    if old[1:] == new[1:]:
        return ["its table is of an earlier version"]
    return ["touched or replaced"]
