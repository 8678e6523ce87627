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
PATH = re.compile(r"(?!\.)[\w.%~+-]+(/(?!\.)[\w.%~+-]+)*", re.ASCII)
DATA = "data/"
_NAMED = 10  # files that a diff names of each kind


@dataclass(frozen=True)
class File:
    """A file to publish: its path in the repository, size, SHA-256, and the file that holds it, or its bytes."""

    path: str
    size: int
    sha256: str
    source: Path | bytes

    @classmethod
    def of(cls, path: str, source: Path | bytes) -> File:
        """Read the size and digest off the source."""
        if isinstance(source, bytes):
            return cls(path, len(source), hashlib.sha256(source).hexdigest(), source)
        with open(source, "rb") as handle:
            return cls(
                path, os.path.getsize(source), hashlib.file_digest(handle, "sha256").hexdigest(), source
            )

    def is_same(self, entry: Any) -> bool:
        """Whether the file of a remote tree (huggingface_hub's RepoFile) has these bytes.

        Of large files the tree has the SHA-256; of the others git's SHA-1, for which small files are read.
        """
        if entry.size != self.size:
            return False
        if entry.lfs:
            return entry.lfs.sha256 == self.sha256
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return entry.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Plan:
    """Files to add and to change; (path, size) of what to delete and of what stays below DATA."""

    adds: list[File] = field(default_factory=list)
    changes: list[File] = field(default_factory=list)
    deletes: list[tuple[str, int]] = field(default_factory=list)
    same: list[File] = field(default_factory=list)
    remote_data: int = 0  # files that are below DATA now

    @property
    def sends(self) -> list[File]:
        return self.adds + self.changes

    @property
    def is_empty(self) -> bool:
        return not self.sends and not self.deletes

    def _groups(self) -> dict[str, list[tuple[str, int]]]:
        sends = {"add": self.adds, "change": self.changes}
        groups = {word: [(file.path, file.size) for file in files] for word, files in sends.items()}
        return {**groups, "delete": self.deletes, "keep": [(file.path, file.size) for file in self.same]}

    def summary(self) -> str:
        """One line, such as `add 2 files (1.2 MB), change none, …`."""
        groups = self._groups().items()
        return ", ".join(f"{word} {_amount(files)}" for word, files in groups)

    def lines(self) -> list[str]:
        """Counts and bytes of each kind, and the names of the first files that would change."""
        lines = []
        for word, files in self._groups().items():
            lines.append(f"{word:<7}{_amount(files)}")
            named = files[:_NAMED] if word != "keep" else []
            lines += [f"  {path} ({size:,} bytes)" for path, size in named]
            lines += [f"  and {len(files) - _NAMED} more"] if named and len(files) > _NAMED else []
        return lines

    def check_deletes(self, most: float, remedy: str) -> None:
        """Raise MillraceError if a larger share of what is below DATA would be deleted than `most`."""
        if len(self.deletes) > most * self.remote_data:
            share = f"{len(self.deletes)} of {self.remote_data} files below {DATA} would be deleted"
            raise MillraceError(f"{share}, more than max_delete_fraction {most:g} allows", remedy=remedy)


def make(files: Iterable[File], tree: Iterable[Any]) -> Plan:
    """Compare the files with the repository's (RepoFile, by path, size and digest).

    Below DATA nothing but `files` stays; what else lies in the repository is not ours, and is left alone.
    """
    plan, remote = Plan(), {entry.path: entry for entry in tree}
    plan.remote_data = sum(path.startswith(DATA) for path in remote)
    for file in files:
        if not PATH.fullmatch(file.path) or ".." in file.path:
            raise MillraceError("not a path that can be published", repr(file.path))
        entry = remote.pop(file.path, None)
        (plan.adds if entry is None else plan.same if file.is_same(entry) else plan.changes).append(file)
    plan.deletes = [(path, entry.size) for path, entry in sorted(remote.items()) if path.startswith(DATA)]
    return plan


def _amount(files: list[tuple[str, int]]) -> str:
    size = sum(size for _, size in files)
    return f"{counted(len(files), 'file')} ({size / 1e6:,.1f} MB)" if files else "nothing"
