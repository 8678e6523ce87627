"""The tars that manifests name, in partitions: when a manifest or a tar counts as changed, and what
is said of missing ones. Imported by every parse, so nothing heavy."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from millrace.asr.manifests import files as manifest_files
from millrace.asr.tars.paths import one_spelling
from millrace.common import jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.path_map import PathMap
from millrace.common.workflow import differences
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

# Keys whose effect is said otherwise, or that no job reads.
QUIET_KEYS = {"partition_gb", "pinned"}
REMEDY = (
    "set asr.source: manifests and asr.manifest_dir, or asr.source: speech with speech among the"
    " lanes"
)
# Below the partitions: the manifests as the buckets were built from them.
AS_BUILT = "manifests/built/all.json"
# Below this many bytes Snakemake compares content, not times, and so do we.
_COMPARED = 1_000_000


@dataclass
class Settings:
    """What of the lane's config decides on partitions. `partition_gb` is in 10^9 bytes of tar."""

    source: str
    manifest_dir: str
    tar_root: str
    tar_template: str
    partition_gb: float
    path_map: Mapping[str, str] = field(default_factory=dict)


class ManifestFacts(NamedTuple):
    """What is known of a manifest. Of Parquet only the tars."""

    tars: list[str]
    rows: int | None
    content: str  # rows and their digest, in words
    broken_lines: int
    first_broken: str  # what is wrong with the first broken line, and its number

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> ManifestFacts:
        """A row of the table of manifests."""
        content = f"{row['rows']} rows, {row['content']}" if "content" in row else ""
        broken_lines, first_broken = row.get("broken") or (0, "")
        return cls(row["tars"], row.get("rows"), content, broken_lines, first_broken)


def _facts(
    settings: Settings,
    files: Mapping[str, list[str]],
    stats: Mapping[str, Stat],
    table: Tables,
) -> dict[str, ManifestFacts]:
    """What is known of each manifest. It is read whole if it is new; then that is in a table until
    the file changes."""
    split_of = {path: split for split, paths in files.items() for path in paths}

    def read(path: str) -> dict[str, Any]:
        # Here, as it imports pyarrow, which a parse needs only if a manifest is new.
        from millrace.asr.manifests.manifest import manifest_of

        manifest = manifest_of(
            split_of[path], [Path(path)], settings.tar_root, settings.tar_template
        )
        return manifest.facts(0)

    # Which tars a manifest names depends on these as well: with others the table counts for
    # nothing.
    version = (7, settings.tar_root, settings.tar_template)
    known = table("digests", zlib.crc32(repr(version).encode()))
    return {path: ManifestFacts.parse(known.get(stat, read)) for path, stat in stats.items()}


def collect(settings: Settings, folder: Path, table: Tables) -> Found | None:
    """Partitions hold path, size and mtime of tars of some `partition_gb` together; a tar never
    changes partition.

    A tar that is missing has no size: the index lists it with the reason, and every parse looks for
    it again. None if the samples come from the speech lane, whose offsets are known. Raises
    SourcesMissing without a train manifest, MillraceError for a manifest that cannot be read, and
    if all tars are missing.
    """
    if settings.source != "manifests":
        return None
    files = _manifest_files(settings.manifest_dir)
    items = _items(folder.parent)
    differences.keep(folder / "manifests", items["manifests"])
    as_built = _as_built(folder / AS_BUILT)
    stats = {path: Stat.of(path) for paths in files.values() for path in paths}
    facts = _facts(settings, files, stats, table)

    path_map = PathMap(settings.path_map)
    tars = _stats_of_tars(facts.values(), path_map)
    notes = path_map.warnings("asr.path_map", "tar paths")
    notes += _row_notes(facts)
    notes += _unread_notes(files, settings.manifest_dir)
    notes += _shard_notes(facts)
    notes += _missing_notes(tars, notes, settings.manifest_dir)

    states = _states(stats, facts, as_built, table("manifests"))
    # In the form of a partition file, so that `differences` compares it.
    entries = [{"path": path, "size": 0, "is": state} for path, state in states.items()]

    def build(write: Write) -> Partitions:
        assignment = _assigned(tars, folder / "index/assignment.jsonl", settings.partition_gb * 1e9)
        contents = _partitions(tars, assignment)
        for name, content in contents.items():
            write(name, content)
        return Partitions(
            assignment,
            groups={"tars": sorted(contents)},
            total=len(tars),
            files=files,
            others={"manifests": {"all": {"tars": entries}}},
            notes=notes,
        )

    return Found(
        build,
        items=items,
        then="the buckets",
        unchanged={path for path, state in states.items() if as_built.get(path) == state},
    )


def _manifest_files(manifest_dir: str) -> dict[str, list[str]]:
    """The manifests by split. Raises SourcesMissing without one of train."""
    files = manifest_files.find(manifest_dir)
    if "train" not in files:
        strong, weak = manifest_files.SUFFIXES
        expected = f"train{' or train'.join(strong)} (dev and test too)"
        place = Path(manifest_dir or "''")
        patterns = [f"train*{way}{suffix}" for way in ("", "/*") for suffix in strong + weak]
        raise SourcesMissing(misplaced("asr.manifest_dir", place, expected, *patterns))
    for path in (path for paths in files.values() for path in paths):
        if "{" in path or "}" in path:
            problem = "Snakemake takes braces in a file's name for wildcards"
            raise MillraceError(problem, path, "Rename file or folder")
        if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
            raise MillraceError("this is no regular file", path, "Write a manifest there")
    return files


def _items(results: Path) -> dict[str, Items]:
    """How partition files, and the file of the manifests, are compared with what was built."""
    index = f"{results}/tar_index/{{}}.parquet"
    config = f"{results}/buckets/bucket_config.json"
    return {
        "": Items("tar", _files, _tar_change, (index,)),
        "manifests": Items("manifest", _files, _manifest_change, (config,)),
    }


def _as_built(path: Path) -> dict[str, Any]:
    """The states of the manifests that the buckets were built from, out of the copy of their
    file."""
    entries = jsonl.read_or({}, path).get("tars", ())
    return {entry["path"]: entry["is"] for entry in entries}


def _stats_of_tars(facts: Iterable[ManifestFacts], path_map: PathMap) -> dict[str, dict]:
    """Path, size and mtime of the tars that manifests name, each tar once; no size if it is
    missing."""
    named = dict.fromkeys(tar for each in facts for tar in each.tars)
    mapped = dict.fromkeys(next(iter(path_map.mapped(path)), path) for path in named)
    paths = set(one_spelling(mapped).values())
    return {path: _stat(path) for path in sorted(paths)}


def _stat(path: str) -> dict:
    try:
        return Stat.of(path).as_dict()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return {"path": path, "size": None, "mtime_ns": None}


def _row_notes(facts: Mapping[str, ManifestFacts]) -> list[str]:
    """A line for each manifest in JSONL that has broken lines, or no rows."""
    notes = []
    for path, known in facts.items():
        if known.broken_lines:
            count = counted(known.broken_lines, "broken line")
            notes.append(f"{path}, {known.first_broken} ({count}, rejected)")
        if known.rows == 0:
            notes.append(f"{path} has no rows: write it again, or remove it")
    return notes


def _unread_notes(files: Mapping[str, list[str]], manifest_dir: str) -> list[str]:
    """Lines on what sounds like a piece of train and is none, and like dev or test where one is
    missing."""
    notes = []
    if pieces := manifest_files.train_unread(manifest_dir, dict(files)):
        names = ", ".join(pieces)
        notes.append(f"{manifest_dir}: {names} is not read: pieces are named like train-2.jsonl")
    missing = [split for split in manifest_files.SPLITS if split not in files]
    if not missing:
        return notes
    if unread := manifest_files.held_out_unread(manifest_dir, dict(files)):
        problem = f"{manifest_dir} has no manifest of {' and '.join(missing)}"
        remedy = f"name it like {missing[0]}.parquet"
        notes.append(f"{problem}, and {', '.join(unread)} is not read: {remedy}")
    return notes


def _shard_notes(paths: Iterable[str]) -> list[str]:
    """A line for each folder of NeMo's manifests of one shard in which some are missing."""
    notes = []
    for gap in manifest_files.missing_shards(paths):
        count = counted(gap.manifests, "manifest")
        problem = f"{gap.first} is missing, the first of {count} between others"
        notes.append(f"{problem}: the rows of their shards are not read")
    return notes


def _missing_notes(tars: Mapping[str, dict], notes: list[str], manifest_dir: str) -> list[str]:
    """A line if tars are missing. Raises MillraceError, which repeats the other notes, if all
    are, or none is named."""
    if not tars:
        problem = "the manifests name no tars"
        remedy = (
            "Each row (in JSONL an object on one line) needs tar_path, or shard_id as a whole"
            " number: audio that is not in tars is not read"
        )
        raise MillraceError(". ".join([problem, *notes]), manifest_dir, remedy)
    missing = [path for path, stat in tars.items() if stat["size"] is None]
    if not missing:
        return []
    problem = f"{len(missing)} of {len(tars)} tars are missing, for example {missing[0]}"
    remedy = "Set asr.tar_root, asr.tar_template or asr.path_map, or bring the tars"
    if len(missing) == len(tars):
        raise MillraceError(". ".join([problem, *notes]), manifest_dir, remedy)
    return [f"{problem}: their rows are rejected. {remedy}"]


def _assigned(tars: Mapping[str, dict], path: Path, limit: float) -> Assignment:
    """The partitions of the tars, of `limit` bytes. They only group: if the file is lost, tars are
    scanned once more."""
    assignment = Assignment(path, limit)
    sizes = [stat["size"] for stat in tars.values() if stat["size"] is not None]
    # A tar that is missing is taken for one like the others: all of them must not end in one
    # partition.
    usual_size = sum(sizes) / len(sizes) if sizes else limit / 100
    for tar, stat in tars.items():
        size = usual_size if stat["size"] is None else stat["size"]
        assignment.place(tar, "tars", float(size))
    return assignment


def _partitions(tars: Mapping[str, dict], assignment: Assignment) -> dict[str, dict]:
    """The contents of the partition files by their ids."""
    by_partition: dict[str, list[dict]] = defaultdict(list)
    for path, stat in tars.items():
        by_partition[f"tars-{assignment.placements[path].number:05d}"].append(stat)
    return {name: {"id": name, "tars": stats} for name, stats in by_partition.items()}


def _states(
    stats: Mapping[str, Stat],
    facts: Mapping[str, ManifestFacts],
    as_built: Mapping[str, Any],
    once: DigestCache,
) -> dict[str, Any]:
    """What tells each manifest from the one that was built from: the content of JSONL, a digest of
    small Parquet, or size and times."""
    digest = partial(jsonl.head_tail_digest, block=_COMPARED)
    states: dict[str, Any] = {}
    for path, stat in stats.items():
        before = as_built.get(path)
        if facts[path].content:
            states[path] = facts[path].content
        elif isinstance(before, list) and before[:2] == stat.signature[:2]:
            # Put back with its time it is another file, but the same.
            states[path] = before
        elif stat.size < _COMPARED:
            states[path] = once.get(stat, digest)
        else:
            states[path] = stat.signature
    return states


def _files(content: Mapping) -> dict[str, dict]:
    return {file["path"]: file for file in content["tars"]}


def _tar_change(old: Mapping, new: Mapping) -> list[str]:
    """What differs between two states of a tar."""
    if old["size"] is None:
        return ["no longer missing"]
    return ["missing" if new["size"] is None else "replaced"]


def _manifest_change(old: Mapping, new: Mapping) -> list[str]:
    """What differs between two states of a manifest."""
    rows_before = _rows(old)
    rows_now = _rows(new)
    if rows_before is None or rows_now is None:
        return ["replaced"]
    more = rows_now - rows_before
    if more == 0:
        return ["rows changed"]
    return [f"{more} rows more" if more > 0 else f"{-more} rows fewer"]


def _rows(manifest: Mapping) -> int | None:
    """The number of rows, if the manifest's state says it."""
    state = str(manifest["is"])
    if " rows, " in state:
        return int(state.split()[0])
    return None
