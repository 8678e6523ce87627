"""The ASR lane's sources: the tars that manifests name. Imported by every parse, so nothing
heavy."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millrace.asr.manifests import files as manifest_files
from millrace.asr.tars.paths import one_spelling
from millrace.common import jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.path_map import PathMap
from millrace.common.workflow import built, partitions
from millrace.common.workflow.built import Items
from millrace.common.workflow.sources import Contents, SourcesMissing, Tables, misplaced

# Keys whose effect is said otherwise, or that no job reads.
QUIET_KEYS = {"partition_gb", "pinned"}
REMEDY = "set asr.source: manifests and asr.manifest_dir, or asr.source: speech with speech among the lanes"
# Below this many bytes Snakemake compares content, not times, and so do we.
_COMPARED = 1_000_000
# Bytes of new JSONL that a dry run reads; of what is more it looks at so many places.
_READ, _PLACES = 250_000_000, 30_000


@dataclass
class Settings:
    """What of the lane's config decides on partitions. `partition_gb` is in 10^9 bytes of tar."""

    source: str
    manifest_dir: str
    tar_root: str
    tar_template: str
    partition_gb: float
    path_map: Mapping[str, str] = field(default_factory=dict)


def collect(settings: Settings, folder: Path, table: Tables) -> Contents | None:
    """Partitions hold path, size and mtime of tars of some `partition_gb` together; a tar never
    changes partition.

    A tar that is missing has no size: the index lists it with the reason, and every parse looks for
    it again. None if the samples come from the speech lane, whose offsets are known. Raises
    SourcesMissing without a train manifest, MillraceError for a manifest that cannot be read, and
    if all tars are missing.
    """
    if settings.source != "manifests":
        return None
    manifests = manifest_files.find(settings.manifest_dir)
    if "train" not in manifests:
        expected = "train.parquet or train.jsonl (dev and test too)"
        place = Path(settings.manifest_dir or "''")
        patterns = ("train*.parquet", "train*.json*", "train*/*.parquet", "train*/*.json*")
        raise SourcesMissing(misplaced("asr.manifest_dir", place, expected, *patterns))
    # Which tars a manifest names depends on these as well: with others the table counts for
    # nothing.
    version = zlib.crc32(repr((5, settings.tar_root, settings.tar_template)).encode())
    digests, in_part = table("digests", version), table("in_part", version)
    stats = {path: partitions.Stat.of(path) for paths in manifests.values() for path in paths}
    if braces := [path for path in stats if "{" in path or "}" in path]:
        problem = "Snakemake takes braces in a file's name for wildcards"
        raise MillraceError(problem, braces[0], "Rename file or folder")
    step, unread = sum(stat.size for stat in stats.values()) // _PLACES, _READ
    items = {
        "": Items("tar", _files, _kinds, (str(folder.parent / "tar_index/{}.parquet"),)),
        "manifests": Items(
            "manifest", _files, _kinds, (str(folder.parent / "buckets/bucket_config.json"),)
        ),
    }
    built.keep(folder / "manifests", items["manifests"])
    copy = jsonl.read_or({}, folder / "manifests/built/all.json")
    as_built = {each["path"]: each for each in copy.get("tars", ())}
    was = {path: each["is"] for path, each in as_built.items()}

    def read(split: str, path: str) -> dict[str, Any]:
        """The `tars` that a manifest names; of JSONL its rows and content, too.

        What came broken is rejected by row. What has been broken since it was built, and since it
        was read last, is a slip: an error.
        """
        nonlocal unread
        manifest = _manifest(settings, split, path)
        if not hasattr(manifest, "facts"):
            return {"tars": manifest.scan().tars}
        unread -= stats[path].size
        before, whole = (digests.last(path) or {}).get("broken"), manifest.facts(0)
        if before and whole["broken"][0] > max(before[0], as_built.get(path, {}).get("broken", 0)):
            raise MillraceError(
                f"{path}, {whole['broken'][1]}", remedy="Mend the line, or remove it"
            )
        return whole

    def read_in_part(split: str, path: str) -> dict[str, Any]:
        """Some of the `tars` that large JSONL names, as a `part`; of other files all."""
        manifest = _manifest(settings, split, path)
        if not hasattr(manifest, "facts"):
            return {"tars": manifest.scan().tars}
        broken = (digests.last(path) or {}).get("broken")
        return {"tars": manifest.some_tars(0, step), "part": True, "broken": broken}

    def facts_of(split: str, path: str) -> dict[str, Any]:
        """What a manifest says. What it said when it was read whole stays known: an edit may be
        undone."""
        stat = stats[path]
        if not digests.knows(stat) and (in_part.knows(stat) or stat.size > unread):
            digests.retain(path)
            return in_part.get(stat, partial(read_in_part, split))
        return digests.get(stat, partial(read, split))

    splits = {path: split for split, paths in manifests.items() for path in paths}
    facts = {path: facts_of(split, path) for path, split in splits.items()}
    named = dict.fromkeys(tar for each in facts.values() for tar in each["tars"])

    # Only grouping rests on this assignment: it may be lost, at the price of scanning the tars
    # again.
    assignment = partitions.Assignment(
        folder / "index" / "assignment.jsonl", settings.partition_gb * 1e9
    )
    path_map = PathMap(settings.path_map)
    mapped = dict.fromkeys(next(iter(path_map.mapped(path)), path) for path in named)
    tars = {path: _stat(path) for path in sorted(set(one_spelling(mapped).values()))}
    notes = path_map.warnings("asr.path_map", "tar paths")
    for path, (count, first) in (
        (path, each.get("broken") or (0, "")) for path, each in facts.items()
    ):
        notes += [f"{path}, {first} ({counted(count, 'broken line')}, rejected)"] if count else []
    if missing := [path for path, stat in tars.items() if stat["size"] is None]:
        problem = f"{len(missing)} of {len(tars)} tars are missing, for example {missing[0]}"
        remedy = "Set asr.tar_root, asr.tar_template or asr.path_map, or bring the tars"
        if len(missing) == len(tars):
            raise MillraceError(". ".join([problem, *notes]), settings.manifest_dir, remedy)
        notes.append(f"{problem}: their rows are rejected. {remedy}")
    if not tars:
        remedy = "Each row needs tar_path, or shard_id: audio that is not in tars is not read"
        raise MillraceError("the manifests name no tars", settings.manifest_dir, remedy)
    sizes = [stat["size"] for stat in tars.values() if stat["size"] is not None]
    # A tar that is missing is taken for one like the others: all of them must not end in one
    # partition.
    usual = sum(sizes) / len(sizes) if sizes else settings.partition_gb * 1e9 / 100
    contents: dict[str, dict] = {}
    for path, stat in tars.items():
        placement = assignment.place(
            path, "tars", float(usual if stat["size"] is None else stat["size"])
        )
        name = f"tars-{placement.number:05d}"
        contents.setdefault(name, {"id": name, "tars": []})["tars"].append(stat)
    once, digest = table("manifests"), partial(jsonl.head_tail_digest, block=_COMPARED)
    states = {
        s.path: once.get(s, digest) if s.size < _COMPARED else s.signature for s in stats.values()
    }
    # What was built before contents were noted is compared as it was then.
    for path in (
        path for path in states if facts[path].get("content") and was.get(path) != states[path]
    ):
        states[path] = "{rows} rows, {content}".format_map(facts[path])
    # Put back with its time it is another file, but the same.
    for path in (path for path, stat in stats.items() if _as_before(was.get(path), stat)):
        states[path] = was[path]

    def others() -> dict[str, dict]:
        files = [{"path": path, "size": 0, "is": of} for path, of in states.items()]
        for file in files:
            if broken := (facts[file["path"]].get("broken") or [0])[0]:
                file["broken"] = broken
        return {"all": {"tars": files}}

    def check() -> None:
        """Read the manifests that are too large for a dry run, before the first job starts."""
        for path in large:
            facts[path] = whole = digests.get(stats[path], partial(read, splits[path]), again=True)
            states[path] = "{rows} rows, {content}".format_map(whole)
            if new := set(whole["tars"]) - set(named):
                digests.save()
                problem = (
                    f"it names {len(new)} tars that the dry run has not seen, such as {min(new)}"
                )
                raise MillraceError(problem, path, "Start again: now they are known")
        digests.save()
        partitions.sync_files(folder / "manifests", others())

    if large := [path for path in stats if facts[path].get("part")]:
        size = sum(stats[path].size for path in large) / 1e9
        notes.append(
            f"{size:.1f} GB of manifests are read in part; a run reads all before its first job"
        )
    groups = {"tars": sorted(contents)}
    return Contents(
        assignment,
        contents,
        groups,
        total=len(tars),
        files=manifests,
        others={"manifests": others()},
        notes=notes,
        items=items,
        then="the buckets",
        unchanged={path for path, state in states.items() if was.get(path) == state},
        check=check if large else lambda: None,
    )


def _manifest(settings: Settings, split: str, path: str) -> Any:
    """The reader of a manifest."""
    from millrace.asr.manifests.manifest import manifests_of  # pyarrow: only if a manifest is new

    (manifest,) = manifests_of(split, [Path(path)], settings.tar_root, settings.tar_template)
    return manifest


def _as_before(state: Any, stat: partitions.Stat) -> bool:
    """Whether a manifest that is known by its signature has the size and time that it had."""
    return isinstance(state, list) and state[:2] == stat.signature[:2]


def _files(content: Mapping) -> dict[str, dict]:
    return {file["path"]: file for file in content["tars"]}


def _kinds(old: Mapping, new: Mapping) -> list[str]:
    """What differs between two states of a tar, or of a manifest."""
    rows = [int(is_.split()[0]) for each in (old, new) if " rows, " in (is_ := str(each.get("is")))]
    if len(rows) == 2:
        more = rows[1] - rows[0]
        return [f"{abs(more)} rows {'more' if more > 0 else 'fewer'}" if more else "rows changed"]
    return [
        "no longer missing"
        if old["size"] is None
        else "missing"
        if new["size"] is None
        else "replaced"
    ]


def _stat(path: str) -> dict:
    try:
        return partitions.Stat.of(path).as_dict()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return {"path": path, "size": None, "mtime_ns": None}
