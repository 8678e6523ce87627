"""Make a repository hold exactly what is to be published, in one step that readers see as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from millrace.common.cli import Progress, log
from millrace.common.errors import MillraceError, counted
from millrace.common.hub import plan as plans
from millrace.common.hub.plan import CARD, File, Plan
from millrace.common.hub.repository import Repository, final, words

_ROUND = 10  # files that are sent in one round, of which the client sends five at a time
_CHANGES = 500  # of a commit of a first publication, for which the Hub has a minute
_ATTEMPTS, _LONGEST_WAIT = 8, 60.0


def publish(
    repository: Repository,
    files: Sequence[File],
    max_delete_fraction: float = 1.0,
    first_wait: float = 1.0,
) -> dict[str, Any]:
    """Make the repository hold `files`, and below plans.DATA nothing else. Returns the receipt: commit and
    files, without times and tokens, so that it is the same for the same publication.

    Plans from the remote tree, and anew after any error, until there is nothing to do. Raises MillraceError
    for too many deletes, for what no attempt mends, and after eight attempts in a row that sent nothing.
    """
    sent: dict[str, Any] = {}  # the client's operations of files whose bytes the Hub has, by path

    def attempt() -> None:
        if not repository.look():
            repository.api.create_repo(**repository.name, private=repository.private, exist_ok=True)
            repository.look()
        plan = plans.make(files, repository.tree())
        plan.check_deletes(max_delete_fraction)
        log.info("%s at %s: %s", repository.repo_id, repository.head[:12], ", ".join(plan.lines(0)))
        if plan.sends or plan.deletes:
            _send(repository, plan, sent)
            _commit(repository, plan, sent)
            if not _is_there(repository, plan, files):
                sent.clear()
                raise ConnectionError("the repository does not hold what was sent")

    _patiently(repository.repo_id, attempt, sent, first_wait)
    log.info("%s: %s at commit %s", repository.repo_id, counted(len(files), "file"), repository.head)
    rows = [{"path": file.path, "sha256": file.sha256, "size": file.size} for file in files]
    return {**repository.name, "commit": repository.head, "files": rows}


def difference(repository: Repository, files: Sequence[File], endpoint: str) -> str:
    """What publishing would change, for people; nothing is sent."""
    tree = _patiently(repository.repo_id, lambda: repository.tree() if repository.look() else [])
    state = f"at commit {repository.head}" if repository.head else "which does not exist yet"
    lines = plans.make(files, tree).lines()
    return "\n".join([f"{repository.repo_id} on {endpoint}, {state}:", *lines, ""])


def _patiently(name: str, attempt: Callable, sent: Sequence | dict = (), first_wait: float = 1.0) -> Any:
    """Try again after errors that pass; where more was sent than before, the Hub is slow but not down."""
    failures = before = 0
    while True:
        try:
            return attempt()
        except MillraceError:
            raise
        except Exception as error:  # the client lets through what its transports raise, of many kinds
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
    """One commit on the head that was planned from. A large first publication comes in several, with the
    card in the last: before it, nothing says how to load what is there."""
    from huggingface_hub import CommitOperationDelete

    changes: list[Any] = [CommitOperationDelete(file.path, is_folder=False) for file in plan.deletes]
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
    """Read back what was changed, as the rest is that of the parent commit; of very much, the whole tree."""
    paths = [file.path for file in plan.sends + plan.deletes]
    is_few = len(paths) <= _CHANGES
    rest = plans.make(plan.sends if is_few else files, repository.tree(paths if is_few else None))
    return not rest.sends and not rest.deletes


def _addition(file: File) -> Any:
    """The client's operation, which has read the file; raises MillraceError if it is not what it was."""
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(file.path, file.source)
    if operation.upload_info.sha256.hex() != file.sha256:
        raise MillraceError("it has changed since it was planned", str(file.source), "Run the workflow again")
    return operation
