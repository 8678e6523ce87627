"""The ASR lane's sources: the tars that manifests name. Imported by every parse, so nothing
heavy."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from millrace.asr.manifests import files as manifest_files
from millrace.asr.tars.paths import one_spelling
from millrace.common import jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.path_map import PathMap
from millrace.common.workflow import built, partitions
from millrace.common.workflow.built import Items
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


class ManifestFacts(NamedTuple):
    """What is known of a manifest. Of Parquet, and of what was read in part, only the tars."""

    tars: list[str]
    is_part: bool
    content: str | None  # rows and their digest, in words
    broken: int  # lines
    first_broken: str  # what is wrong with the first of them

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> ManifestFacts:
        content = f"{row['rows']} rows, {row['content']}" if row.get("content") else None
        broken, first_broken = row.get("broken") or (0, "")
        return cls(row["tars"], bool(row.get("part")), content, broken, first_broken)


class _Manifests:
    """The manifests of all splits; what was read of one is in a table, until the file changes.

    A dry run has no time for all that is new: after some bytes it looks at a few places of each
    file only.
    """

    def __init__(
        self,
        settings: Settings,
        files: Mapping[str, list[str]],
        as_built: Mapping[str, Mapping],
        table: Tables,
    ) -> None:
        self.settings, self.as_built = settings, as_built
        self.split_of = {path: split for split, paths in files.items() for path in paths}
        self.stats = {path: Stat.of(path) for path in self.split_of}
        # Which tars a manifest names depends on these as well: with others the tables count for
        # nothing.
        version = zlib.crc32(repr((5, settings.tar_root, settings.tar_template)).encode())
        self.digests = table("digests", version)
        self._in_part = table("in_part", version)
        self._bytes_left = _READ
        self._step = sum(stat.size for stat in self.stats.values()) // _PLACES

    def facts(self, path: str) -> ManifestFacts:
        """What a manifest says. What it said when it was read whole stays known: an edit may be
        undone."""
        stat = self.stats[path]
        is_large = self._in_part.knows(stat) or stat.size > self._bytes_left
        if is_large and not self.digests.knows(stat):
            self.digests.retain(path)
            return ManifestFacts.parse(self._in_part.get(stat, self._read_in_part))
        return ManifestFacts.parse(self.digests.get(stat, self._read))

    def read_whole(self, path: str) -> ManifestFacts:
        """The facts of a manifest that was read in part, now read to its end."""
        return ManifestFacts.parse(self.digests.get(self.stats[path], self._read, again=True))

    def _open(self, path: str) -> Any:
        # Here, as it imports pyarrow, which a parse needs only if a manifest is new.
        from millrace.asr.manifests.manifest import manifests_of

        tar_root, tar_template = self.settings.tar_root, self.settings.tar_template
        (manifest,) = manifests_of(self.split_of[path], [Path(path)], tar_root, tar_template)
        return manifest

    def _read(self, path: str) -> dict[str, Any]:
        """The `tars` that a manifest names; of JSONL its rows and content, too.

        What came broken is rejected by row. What has been broken since it was built, and since it
        was read last, is a slip: an error.
        """
        manifest = self._open(path)
        if not hasattr(manifest, "facts"):  # Parquet, which is quick to read
            return {"tars": manifest.scan().tars}

        self._bytes_left -= self.stats[path].size
        row = manifest.facts(0)
        broken, first_broken = row["broken"]
        broken_before = self._broken_before(path)
        if broken_before is not None:
            when_built = self.as_built.get(path, {}).get("broken", 0)
            if broken > max(broken_before[0], when_built):
                raise MillraceError(f"{path}, {first_broken}", remedy="Mend the line, or remove it")
        return row

    def _read_in_part(self, path: str) -> dict[str, Any]:
        """Some of the `tars` that large JSONL names, as a `part`; of other files all."""
        manifest = self._open(path)
        if not hasattr(manifest, "facts"):
            return {"tars": manifest.scan().tars}
        tars = manifest.some_tars(0, self._step)
        return {"tars": tars, "part": True, "broken": self._broken_before(path)}

    def _broken_before(self, path: str) -> Any:
        """How many lines were broken when the manifest was read last, and what is wrong with the
        first."""
        return (self.digests.last(path) or {}).get("broken") or None


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
    beside, items = folder / "manifests", _items(folder.parent)
    built.keep(beside, items["manifests"])
    copy = jsonl.read_or({}, beside / "built/all.json")
    as_built = {each["path"]: each for each in copy.get("tars", ())}

    manifests = _Manifests(settings, files, as_built, table)
    facts = {path: manifests.facts(path) for path in manifests.split_of}
    named = dict.fromkeys(tar for each in facts.values() for tar in each.tars)
    state_when_built = {path: each["is"] for path, each in as_built.items()}
    states = _states(manifests.stats, facts, state_when_built, table("manifests"))

    path_map = PathMap(settings.path_map)
    tars = _stats_of_tars(named, path_map)
    notes = path_map.warnings("asr.path_map", "tar paths")
    notes += _broken_notes(facts)
    notes += _missing_notes(tars, notes, settings.manifest_dir)
    partly_read = [path for path, each in facts.items() if each.is_part]
    if partly_read:
        size = sum(manifests.stats[path].size for path in partly_read) / 1e9
        notes.append(
            f"{size:.1f} GB of manifests are read in part; a run reads all before its first job"
        )

    def build(write: Write) -> Partitions:
        assignment = _assigned(tars, folder / "index/assignment.jsonl", settings.partition_gb * 1e9)
        by_partition: dict[str, list[dict]] = defaultdict(list)
        for path, stat in tars.items():
            by_partition[f"tars-{assignment.placements[path].number:05d}"].append(stat)
        for name, stats in by_partition.items():
            write(name, {"id": name, "tars": stats})
        return Partitions(
            assignment,
            groups={"tars": sorted(by_partition)},
            total=len(tars),
            files=files,
            others={"manifests": _manifests_content(states, facts)},
            notes=notes,
        )

    def check() -> None:
        whole = _read_to_their_ends(manifests, partly_read, named)
        contents = {path: each.content for path, each in whole.items()}
        content = _manifests_content({**states, **contents}, {**facts, **whole})
        partitions.sync_files(beside, content)

    return Found(
        build,
        items=items,
        then="the buckets",
        unchanged={path for path, state in states.items() if state_when_built.get(path) == state},
        check=check if partly_read else lambda: None,
    )


def _manifest_files(manifest_dir: str) -> dict[str, list[str]]:
    """The manifests by split. Raises SourcesMissing without one of train."""
    files = manifest_files.find(manifest_dir)
    if "train" not in files:
        expected = "train.parquet or train.jsonl (dev and test too)"
        place = Path(manifest_dir or "''")
        patterns = ("train*.parquet", "train*.json*", "train*/*.parquet", "train*/*.json*")
        raise SourcesMissing(misplaced("asr.manifest_dir", place, expected, *patterns))
    for path in (path for paths in files.values() for path in paths):
        if "{" in path or "}" in path:
            problem = "Snakemake takes braces in a file's name for wildcards"
            raise MillraceError(problem, path, "Rename file or folder")
    return files


def _items(results: Path) -> dict[str, Items]:
    """How partition files, and the file of the manifests, are compared with what was built."""
    return {
        "": Items("tar", _files, _kinds, [f"{results}/tar_index/{{}}.parquet"]),
        "manifests": Items("manifest", _files, _kinds, [f"{results}/buckets/bucket_config.json"]),
    }


def _stats_of_tars(named: Mapping[str, None], path_map: PathMap) -> dict[str, dict]:
    """Path, size and mtime of the tars that manifests name, each tar once; no size if it is
    missing."""
    mapped = dict.fromkeys(next(iter(path_map.mapped(path)), path) for path in named)
    return {path: _stat(path) for path in sorted(set(one_spelling(mapped).values()))}


def _broken_notes(facts: Mapping[str, ManifestFacts]) -> list[str]:
    return [
        f"{path}, {each.first_broken} ({counted(each.broken, 'broken line')}, rejected)"
        for path, each in facts.items()
        if each.broken
    ]


def _missing_notes(tars: Mapping[str, dict], notes: list[str], manifest_dir: str) -> list[str]:
    """A line if tars are missing. Raises MillraceError, which repeats the other notes, if all
    are."""
    if not tars:
        remedy = "Each row needs tar_path, or shard_id: audio that is not in tars is not read"
        raise MillraceError("the manifests name no tars", manifest_dir, remedy)
    missing = [path for path, stat in tars.items() if stat["size"] is None]
    if not missing:
        return []
    problem = f"{len(missing)} of {len(tars)} tars are missing, for example {missing[0]}"
    remedy = "Set asr.tar_root, asr.tar_template or asr.path_map, or bring the tars"
    if len(missing) == len(tars):
        raise MillraceError(". ".join([problem, *notes]), manifest_dir, remedy)
    return [f"{problem}: their rows are rejected. {remedy}"]


def _assigned(tars: Mapping[str, dict], path: Path, limit: float) -> Assignment:
    """The partitions of the tars. They only group: if the file is lost, tars are scanned once
    more."""
    assignment = Assignment(path, limit)
    sizes = [stat["size"] for stat in tars.values() if stat["size"] is not None]
    # A tar that is missing is taken for one like the others: all of them must not end in one
    # partition.
    usual_size = sum(sizes) / len(sizes) if sizes else limit / 100
    for tar, stat in tars.items():
        size = usual_size if stat["size"] is None else stat["size"]
        assignment.place(tar, "tars", float(size))
    return assignment


def _states(
    stats: Mapping[str, Stat],
    facts: Mapping[str, ManifestFacts],
    when_built: Mapping[str, Any],
    once: DigestCache,
) -> dict[str, Any]:
    """What tells each manifest from the one that was built from: a digest of its ends, or size and
    times.

    Where that differs and the file was read whole, its content decides: it may only have been
    touched, or was built before contents were noted.
    """
    digest = partial(jsonl.head_tail_digest, block=_COMPARED)
    states: dict[str, Any] = {}
    for path, stat in stats.items():
        state_when_built = when_built.get(path)
        state = once.get(stat, digest) if stat.size < _COMPARED else stat.signature
        if facts[path].content and state_when_built != state:
            state = facts[path].content
        # Put back with its time it is another file, but the same.
        states[path] = state_when_built if _as_before(state_when_built, stat) else state
    return states


def _manifests_content(
    states: Mapping[str, Any], facts: Mapping[str, ManifestFacts]
) -> dict[str, dict]:
    """The file of the manifests' states; it has the form of a partition file, so that `built`
    compares it."""
    files = []
    for path, state in states.items():
        file = {"path": path, "size": 0, "is": state}
        if facts[path].broken:
            file["broken"] = facts[path].broken
        files.append(file)
    return {"all": {"tars": files}}


def _read_to_their_ends(
    manifests: _Manifests, paths: list[str], named: Collection[str]
) -> dict[str, ManifestFacts]:
    """Read what a dry run has no time for. Raises MillraceError for tars that are not among those
    `named`: their indexes are not planned."""
    whole = {}
    for path in paths:
        whole[path] = manifests.read_whole(path)
        unseen = set(whole[path].tars).difference(named)
        if unseen:
            manifests.digests.save()
            tar = min(unseen)
            problem = f"it names {len(unseen)} tars that the dry run has not seen, such as {tar}"
            raise MillraceError(problem, path, "Start again: now they are known")
    manifests.digests.save()
    return whole


def _as_before(state: Any, stat: Stat) -> bool:
    """Whether a manifest that is known by its signature has the size and time that it had."""
    return isinstance(state, list) and state[:2] == stat.signature[:2]


def _files(content: Mapping) -> dict[str, dict]:
    return {file["path"]: file for file in content["tars"]}


def _kinds(old: Mapping, new: Mapping) -> list[str]:
    """What differs between two states of a tar, or of a manifest."""
    rows_before, rows_now = _rows(old), _rows(new)
    if rows_before is not None and rows_now is not None:
        more = rows_now - rows_before
        if more == 0:
            return ["rows changed"]
        return [f"{more} rows more" if more > 0 else f"{-more} rows fewer"]
    if old["size"] is None:
        return ["no longer missing"]
    return ["missing" if new["size"] is None else "replaced"]


def _rows(manifest: Mapping) -> int | None:
    """The rows of a manifest that was read whole."""
    state = str(manifest.get("is"))
    return int(state.split()[0]) if " rows, " in state else None


def _stat(path: str) -> dict:
    try:
        return Stat.of(path).as_dict()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return {"path": path, "size": None, "mtime_ns": None}
