"""The tars that manifests name, grouped into partitions; run while the workflow is parsed, so nothing
heavy."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from millrace.asr.manifests import files as manifest_files
from millrace.asr.tars.paths import one_spelling
from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.common.workflow import partitions


@dataclass
class Settings:
    """What of the lane's config decides on partitions. `partition_gb` is in 10^9 bytes of tar."""

    source: str
    manifest_dir: str
    tar_root: str
    tar_template: str
    partition_gb: float


@dataclass
class Sources:
    """What the rules need: files of manifests by split, partition ids. `message`: one line for the user, or
    empty."""

    manifests: dict[str, list[str]] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    message: str = ""


def load(folder: str | os.PathLike) -> Sources:
    """The partitions as the last sync left them."""
    try:
        found = Sources(**jsonl.read(Path(folder) / "index" / "partitions.json"))
    except FileNotFoundError:
        return Sources()
    # Earlier versions knew one file a split.
    found.manifests = {split: [at] if isinstance(at, str) else at for split, at in found.manifests.items()}
    return found


def sync(settings: Settings, folder: str | os.PathLike) -> Sources:
    """Bring `folder`/<partition>.json in step with the tars that the manifests name, and return the
    partitions.

    A partition holds path, size and mtime of tars of some `partition_gb` together; a tar never changes
    partition. A tar that is not there has no size: it is listed by the index with the reason, and looked for
    again at every parse.
    """
    folder = Path(folder)
    if settings.source != "manifests":
        return Sources()
    manifests = manifest_files.find(settings.manifest_dir)
    if "train" not in manifests:
        known = load(folder)
        known.message = (
            f"neither train.parquet nor train.jsonl in {settings.manifest_dir or 'asr.manifest_dir'}"
        )
        known.message += _near_misses(settings.manifest_dir)
        return known
    # Which tars a manifest names depends on these as well: with others the cache counts for nothing.
    roots = zlib.crc32(repr((2, settings.tar_root, settings.tar_template)).encode())
    cache = partitions.DigestCache(folder / "index" / "digests.json", version=roots)
    named: dict[str, None] = {}
    for split, paths in manifests.items():
        reader = _TarLister(split, settings)
        for path in paths:
            if "{" in path or "}" in path:
                raise MillraceError(
                    "Snakemake takes braces in a file's name for wildcards",
                    where=path,
                    remedy="Rename file or folder",
                )
            named.update(dict.fromkeys(cache.get(partitions.Stat.of(path), reader)))
    # Only grouping rests on this assignment: it may be lost, at the price of scanning the tars again.
    assignment = partitions.Assignment(folder / "index" / "assignment.jsonl", settings.partition_gb * 1e9)
    tars = {path: _stat(path) for path in sorted(set(one_spelling(named).values()))}
    sizes = [stat["size"] for stat in tars.values() if stat["size"] is not None]
    # A tar that is not there yet is taken for one like the others: all of them must not end in one partition.
    usual = sum(sizes) / len(sizes) if sizes else settings.partition_gb * 1e9 / 100
    contents: dict[str, dict] = {}
    for path, stat in tars.items():
        placement = assignment.place(path, "tars", float(usual if stat["size"] is None else stat["size"]))
        name = f"tars-{placement.number:05d}"
        contents.setdefault(name, {"id": name, "tars": []})["tars"].append(stat)
    assignment.save()
    partitions.sync_files(folder, contents)
    cache.save()
    found = Sources(manifests, sorted(contents))
    index = {"manifests": found.manifests, "partitions": found.partitions}
    atomic.write_if_changed(folder / "index" / "partitions.json", atomic.json_bytes(index))
    return found


def _near_misses(folder: str) -> str:
    """Names in the folder that look like a train manifest, for the message that there is none."""
    try:
        names = (
            sorted(name for name in os.listdir(folder) if name.lower().startswith("train")) if folder else []
        )
    except OSError:
        return ""
    return f" (nor pieces of it; {', '.join(names[:3])} is not read)" if names else ""


class _TarLister:
    """Reads which tars a manifest names; pyarrow is imported only when a manifest is new or has changed."""

    def __init__(self, split: str, settings: Settings) -> None:
        self.split, self.settings = split, settings

    def __call__(self, path: str) -> list[str]:
        from millrace.asr.manifests.manifest import manifests_of

        roots = (self.settings.tar_root, self.settings.tar_template)
        return sorted(
            {tar for found in manifests_of(self.split, [Path(path)], *roots) for tar in found.scan().tars}
        )


def _stat(path: str) -> dict:
    try:
        return partitions.Stat.of(path).as_dict()
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return {"path": path, "size": None, "mtime_ns": None}
