"""What a publication would change in a repository: files to publish against the tree that is there."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.common.errors import MillraceError, counted

# All that is published has such a path; only what lies below DATA is ever deleted.
PATH, DATA = re.compile(r"(?!\.)[\w.%~+-]+(/(?!\.)[\w.%~+-]+)*", re.ASCII), "data/"
CARD = "README.md"
_NAMED = 10  # files of each kind that a difference names


@dataclass(frozen=True)
class File:
    """A file to publish: its path in the repository, bytes, SHA-256, and where it lies, or its content."""

    path: str
    size: int
    sha256: str
    source: Path | bytes

    @classmethod
    def of(cls, path: str, source: Path | bytes) -> File:
        """Read size and digest off the source."""
        if isinstance(source, bytes):
            return cls(path, len(source), hashlib.sha256(source).hexdigest(), source)
        with open(source, "rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return cls(path, os.path.getsize(source), digest, source)

    def is_same(self, entry: Any) -> bool:
        """Whether a file of the remote tree has these bytes; of a small one git's SHA-1 is all there is."""
        if entry.size != self.size or entry.lfs:
            return entry.size == self.size and entry.lfs.sha256 == self.sha256
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return entry.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Plan:
    """What to add, change, keep and delete; how many files are below DATA now."""

    adds: list[File] = field(default_factory=list)
    changes: list[File] = field(default_factory=list)
    same: list[File] = field(default_factory=list)
    deletes: list[File] = field(default_factory=list)
    remote_data: int = 0

    @property
    def sends(self) -> list[File]:
        return self.adds + self.changes

    def lines(self, named: int = _NAMED) -> list[str]:
        """Files and bytes of each kind, and the names of the first `named` that would change."""
        kinds = {"delete": self.deletes, "add": self.adds, "change": self.changes, "keep": self.same}
        lines = []
        for kind, files in kinds.items():
            size = sum(file.size for file in files)
            lines += [
                f"{kind} {counted(len(files), 'file')} ({size:,} bytes)" if files else f"{kind} nothing"
            ]
            if named and kind != "keep":
                lines += [f"  {file.path} ({file.size:,} bytes)" for file in files[:named]]
                lines += [f"  and {len(files) - named} more"] if len(files) > named else []
        return lines

    def check_deletes(self, most: float) -> None:
        """Raise MillraceError if a larger share of what is below DATA would be deleted than `most`."""
        if len(self.deletes) > most * self.remote_data:
            share = f"{len(self.deletes)} of {self.remote_data} files below {DATA} would be deleted"
            remedy = (
                "If that is right: raise speech.hub.max_delete_fraction, or run this step with --allow-delete"
            )
            raise MillraceError(f"{share}, more than max_delete_fraction {most:g} allows", remedy=remedy)


def make(files: Iterable[File], tree: Iterable[Any]) -> Plan:
    """Compare the files with those of the repository (huggingface_hub's RepoFile).

    Below DATA nothing but `files` is to stay; what else lies in the repository is left alone.
    """
    plan, remote = Plan(), {entry.path: entry for entry in tree}
    plan.remote_data = sum(path.startswith(DATA) for path in remote)
    for file in files:
        if not PATH.fullmatch(file.path):
            raise MillraceError("not a path that can be published", repr(file.path))
        entry = remote.pop(file.path, None)
        (plan.adds if entry is None else plan.same if file.is_same(entry) else plan.changes).append(file)
    plan.deletes = [
        File(path, remote[path].size, "", b"") for path in sorted(remote) if path.startswith(DATA)
    ]
    return plan
