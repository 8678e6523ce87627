"""A repository of a Hub, as the client library sees it: checked names and addresses, private or
public, and errors people can act on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.processes import causes
from millrace.common.settings import add_arguments, setting

LOCAL = "local"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.]))*(?<![-.])"
_ENDPOINT = (
    r"local|https://[A-Za-z0-9_.-]+(:[0-9]+)?/?|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?/?"
)
# The statuses that no further attempt mends: what is wrong, what to do.
_FINAL = {
    400: ("the Hub refuses the request", "Mend what it names, and publish again"),
    401: ("the Hub accepts no token of yours", "Log in with `hf auth login`, or set HF_TOKEN"),
    403: ("the token may not do this", "Use one with write access to the repository"),
    404: ("no such repository, or the token may not see it", "Check `repo`, or use another token"),
    413: (
        "the Hub takes no files or requests of this size",
        "Make smaller shards: speech.max_shard_size_gb",
    ),
    422: ("the Hub refuses the request", "Mend what it names, and publish again"),
    507: ("the Hub has no space", "Free some, and run the same command again"),
}
RUN_AGAIN = (
    "Mend what it names, or run the same command again: what was sent is not sent a second time"
)


@dataclass(frozen=True)
class HubSettings:
    """The keys of a lane's `hub` section, but for `repo` and what only one lane has."""

    enabled: bool = setting(False, "publish with everything else, not only by snakemake <lane>_hub")
    endpoint: str = setting(
        LOCAL,
        "local (a small Hub in results/<lane>/hub/server), or a Hub's address such as"
        " https://huggingface.co",
        pattern=_ENDPOINT,
    )
    private: bool = setting(True, "create it private, and refuse one that is public")
    licence: str = setting(
        "",
        "the Hub's name of the licence, such as cc-by-4.0; empty means unknown",
        pattern="[a-z0-9.-]*",
    )


@dataclass
class Repository:
    """`repo_id` of `kind` ("dataset" or "model") on a Hub; `head` is its commit when last looked
    at."""

    api: Any  # huggingface_hub.HfApi
    repo_id: str
    kind: str
    private: bool = True
    head: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(f"{_NAME}/{_NAME}", self.repo_id) or self.repo_id.endswith(".git"):
            where = f"repo {self.repo_id!r}"
            raise MillraceError(
                "not a repository", where, "Write namespace/name, as on the Hub's page"
            )
        self.name = {"repo_id": self.repo_id, "repo_type": self.kind}  # for the client

    def exists(self) -> bool:
        """Whether there is such a repository; notes its head. Raises MillraceError if the public
        can read what is to be private."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            info = self.api.repo_info(**self.name, expand=["sha", "private"])
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:  # what the Hub tells people without a token
                raise
            return False
        if self.private and not info.private:
            problem = "the repository is public, and private was asked"
            remedy = "Make it private on the Hub, choose another, or set `private: false`"
            raise MillraceError(problem, self.repo_id, remedy)
        self.head = info.sha
        return True

    def create(self) -> None:
        """Create it, as private as it is to be."""
        self.api.create_repo(**self.name, private=self.private, exist_ok=True)
        self.exists()

    def tree(self) -> list[Any]:
        """The files at the head, by a request for each 1,000."""
        from huggingface_hub.hf_api import RepoFile

        entries = self.api.list_repo_tree(recursive=True, **self.name, revision=self.head)
        return [entry for entry in entries if isinstance(entry, RepoFile)]


def flags(section: Mapping[str, Any], server_dir: str, *names: str) -> str:
    """The `hub` section of a lane's config as those of add_flags, and its other keys `names`, for a
    shell."""
    parts = [
        f"--{name.replace('_', '-')} {shlex.quote(str(section[name]))}"
        for name in ("endpoint", "repo", *names)
    ]
    if not section["private"]:
        parts.append("--public")
    return " ".join([*parts, f"--server-dir {server_dir}"])


def add_flags(parser: Any) -> None:
    """Add the flags that say which repository on which Hub."""
    add = parser.add_argument
    add_arguments(parser, HubSettings, ["endpoint"])
    add("--server-dir", default="", help="folder of the local Hub's data")
    add("--repo", required=True, help="namespace/name on the Hub")
    add("--public", action="store_true", help="create it public, or publish to one that is public")


@contextlib.contextmanager
def connected(args: Any, kind: str) -> Iterator[Repository]:
    """The repository of these flags; for `--endpoint local` our own Hub runs meanwhile."""
    endpoint = args.endpoint
    token = None  # of HF_TOKEN or the client's login
    if not re.fullmatch(_ENDPOINT, endpoint):
        remedy = "Write local or https://<host>; tokens belong into HF_TOKEN"
        raise MillraceError("--endpoint is not the address of a Hub", "", remedy)
    with contextlib.ExitStack() as stack:
        if endpoint == LOCAL:
            from millrace.common.hub.server import new_token, serve

            os.environ["HF_HUB_OFFLINE"] = "0"  # which is meant for the real one
            token = new_token()
            endpoint = stack.enter_context(serve(args.server_dir, token))
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils import disable_progress_bars

        if args.endpoint == LOCAL:
            constants.HF_HUB_DISABLE_XET = True  # the local Hub takes files by LFS only
        disable_progress_bars()
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for every request
        yield Repository(HfApi(endpoint=endpoint, token=token), args.repo, kind, not args.public)


@contextlib.contextmanager
def explained(repo_id: str) -> Iterator[None]:
    """Raise what the client raises inside as a MillraceError that says what to do."""
    try:
        yield
    except MillraceError:
        raise
    except Exception as error:  # the client lets through what its transports raise, of many kinds
        raise explanation(error, repo_id) from error


def explanation(error: BaseException, repo_id: str) -> MillraceError:
    """What to tell people of an error of the client, or of what lies behind it."""
    for cause in causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        if status in _FINAL:
            problem, remedy = _FINAL[status]
            return MillraceError(f"{problem} ({words(cause)})", repo_id, remedy)
        if isinstance(cause, OSError) and cause.filename:  # a file of ours
            return MillraceError(str(cause.strerror), str(cause.filename), "Run the workflow again")
        if type(cause).__name__ == "OfflineModeIsEnabled":
            problem = "HF_HUB_OFFLINE is set, so the client sends nothing"
            return MillraceError(problem, repo_id, "Unset it")
    return MillraceError(f"not published ({words(error)})", repo_id, RUN_AGAIN)


def words(error: BaseException) -> str:
    """An error on one line, without what a signed URL holds behind its question mark."""
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", "")
    return re.sub(r"\?\S+", "", f"{status} {text}".strip().partition("\n")[0])[:300]
