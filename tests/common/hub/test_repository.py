"""What is made of the client's errors."""

from __future__ import annotations

from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from millrace.common.hub import repository
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("online")


def error(status: int) -> Exception:
    """What the client raises, as it does where files are sent: behind another error."""
    request = httpx2.Request("PUT", "https://example.org/lfs?signature=secret")
    response = httpx2.Response(status, request=request)
    wrapped = RuntimeError("Error while uploading")
    wrapped.__cause__ = HfHubHTTPError(
        "failed for url https://example.org/lfs?signature=secret at last", response=response
    )
    return wrapped


def test_errors_are_told_without_signatures():
    assert "run the same command again" in str(repository.explanation(error(503), "me/x"))
    assert "write access" in str(repository.explanation(error(403), "me/x"))
    assert "secret" not in str(repository.explanation(error(403), "me/x"))
    assert "/lfs at last" in str(repository.explanation(error(403), "me/x"))


@pytest.mark.parametrize(
    "cause, words",
    [
        (OfflineModeIsEnabled("x"), "HF_HUB_OFFLINE is set, so the client sends nothing. Unset it"),
        (IsADirectoryError(21, "Is a directory", "/data/a.tar"), "/data/a.tar: Is a directory."),
    ],
)
def test_what_lies_behind_an_error_says_what_to_do(cause, words):
    wrapped = RuntimeError("Error while uploading")
    wrapped.__context__ = cause
    for each in (cause, wrapped):
        assert words in str(repository.explanation(each, "me/x"))


class Answering:
    """A client to which the Hub says that there is no such repository, with a status."""

    def __init__(self, status: int) -> None:
        self.status = status

    def repo_info(self, **_: object) -> None:
        response = httpx2.Response(
            self.status, request=httpx2.Request("GET", "https://example.org")
        )
        raise RepositoryNotFoundError("no such repository", response=response)


def test_a_repository_that_is_not_there_is_told_from_one_that_nobody_without_a_token_sees():
    assert not repository.Repository(Answering(404), "me/x", "dataset").exists()
    with pytest.raises(RepositoryNotFoundError):
        repository.Repository(Answering(401), "me/x", "dataset").exists()


class Public:
    """A client to a Hub where another one has created the repository meanwhile, as a public one."""

    def create_repo(self, **_: object) -> None:
        pass

    def repo_info(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(private=False, sha="0" * 40)


def test_a_repository_that_turns_out_to_be_public_once_created_is_refused():
    with refused("public, and private was asked"):
        repository.Repository(Public(), "me/x", "dataset").create()
