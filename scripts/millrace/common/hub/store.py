"""Repositories of the local Hub on disk: contents by SHA-256, the files of every commit, one
branch, and uploads that were abandoned.

A reader follows `main` to a commit and from there to contents. All three are written beside their
place and renamed, contents first and `main` last, so that a process killed at any moment leaves a
whole repository.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import orjson

from millrace.common import atomic

BRANCH = "main"
_REPOSITORY = re.compile(r"(\w(?:[\w-]|\.(?!\.)){0,95})/(\w(?:[\w-]|\.(?!\.)){0,95})", re.ASCII)
_PATH = re.compile(r"(?!\.git/|.*/\.git/)(?:(?!\.\.?/)[^/\0-\x1f\x7f]+/)+")
# What the Hub itself puts into a new repository.
_GITATTRIBUTES = b"*.tar filter=lfs diff=lfs merge=lfs -text\n"
_ABANDONED_SECONDS = 86400


class RefusedError(Exception):
    """A request that cannot be served: the HTTP status, a message, the Hub's name of the error."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Store:
    """The contents of all repositories."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder).absolute()
        self.uploads = self.folder / "uploads"
        self.uploads.mkdir(parents=True, exist_ok=True)
        for path in self.uploads.glob("*"):
            if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)

    def content(self, sha256: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise RefusedError(400, f"not a SHA-256: {sha256!r}")
        return self.folder / "contents" / sha256[:2] / sha256

    def add(self, partial: Path, sha256: str, size: int) -> None:
        """Take in a file as the content `sha256`, if it is that."""
        with open(partial, "rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
            length = handle.tell()
            os.fsync(handle.fileno())
        if (digest, length) != (sha256, size):
            problem = f"{size} bytes of {sha256} were due, {length} of {digest} came"
            raise RefusedError(400, problem)
        self.content(sha256).parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, self.content(sha256))

    def require(self, sums: set[str]) -> None:
        """Refuse a commit that names contents which were not uploaded."""
        missing = {sha256 for sha256 in sums if not self.content(sha256).exists()}
        if missing:
            problem = f"{len(missing)} contents were not uploaded, the first is {min(missing)}"
            raise RefusedError(400, problem)


class Repository:
    """The repository `owner/name` of the kind `datasets` or `models`, which need not exist yet."""

    def __init__(self, store: Store, kind: str, name: str) -> None:
        if not _REPOSITORY.fullmatch(name):
            raise RefusedError(400, f"{name!r} is not of the form owner/name")
        self.store = store
        self.name = name
        self.folder = store.folder / kind / name
        self.is_private = (self.folder / "private").exists()

    def create(self, private: bool) -> bool:
        """Make the repository with a first commit; False if it is there."""
        with self._locked():
            if (self.folder / BRANCH).exists():
                return False
            if private:
                atomic.write_text(self.folder / "private", "")
            files = {".gitattributes": self._text(".gitattributes", _GITATTRIBUTES)}
            self._write("", "initial commit", files)
            return True

    def commit_at(self, revision: str) -> dict:
        """The commit that the branch or an oid names, as `_read_commit` gives it."""
        if not (self.folder / BRANCH).is_file():
            raise RefusedError(404, f"no repository {self.name}", "RepoNotFound")
        oid = revision
        if revision == BRANCH:
            oid = (self.folder / BRANCH).read_text()
        path = self.folder / "commits" / f"{oid}.json"
        if not re.fullmatch("[0-9a-f]{40}", oid) or not path.is_file():
            raise RefusedError(404, f"{self.name} has no revision {revision}", "RevisionNotFound")
        return _read_commit(path)

    def change(self, title: str, parent: str | None, operations: list[dict]) -> str:
        """Commit all operations, as the client sends them, or none; the oid."""
        for operation in operations:
            path = operation["value"]["path"]
            if not _PATH.fullmatch(f"{path}/"):
                raise RefusedError(400, f"{path!r} is not a path inside a repository")
        uploads = {
            operation["value"]["oid"] for operation in operations if operation["key"] == "lfsFile"
        }
        self.store.require(uploads)
        with self._locked():
            head = self.commit_at(BRANCH)
            if parent not in (None, head["oid"]):
                problem = "A commit has happened since. Please refresh and try again."
                raise RefusedError(412, problem)
            files = dict(head["files"])
            for operation in operations:
                self._apply(operation["key"], operation["value"], files)
            return self._write(head["oid"], title, files)

    def _apply(self, kind: str, value: dict, files: dict[str, dict]) -> None:
        """Do one operation of a commit."""
        path = value["path"]
        if kind == "file":
            files[path] = self._text(path, base64.b64decode(value["content"]))
        elif kind == "lfsFile":
            files[path] = self._pointer(path, value["oid"])
        elif path in files:
            del files[path]
        else:
            raise RefusedError(404, f"no file {path!r} to delete", "EntryNotFound")

    def _write(self, parent: str, title: str, files: dict[str, dict]) -> str:
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        data = orjson.dumps({"parent": parent, "title": title, "date": date, "files": files})
        oid = hashlib.sha1(data).hexdigest()
        commits = self.folder / "commits"
        atomic.sweep_folder(commits)  # no later one has the name of one that was killed
        atomic.write_bytes(commits / f"{oid}.json", data)
        atomic.write_text(self.folder / BRANCH, oid)
        return oid

    def _text(self, path: str, data: bytes) -> dict:
        """A file that came with the commit, as the Hub lists it."""
        sha256 = hashlib.sha256(data).hexdigest()
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        atomic.write_bytes(self.store.content(sha256), data)
        return _listed(path, len(data), oid, sha256)

    def _pointer(self, path: str, sha256: str) -> dict:
        """A file that was uploaded before the commit, as the Hub lists it; its `oid` is not
        git's."""
        size = self.store.content(sha256).stat().st_size
        lfs = {"oid": sha256, "size": size, "pointerSize": 134}
        return {**_listed(path, size, sha256[:40], sha256), "lfs": lfs}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, also where two servers share the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _listed(path: str, size: int, oid: str, sha256: str) -> dict:
    return {
        "type": "file",
        "path": path,
        "size": size,
        "oid": oid,
        "sha256": sha256,
    }


@functools.lru_cache(maxsize=8)
def _read_commit(path: Path) -> dict:
    """Oid, parent, title, date, files; `entries` has files and folders, sorted."""
    commit = orjson.loads(path.read_bytes())
    entries = dict(commit["files"])
    for name in commit["files"]:
        for folder in PurePosixPath(name).parents[:-1]:
            entries[str(folder)] = {
                "type": "directory",
                "path": str(folder),
                "size": 0,
                "oid": path.stem,
            }
    commit["oid"] = path.stem
    commit["entries"] = {name: entries[name] for name in sorted(entries)}
    return commit
