"""A repository of a Hub, as the client library sees it: checked names, its tree, errors people can act on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from millrace.common.errors import MillraceError
from millrace.common.hub.plan import File

LOCAL = "local"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.]))*(?<![-.])"
_LOGIN = "Log in with `hf auth login`, or set HF_TOKEN to a token that may write"
_AT_ONCE = 500  # paths of one request
# What no further attempt mends: status -> what is wrong, what to do.
_FINAL = {
    400: ("the Hub refuses the request", "Mend what it names, and publish again"),
    401: ("the Hub does not accept the token, or there is none", _LOGIN),
    402: ("the account's storage is used up", "Free some of it, or extend it"),
    403: ("the token may not do this", "Use a token with write access to the repository"),
    404: ("no such repository, or the token may not see it", "Check `repo`, or use a token that may write"),
    413: ("the Hub takes no files or requests of this size", "Make smaller files: speech.max_shard_size_gb"),
}


@dataclass
class Repository:
    """`repo_id` of `kind` ("dataset" or "model") on a Hub; `head` is its commit when it was last looked at."""

    api: Any  # huggingface_hub.HfApi
    repo_id: str
    kind: str
    private: bool = True
    head: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(f"{_NAME}/{_NAME}", self.repo_id) or self.repo_id.endswith(".git"):
            where = f"repo {self.repo_id!r}"
            raise MillraceError("not a repository", where, "Write namespace/name, as on the Hub's page")

    @property
    def call(self) -> dict[str, str]:
        """Arguments of the client's methods."""
        return {"repo_id": self.repo_id, "repo_type": self.kind}

    def look(self) -> bool:
        """Note the head; False if there is no such repository. Raises MillraceError if the public can read
        what is to be private."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            info = self.api.repo_info(**self.call, expand=["sha", "private"])
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:  # what the Hub tells people without a token
                raise
            return False
        if self.private and not info.private:
            remedy = "Make it private in its settings on the Hub, choose another, or set `private: false`"
            raise MillraceError("the repository is public, and private was asked", self.repo_id, remedy)
        self.head = info.sha
        return True

    def tree(self, paths: Sequence[str] | None = None) -> list[Any]:
        """The files at the head, all or those of `paths` that exist: a request for 500 paths or 1,000 files."""
        from huggingface_hub.hf_api import RepoFile

        if paths is None:
            entries = self.api.list_repo_tree(**self.call, recursive=True, revision=self.head)
            return [entry for entry in entries if isinstance(entry, RepoFile)]
        parts = [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]
        pages = (self.api.get_paths_info(**self.call, paths=list(p), revision=self.head) for p in parts)
        return [entry for page in pages for entry in page if isinstance(entry, RepoFile)]


def add_flags(parser: Any) -> None:
    """Add the flags that say which repository on which Hub."""
    add = parser.add_argument
    add(
        "--endpoint",
        default=LOCAL,
        help="`local`, or a Hub such as https://huggingface.co (default %(default)s)",
    )
    add("--server-dir", default="", help="folder of the local Hub's data")
    add("--repo", required=True, help="namespace/name on the Hub")
    add("--public", action="store_true", help="create it public, or publish to one that is public")


@contextlib.contextmanager
def connected(args: Any, kind: str) -> Iterator[Repository]:
    """The repository of these flags; for `--endpoint local` our own Hub runs meanwhile."""
    endpoint, url = args.endpoint, urlsplit(args.endpoint)
    loopback = url.hostname in ("localhost", "127.0.0.1", "::1")
    if endpoint != LOCAL and not (
        url.hostname and (url.scheme == "https" or (url.scheme == "http" and loopback))
    ):
        remedy = "Write `local`, or a URL with https:// (http:// only of this machine)"
        raise MillraceError("not the address of a Hub", f"endpoint {endpoint!r}", remedy)
    if url.username or url.password or url.query:
        raise MillraceError(
            "an address that holds more than a place", "endpoint", "Tokens belong into HF_TOKEN"
        )
    with contextlib.ExitStack() as stack:
        token = None  # of HF_TOKEN or the client's login
        if endpoint == LOCAL:
            os.environ.setdefault(
                "HF_HUB_DISABLE_XET", "1"
            )  # Xet's store would be a second copy on this disk
            from millrace.common.hub.server import serve

            endpoint, token = stack.enter_context(serve(args.server_dir)), False
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every request
        yield Repository(HfApi(endpoint=endpoint, token=token), args.repo, kind, not args.public)


def final(error: BaseException | None, repo_id: str) -> MillraceError | None:
    """What to tell people of an error that a further attempt would not mend; None of all others."""
    while error is not None:
        if isinstance(error, OSError) and error.filename:  # a file of ours
            return MillraceError(f"{error.strerror}", str(error.filename), "Run the workflow again")
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if 400 <= status < 500 and status not in (408, 409, 412, 425, 429):
            problem, remedy = _FINAL.get(status, _FINAL[400])
            return MillraceError(f"{problem} ({status}: {words(error)})", repo_id, remedy)
        if type(error) is ValueError:  # the client's own check of the card, say
            return MillraceError(words(error), repo_id)
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def explained(repo_id: str) -> Iterator[None]:
    """Say in one line what the client raises, where there is no second attempt."""
    try:
        yield
    except MillraceError:
        raise
    except Exception as error:  # of many kinds
        unreachable = MillraceError(
            f"no answer ({words(error)})", repo_id, "Try again when the Hub can be reached"
        )
        raise final(error, repo_id) or unreachable from error


def words(error: BaseException) -> str:
    """An error on one line, without what a signed URL holds behind its question mark."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"\?\S+", "", "; ".join(lines) or type(error).__name__)[:300]


def retry_after(error: BaseException | None) -> float:
    """Seconds that the Hub asks to wait; 0 if it asks for none."""
    while error is not None:
        headers = getattr(getattr(error, "response", None), "headers", {})
        with contextlib.suppress(KeyError, ValueError):
            return float(headers["Retry-After"])
        error = error.__cause__ or error.__context__
    return 0.0


def receipt(repository: Repository, files: Collection[File]) -> dict[str, Any]:
    """What was published, without times and tokens: the same publication gives the same receipt."""
    rows = [{"path": file.path, "sha256": file.sha256, "size": file.size} for file in files]
    return {**repository.call, "commit": repository.head, "files": rows}
