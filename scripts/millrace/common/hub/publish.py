"""Make a repository hold exactly what is to be published, in one step that readers see as a
whole."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.common.cli import Progress, log
from millrace.common.errors import MillraceError, counted
from millrace.common.hub.repository import Repository, final, words

# All that is published has such a path; only what lies below DATA is ever deleted.
PATH, DATA = re.compile(r"(?!\.)[\w.%~+-]+(/(?!\.)[\w.%~+-]+)*", re.ASCII), "data/"
CARD = "README.md"
_ROUND = 10  # files that are sent in one round, of which the client sends five at a time
_CHANGES = 500  # of a commit of a first publication, for which the Hub has a minute
_ATTEMPTS, _LONGEST_WAIT = 8, 60.0


@dataclass(frozen=True)
class File:
    """A file to publish: its path in the repository, bytes, SHA-256, and where it lies, or its
    content."""

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
        """Whether a file of the remote tree has these bytes; of a small one git's SHA-1 is all
        there is."""
        if entry.size != self.size or entry.lfs:
            return entry.size == self.size and entry.lfs.sha256 == self.sha256
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return entry.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Plan:
    """What to add, change, keep and delete."""

    adds: list[File] = field(default_factory=list)
    changes: list[File] = field(default_factory=list)
    same: list[File] = field(default_factory=list)
    deletes: list[File] = field(default_factory=list)

    @property
    def sends(self) -> list[File]:
        return self.adds + self.changes

    def lines(self, named: int = 10) -> list[str]:
        """Files and bytes of each kind, and the names of the first `named` that would change."""
        kinds = {
            "delete": self.deletes,
            "add": self.adds,
            "change": self.changes,
            "keep": self.same,
        }
        lines = []
        for kind, files in kinds.items():
            size = sum(file.size for file in files)
            lines += [
                (
                    f"{kind} {counted(len(files), 'file')} ({size:,} bytes)"
                    if files
                    else f"{kind} nothing"
                )
            ]
            if named and kind != "keep":
                lines += [f"  {file.path} ({file.size:,} bytes)" for file in files[:named]]
                lines += [f"  and {len(files) - named} more"] if len(files) > named else []
        return lines

    def check_deletes(self, most: float) -> None:
        """Raise MillraceError if a larger share of what is below DATA would be deleted than
        `most`."""
        there = sum(file.path.startswith(DATA) for file in self.changes + self.same + self.deletes)
        if len(self.deletes) > most * there:
            share = f"{len(self.deletes)} of {there} files below {DATA} would be deleted"
            remedy = (
                "If that is right: raise speech.hub.max_delete_fraction, or run this step with"
                " --allow-delete"
            )
            raise MillraceError(
                f"{share}, more than max_delete_fraction {most:g} allows", remedy=remedy
            )


def make_plan(files: Iterable[File], tree: Iterable[Any]) -> Plan:
    """Compare the files with those of the repository (huggingface_hub's RepoFile).

    Below DATA nothing but `files` is to stay; what else lies in the repository is left alone.
    """
    plan, remote = Plan(), {entry.path: entry for entry in tree}
    for file in files:
        if not PATH.fullmatch(file.path):
            raise MillraceError("not a path that can be published", repr(file.path))
        entry = remote.pop(file.path, None)
        (plan.adds if entry is None else plan.same if file.is_same(entry) else plan.changes).append(
            file
        )
    plan.deletes = [
        File(path, remote[path].size, "", b"") for path in sorted(remote) if path.startswith(DATA)
    ]
    return plan


def publish(
    repository: Repository,
    files: Sequence[File],
    max_delete_fraction: float = 1.0,
    first_wait: float = 1.0,
) -> dict[str, Any]:
    """Make the repository hold `files`, and below DATA nothing else. Returns the receipt: commit
    and files, without times and tokens, so that it is the same for the same publication.

    Plans from the remote tree, and anew after any error, until there is nothing to do. Raises
    MillraceError for too many deletes, for what no attempt mends, and after eight attempts in a row
    that sent nothing.
    """
    sent: dict[str, Any] = {}  # the client's operations of files whose bytes the Hub has, by path

    def attempt() -> None:
        if not repository.look():
            repository.api.create_repo(**repository.name, private=repository.private, exist_ok=True)
            repository.look()
        plan = make_plan(files, repository.tree())
        plan.check_deletes(max_delete_fraction)
        log.info("%s at %s: %s", repository.repo_id, repository.head[:12], ", ".join(plan.lines(0)))
        if plan.sends or plan.deletes:
            _send(repository, plan, sent)
            _commit(repository, plan, sent)
            if not _is_there(repository, plan, files):
                sent.clear()
                raise ConnectionError("the repository does not hold what was sent")

    _patiently(repository.repo_id, attempt, sent, first_wait)
    log.info(
        "%s: %s at commit %s", repository.repo_id, counted(len(files), "file"), repository.head
    )
    rows = [{"path": file.path, "sha256": file.sha256, "size": file.size} for file in files]
    return {**repository.name, "commit": repository.head, "files": rows}


def difference(repository: Repository, files: Sequence[File], endpoint: str) -> str:
    """What publishing would change, for people; nothing is sent."""
    tree = _patiently(repository.repo_id, lambda: repository.tree() if repository.look() else [])
    state = f"at commit {repository.head}" if repository.head else "which does not exist yet"
    lines = make_plan(files, tree).lines()
    return "\n".join([f"{repository.repo_id} on {endpoint}, {state}:", *lines, ""])


def _patiently(
    name: str, attempt: Callable, sent: Sequence | dict = (), first_wait: float = 1.0
) -> Any:
    """Try again after errors that pass; where more was sent than before, the Hub is slow but not
    down."""
    failures = before = 0
    while True:
        try:
            return attempt()
        except MillraceError:
            raise
        except (
            Exception
        ) as error:  # the client lets through what its transports raise, of many kinds
            if problem := final(error, name):
                raise problem from error
            failures, before = 1 if len(sent) > before else failures + 1, len(sent)
            if failures == _ATTEMPTS:
                remedy = "Try again later: what was sent is not sent again"
                raise MillraceError(f"no success ({words(error)})", name, remedy) from error
            wait = min(first_wait * 2 ** (failures - 1), _LONGEST_WAIT)
            log.warning("%s: %s; again in %.3g s", name, words(error), wait)
            time.sleep(wait)


def _send(repository: Repository, plan: Plan, sent: dict[str, Any]) -> None:
    """Send bytes; nobody sees them before a commit names them."""
    files = [file for file in plan.sends if isinstance(file.source, Path) and file.path not in sent]
    with Progress(sum(file.size for file in files) / 1e6, "MB", repository.repo_id) as progress:
        for start in range(0, len(files), _ROUND):
            operations = {file.path: _addition(file) for file in files[start : start + _ROUND]}
            repository.api.preupload_lfs_files(additions=operations.values(), **repository.name)
            sent |= operations
            progress.advance(sum(file.size for file in files[start : start + _ROUND]) / 1e6)


def _commit(repository: Repository, plan: Plan, sent: dict[str, Any]) -> None:
    """One commit on the head that was planned from. A large first publication comes in several,
    with the card in the last: before it, nothing says how to load what is there."""
    from huggingface_hub import CommitOperationDelete

    changes: list[Any] = [
        CommitOperationDelete(file.path, is_folder=False) for file in plan.deletes
    ]
    # Copies, as the client takes an operation once; card and manifest go last.
    sends = sorted(plan.sends, key=lambda file: isinstance(file.source, bytes))
    changes += [copy(sent.get(file.path) or _addition(file)) for file in sends]
    is_first = any(file.path == CARD for file in plan.adds)
    size = _CHANGES if is_first else len(changes)
    message = f"Publish with Millrace: {', '.join(plan.lines(0))}"
    for start in range(0, len(changes), size):
        options = {"commit_message": message, "parent_commit": repository.head, **repository.name}
        part = changes[start : start + size]
        repository.head = repository.api.create_commit(operations=part, **options).oid


def _is_there(repository: Repository, plan: Plan, files: Sequence[File]) -> bool:
    """Read back what was changed, as the rest is that of the parent commit; of very much, the whole
    tree."""
    paths = [file.path for file in plan.sends + plan.deletes]
    is_few = len(paths) <= _CHANGES
    rest = make_plan(plan.sends if is_few else files, repository.tree(paths if is_few else None))
    return not rest.sends and not rest.deletes


def _addition(file: File) -> Any:
    """The client's operation, which has read the file; raises MillraceError if it is not what it
    was."""
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(file.path, file.source)
    if operation.upload_info.sha256.hex() != file.sha256:
        raise MillraceError(
            "it has changed since it was planned", str(file.source), "Run the workflow again"
        )
    return operation
