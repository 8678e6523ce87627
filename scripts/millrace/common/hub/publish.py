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
from millrace.common.hub.repository import Repository, explained, final, retry_after, words

_FILES, _BYTES = 50, 2_000_000_000  # of a round of uploads
_CHANGES = 500  # of one commit; the Hub takes no more in the minute a request may last
_ATTEMPTS, _LONGEST_WAIT, _LONGEST_ASKED = 8, 60.0, 3600.0


class _Upload:
    """A publication under way: what of it the Hub has already."""

    def __init__(self, repository: Repository, files: Sequence[File], check: Callable[[Plan], None]) -> None:
        self.repository, self.files, self.check = repository, files, check
        self.operations: dict[str, Any] = {}  # large files whose bytes were sent, by path
        self.steps = 0  # what has succeeded, to tell a slow Hub from one that is down

    def attempt(self) -> None:
        """From the tree that is there to the one that is to be; any exception leaves readers with either."""
        repository = self.repository
        if not repository.look():
            repository.api.create_repo(**repository.call, private=repository.private, exist_ok=True)
            repository.look()
        plan = plans.make(self.files, repository.tree())
        self.check(plan)
        log.info("%s at %s: %s", repository.repo_id, repository.head[:12], plan.summary())
        if plan.is_empty:
            return
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
                self.repository.api.preupload_lfs_files(
                    self.repository.repo_id, list(operations.values()), repo_type=self.repository.kind
                )
                self.operations |= operations
                self.steps += 1
                progress.advance(sum(file.size for file in files) / 1e6)

    def _commit(self, plan: Plan) -> None:
        """One commit on the head that was planned from; of very many changes a pull request, merged when whole."""
        from huggingface_hub import CommitOperationDelete

        repository = self.repository
        # Copies, as the client takes an operation once.
        changes = [copy(self.operations.get(file.path) or _addition(file)) for file in plan.sends]
        changes += [CommitOperationDelete(path, is_folder=False) for path, _ in plan.deletes]
        message = f"Publish: {plan.summary()}"
        create = repository.api.create_commit
        parts = [changes[start : start + _CHANGES] for start in range(0, len(changes), _CHANGES)]
        many = len(parts) > 1
        first = create(
            **repository.call, operations=parts[0], commit_message=message, parent_commit=repository.head,
            create_pr=many,
        )  # fmt: skip
        parent = first.oid
        for part in parts[1:]:
            more = {"revision": first.pr_revision, "parent_commit": parent}
            parent = create(**repository.call, operations=part, commit_message=message, **more).oid
            self.steps += 1
        head = repository.head
        if many:
            repository.look()
            if repository.head != head:
                raise ConnectionError("the repository has changed meanwhile")
            repository.api.merge_pull_request(repository.repo_id, first.pr_num, repo_type=repository.kind)
            repository.look()
        else:
            repository.head = parent

    def _verify(self, plan: Plan) -> None:
        """Read back what was changed: the rest is that of the parent commit."""
        paths = [file.path for file in plan.sends] + [path for path, _ in plan.deletes]
        tree = self.repository.tree(paths if len(paths) <= _CHANGES else None)
        wrong = plans.make(plan.sends, tree)
        if wrong.sends or {path for path, _ in plan.deletes} & {entry.path for entry in tree}:
            self.operations.clear()
            raise ConnectionError(f"the commit does not hold what was sent: {wrong.summary()}")


def publish(
    repository: Repository,
    files: Sequence[File],
    check: Callable[[Plan], None] = lambda plan: None,
    first_wait: float = 1.0,
) -> None:
    """Make the repository hold `files`, and below plans.DATA nothing else; its head is the commit then.

    Plans from the remote tree, and anew after any error, until there is nothing to do. `check` may refuse a plan by
    raising MillraceError. Raises MillraceError for what no attempt mends, and after eight without any progress.
    """
    upload, failures, steps = _Upload(repository, files, check), 0, 0
    while True:
        try:
            return upload.attempt()
        except MillraceError:
            raise
        except Exception as error:  # the client lets through what its transports raise, of many kinds
            if problem := final(error, repository.repo_id):
                raise problem from error
            failures = 1 if upload.steps > steps else failures + 1
            steps = upload.steps
            asked = retry_after(error)
            if failures >= _ATTEMPTS or asked > _LONGEST_ASKED:
                again = f"in {asked:.0f} s, " if asked else ""
                remedy = f"Publish again {again}when the Hub can be reached: what was sent is not sent again"
                raise MillraceError(f"no success ({words(error)})", repository.repo_id, remedy) from error
            wait = max(asked, min(first_wait * 2 ** (failures - 1), _LONGEST_WAIT))
            log.warning("%s: %s; again in %.3g s", repository.repo_id, words(error), wait)
            time.sleep(wait)


def difference(repository: Repository, files: Sequence[File], endpoint: str) -> str:
    """What publishing would change, for people; nothing is sent."""
    with explained(repository.repo_id):
        tree = repository.tree() if repository.look() else []
    state = f"at commit {repository.head}" if repository.head else "which does not exist yet"
    lines = plans.make(files, tree).lines()
    return "\n".join([f"{repository.repo_id} on {endpoint}, {state}:", *lines, ""])


def _rounds(files: Sequence[File]) -> Iterator[list[File]]:
    """The files in groups of bounded number and size."""
    group: list[File] = []
    for file in files:
        if group and (len(group) == _FILES or sum(f.size for f in group) + file.size > _BYTES):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _addition(file: File) -> Any:
    """The client's operation, which has read the file; raises MillraceError if it is not what it was."""
    from huggingface_hub import CommitOperationAdd

    source = file.source if isinstance(file.source, bytes) else str(file.source)
    operation = CommitOperationAdd(file.path, source)
    if operation.upload_info.sha256.hex() != file.sha256:
        raise MillraceError("its bytes are not those it was planned with", source, "Run the workflow again")
    return operation
