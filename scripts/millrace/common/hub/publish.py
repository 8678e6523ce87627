"""What a publication sends, keeps and deletes, so that a repository holds exactly that, and in how
many commits; readers see it as a whole."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.common.cli import Progress, log
from millrace.common.errors import MillraceError, counted
from millrace.common.hub.repository import RUN_AGAIN, Repository, explained

# All that is published has such a path; only what lies below DATA is ever deleted.
PATH = re.compile(r"(?!\.)[\w.%~+-]+(/(?!\.)[\w.%~+-]+)*", re.ASCII)
DATA = "data/"
CARD = "README.md"
_ROUND = 10  # files that are sent in one round, of which the client sends five at a time
_CHANGES = 500  # of a commit of a first publication, for which the Hub has a minute


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
        if isinstance(self.source, bytes):
            content = self.source
        else:
            content = self.source.read_bytes()
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
            if not files:
                lines.append(f"{kind} nothing")
                continue
            size = sum(file.size for file in files)
            lines.append(f"{kind} {counted(len(files), 'file')} ({size:,} bytes)")
            if named and kind != "keep":
                lines += [f"  {file.path} ({file.size:,} bytes)" for file in files[:named]]
                if len(files) > named:
                    lines.append(f"  and {len(files) - named} more")
        return lines

    def check_deletes(self, most: float) -> None:
        """Raise MillraceError if a larger share of what is below DATA would be deleted than
        `most`."""
        files = self.changes + self.same + self.deletes
        there = sum(file.path.startswith(DATA) for file in files)
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
    plan = Plan()
    remote = {entry.path: entry for entry in tree}
    for file in files:
        if not PATH.fullmatch(file.path):
            raise MillraceError("not a path that can be published", repr(file.path))
        entry = remote.pop(file.path, None)
        if entry is None:
            plan.adds.append(file)
        elif file.is_same(entry):
            plan.same.append(file)
        else:
            plan.changes.append(file)
    for path, entry in remote.items():
        if path.startswith(DATA):
            plan.deletes.append(File(path, entry.size, "", b""))
    return plan


def publish(
    repository: Repository, files: Sequence[File], max_delete_fraction: float = 1.0
) -> dict[str, Any]:
    """Make the repository hold `files`, and below DATA nothing else. Returns the receipt: commit
    and files, without times and tokens, so that it is the same for the same publication.

    The client waits and tries again where sending fails; raises MillraceError for all else that
    goes wrong. The next call plans anew from what is there, and sends no bytes a second time.
    """
    with explained(repository.repo_id):
        if not repository.exists():
            repository.create()
        plan = make_plan(files, repository.tree())
        plan.check_deletes(max_delete_fraction)
        words = ", ".join(plan.lines(0))
        log.info("%s at %s: %s", repository.repo_id, repository.head[:12], words)
        if plan.sends or plan.deletes:
            _commit(repository, plan, _sent(repository, plan))
            _check(repository, files)
    log.info(
        "%s: %s at commit %s", repository.repo_id, counted(len(files), "file"), repository.head
    )
    rows = [{"path": file.path, "sha256": file.sha256, "size": file.size} for file in files]
    return {
        **repository.name,
        "commit": repository.head,
        "files": rows,
    }


def difference(repository: Repository, files: Sequence[File], endpoint: str) -> str:
    """What publishing would change, for people; nothing is sent."""
    with explained(repository.repo_id):
        tree = repository.tree() if repository.exists() else []
    state = f"at commit {repository.head}" if repository.head else "which does not exist yet"
    lines = make_plan(files, tree).lines()
    return "\n".join([f"{repository.repo_id} on {endpoint}, {state}:", *lines, ""])


def _sent(repository: Repository, plan: Plan) -> list[Any]:
    """The client's operations of the files to send, their bytes sent; nobody sees these before a
    commit names them. Card and manifest come last."""
    files = sorted(plan.sends, key=lambda file: isinstance(file.source, bytes))
    sent = []
    size = sum(file.size for file in files)
    with Progress(size / 1e6, "MB", repository.repo_id) as progress:
        for start in range(0, len(files), _ROUND):
            part = files[start : start + _ROUND]
            operations = [_addition(file) for file in part]
            repository.api.preupload_lfs_files(additions=operations, **repository.name)
            sent += operations
            progress.advance(sum(file.size for file in part) / 1e6)
    return sent


def _commit(repository: Repository, plan: Plan, additions: list[Any]) -> None:
    """One commit on the head that was planned from. A large first publication comes in several,
    with the card in the last: before it, nothing says how to load what is there."""
    from huggingface_hub import CommitOperationDelete

    changes = [CommitOperationDelete(file.path, is_folder=False) for file in plan.deletes]
    changes += additions
    is_first = any(file.path == CARD for file in plan.adds)
    size = _CHANGES if is_first else len(changes)
    message = f"Publish with Millrace: {', '.join(plan.lines(0))}"
    for start in range(0, len(changes), size):
        commit = repository.api.create_commit(
            operations=changes[start : start + size],
            commit_message=message,
            parent_commit=repository.head,
            **repository.name,
        )
        repository.head = commit.oid


def _check(repository: Repository, files: Sequence[File]) -> None:
    """Read back what the repository holds now."""
    rest = make_plan(files, repository.tree())
    if rest.sends or rest.deletes:
        problem = "the repository does not hold what was sent"
        raise MillraceError(problem, repository.repo_id, RUN_AGAIN)


def _addition(file: File) -> Any:
    """The client's operation, which has read the file; raises MillraceError if it is not what it
    was."""
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(file.path, file.source)
    if operation.upload_info.sha256.hex() != file.sha256:
        problem = "it has changed since it was planned"
        raise MillraceError(problem, str(file.source), "Run the workflow again")
    return operation
