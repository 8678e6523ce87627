"""Make a repository hold exactly what is to be published, in one step that readers see as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from millrace.common.cli import Progress, log
from millrace.common.errors import MillraceError
from millrace.common.hub import plan as plans
from millrace.common.hub.plan import File, Plan
from millrace.common.hub.repository import Repository, final, retry_after, words

_FILES, _BYTES = 50, 2_000_000_000  # of a round of uploads
_CHANGES = 500  # of one commit, for which the Hub has a minute
_ATTEMPTS, _LONGEST_WAIT, _LONGEST_ASKED = 8, 60.0, 3600.0


def publish(
    repository: Repository,
    files: Sequence[File],
    check: Callable[[Plan], None] = lambda plan: None,
    first_wait: float = 1.0,
) -> None:
    """Make the repository hold `files`, and below plans.DATA nothing else; its head is the commit then.

    Plans from the remote tree, and anew after any error, until there is nothing to do. `check` may refuse a
    plan by raising MillraceError. Raises MillraceError for what no attempt mends, and after eight in vain.
    """
    upload = _Upload(repository, files, check)
    _patiently(repository.repo_id, upload.attempt, lambda: upload.steps, first_wait)


def difference(repository: Repository, files: Sequence[File], endpoint: str) -> str:
    """What publishing would change, for people; nothing is sent."""
    tree = _patiently(repository.repo_id, lambda: repository.tree() if repository.look() else [])
    state = f"at commit {repository.head}" if repository.head else "which does not exist yet"
    lines = plans.make(files, tree).lines()
    return "\n".join([f"{repository.repo_id} on {endpoint}, {state}:", *lines, ""])


def _patiently(name: str, attempt: Callable, steps: Callable = lambda: 0, first_wait: float = 1.0) -> Any:
    """Try again after errors that pass; `steps` counts successes: a slow Hub is none that is down."""
    failures = before = 0
    while True:
        try:
            return attempt()
        except MillraceError:
            raise
        except Exception as error:  # the client lets through what its transports raise, of many kinds
            if problem := final(error, name):
                raise problem from error
            failures, before = 1 if steps() > before else failures + 1, steps()
            asked = retry_after(error)
            if failures >= _ATTEMPTS or asked > _LONGEST_ASKED:
                when = f"in {asked:.0f} s" if asked else "when the Hub can be reached"
                remedy = f"Try again {when}: what was sent is not sent again"
                raise MillraceError(f"no success ({words(error)})", name, remedy) from error
            wait = max(asked, min(first_wait * 2 ** (failures - 1), _LONGEST_WAIT))
            log.warning("%s: %s; again in %.3g s", name, words(error), wait)
            time.sleep(wait)


class _Upload:
    """A publication under way: what of it the Hub has already."""

    def __init__(self, repository: Repository, files: Sequence[File], check: Callable[[Plan], None]) -> None:
        self.repository, self.files, self.check = repository, files, check
        self.operations: dict[str, Any] = {}  # files whose bytes were sent, by path
        self.steps = 0

    def attempt(self) -> None:
        """From the tree that is there to the one that is to be; any exception leaves readers with either."""
        repository = self.repository
        if not repository.look():
            repository.api.create_repo(**repository.name, private=repository.private, exist_ok=True)
            repository.look()
        plan = plans.make(self.files, repository.tree())
        self.check(plan)
        log.info("%s at %s: %s", repository.repo_id, repository.head[:12], ", ".join(plan.lines(0)))
        if plan.sends or plan.deletes:
            self._send(plan)
            self._commit(plan)
            self._verify(plan)

    def _send(self, plan: Plan) -> None:
        """Send bytes; nobody sees them before a commit names them."""
        waiting = [file for file in plan.sends if isinstance(file.source, Path)]
        waiting = [file for file in waiting if file.path not in self.operations]
        with Progress(sum(file.size for file in waiting) / 1e6, "MB", self.repository.repo_id) as progress:
            for files in _rounds(waiting):
                operations = {file.path: _addition(file) for file in files}
                self.repository.api.preupload_lfs_files(additions=operations.values(), **self.repository.name)
                self.operations |= operations
                self.steps += 1
                progress.advance(sum(file.size for file in files) / 1e6)

    def _commit(self, plan: Plan) -> None:
        """One commit on the head that was planned from; very many changes as a pull request, then merged."""
        from huggingface_hub import CommitOperationDelete

        repository, head = self.repository, self.repository.head
        # Copies, as the client takes an operation once.
        changes = [copy(self.operations.get(file.path) or _addition(file)) for file in plan.sends]
        changes += [CommitOperationDelete(path, is_folder=False) for path, _ in plan.deletes]
        parts = [changes[start : start + _CHANGES] for start in range(0, len(changes), _CHANGES)]
        message = {"commit_message": f"Publish: {', '.join(plan.lines(0))}", **repository.name}
        create, many = repository.api.create_commit, len(parts) > 1
        commit = first = create(operations=parts[0], parent_commit=head, create_pr=many, **message)
        for part in parts[1:]:
            place = {"revision": first.pr_revision, "parent_commit": commit.oid}
            commit = create(operations=part, **place, **message)
            self.steps += 1
        if many:
            repository.look()
            if repository.head != head:
                raise ConnectionError("the repository has changed meanwhile")
            repository.api.merge_pull_request(discussion_num=first.pr_num, **repository.name)
            repository.look()
        else:
            repository.head = commit.oid

    def _verify(self, plan: Plan) -> None:
        """Read back what was changed: the rest is that of the parent commit."""
        deleted = {path for path, _ in plan.deletes}
        paths = [*(file.path for file in plan.sends), *deleted]
        tree = self.repository.tree(paths if len(paths) <= _CHANGES else None)
        if plans.make(plan.sends, tree).sends or deleted & {entry.path for entry in tree}:
            self.operations.clear()
            raise ConnectionError("the commit does not hold what was sent")


def _rounds(files: Sequence[File]) -> Iterator[list[File]]:
    """The files in groups of bounded number and size."""
    group: list[File] = []
    for file in files:
        if group and (len(group) == _FILES or sum(each.size for each in (*group, file)) > _BYTES):
            yield group
            group = []
        group.append(file)
    yield from [group] if group else []


def _addition(file: File) -> Any:
    """The client's operation, which has read the file; raises MillraceError if it is not what it was."""
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(file.path, file.source)
    if operation.upload_info.sha256.hex() != file.sha256:
        raise MillraceError("it has changed since it was planned", str(file.source), "Run the workflow again")
    return operation
