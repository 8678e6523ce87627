"""The music lane's sources: HDF5 files, folders of .mm files, and the records that point into them.

Imported by every parse, so nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
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


def collect(settings: Settings, folder: Path, table: Tables) -> Contents:
    """A partition is an HDF5 file or a folder of .mm files by its stat, with the records that point
    there; `merge` is what the merge of all reads: the partitions, what is wrong with the JSONL, the
    splits.

    Raises SourcesMissing for a place without features, MillraceError for a split that cannot be
    read.
    """
    if settings.h5_root == str(DEMO / "h5") and not DEMO.exists():
        raise SourcesMissing(f"no features at {DEMO}", pristine=True)
    roots = {
        kind: Root(path) for kind in ("h5", "mm") if (path := getattr(settings, f"{kind}_root"))
    }
    stats = {
        f"{kind}-{quote(path, safe='')}": (kind, path, _stat(root.path / path))
        for kind, root in roots.items()
        for path in root.places(kind)
    }
    for kind, root in roots.items():
        if all(other != kind for other, _, _ in stats.values()):
            raise SourcesMissing(misplaced(f"music.{kind}_root", root.path, *_EXPECTED[kind]))
    if not roots:
        raise SourcesMissing("neither music.h5_root nor music.mm_root is set")
    files = split_files(settings.splits) if settings.splits else {}
    if settings.splits and not files:
        wanted = "train.json, valid.json, test.json"
        raise SourcesMissing(misplaced("music.splits", Path(str(settings.splits)), wanted))
    lists = {"jsonl": settings.jsonl, **files} if settings.jsonl else files
    for key, path in lists.items():
        if not Path(path).is_file():
            raise SourcesMissing(
                f"music.{'jsonl' if key == 'jsonl' else 'splits'}: {path} does not exist"
            )
    said_of = {key: partitions.Stat.of(path) for key, path in lists.items()}

    def contents_of_all() -> Iterator[tuple[str, dict]]:
        """The partition files; completes `contents`. The JSONL is read if it or the list of files
        is new."""
        digests = table("lists", _VERSION)
        # An .mm that comes into a folder may be what a pointer led to.
        times = [stat.mtime_ns for kind, _, stat in stats.values() if kind == "mm"]
        listing = jsonl.digest([list(stats), times, settings.h5_root, settings.mm_root])
        places: dict[str, list] | None = None

        def read(path: str) -> dict:
            nonlocal places
            metadata = read_metadata(path)
            places, wrong = place_records(metadata.records.values(), roots)
            return _said_of(metadata, wrong) | {"listing": listing}

        facts: dict = {}
        if pointers := said_of.get("jsonl"):
            known = (digests.last(pointers.path) or {}).get("listing") == listing
            again = not known or any(not (folder / f"{name}.json").exists() for name in stats)
            facts = digests.get(pointers, read, again)
            contents.notes += facts["notes"]
        for name, (kind, path, stat) in stats.items():
            if facts and places is None:  # as they were when the JSONL was read
                records = jsonl.read(folder / f"{name}.json")["records"]
            else:
                records = [_row(record) for record in (places or {}).get(path, ())]
                records.sort(key=lambda row: (row["id"], row.get("mm", "")))
            file = {"id": name, "kind": kind, "root": str(roots[kind].path), "path": path}
            file |= {
                "size": stat.size * (kind == "h5"),
                "mtime_ns": stat.mtime_ns,
                "records": records,
            }
            yield name, file
        shown = {path: digests.get(said_of[split], _split_digest) for split, path in files.items()}
        shown |= {settings.jsonl: facts["ids"]} if facts else {}
        merge: dict = {"partitions": list(stats), "splits": files, "lists": shown}
        merge["roots"] = {kind: str(root.path) for kind, root in roots.items()}
        merge["jsonl"] = {key: facts[key] for key in ("counts", "problems", "loose") if facts}
        merge["jsonl"] |= {"path": settings.jsonl} if facts and facts["loose"] else {}
        contents.others = {"merge": {"all": merge}}

    assignment = partitions.Assignment(
        folder / "index/assignment.jsonl", 1
    )  # of nothing: names say it all
    contents = Contents(
        assignment,
        contents_of_all(),
        {"features": sorted(stats)},
        total=len(stats),
        then="the index",
    )
    contents.others = {"merge": {"all": {}}}
    states = [
        stat.signature for stat in (*said_of.values(), *(stat for _, _, stat in stats.values()))
    ]
    contents.state = jsonl.digest([_VERSION, asdict(settings), list(stats), lists, states])
    outputs = [
        str(folder.parent / path) for path in ("features/{}.parquet", "index/features.index")
    ]
    contents.items = {
        "": Items("file", _items, _kinds, outputs[:1], shown=_shown, noun_of=_noun),
        "merge": Items("list", lambda merge: merge["lists"], _kinds, outputs[1:]),
    }
    return contents


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


def _shown(name: str) -> str:
    return os.path.basename(name.rstrip("/"))


def _noun(name: str) -> str:
    is_file = name.lower().endswith(H5_ENDINGS)
    return "chunk" if is_file else "mm folder" if name.endswith("/") else "record"


def _kinds(old: Any, new: Any) -> list[str]:
    """What differs between two states of a file or folder, a record, or a list."""
    if isinstance(old, dict):
        return [
            name
            for name in ("key", "mm", "hop", "shape", "duration")
            if old.get(name) != new.get(name)
        ]
    if isinstance(old, str):
        (before, noun), (now, _) = (each.split(",")[0].split(" ") for each in (old, new))
        more = int(now) - int(before)
        return [
            f"{abs(more)} {noun} {'more' if more > 0 else 'fewer'}" if more else f"other {noun}"
        ]
    return ["touched or replaced"]
