"""What is made of the client's errors."""

from __future__ import annotations

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from millrace.common.hub import repository

pytestmark = pytest.mark.usefixtures("online")


def error(status: int) -> Exception:
    """What the client raises, as it does where files are sent: behind another error."""
    request = httpx2.Request("PUT", "https://example.org/lfs?signature=secret")
    response = httpx2.Response(status, request=request)
    wrapped = RuntimeError("Error while uploading")
    wrapped.__cause__ = HfHubHTTPError(
        "failed for url https://example.org/lfs?signature=secret", response=response
    )
    return wrapped


@pytest.mark.parametrize("status", [408, 409, 412, 429, 500, 503, 504])
def test_some_errors_pass(status):
    assert repository.final(error(status), "me/x") is None


def test_errors_that_stay_are_told_without_signatures():
    assert "Free some of it" in str(repository.final(error(402), "me/x"))
    assert "secret" not in str(repository.final(error(403), "me/x"))
    missing = FileNotFoundError(2, "No such file or directory", "a.tar")
    assert str(repository.final(missing, "me/x")).startswith("a.tar: No such file or directory.")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ValueError("the card says no"), "me/x: the card says no"),
        (
            OfflineModeIsEnabled("offline"),
            "HF_HUB_OFFLINE is set, so the client sends nothing. Unset it",
        ),
        (
            IsADirectoryError(21, "Is a directory", "/data/a.tar"),
            "/data/a.tar: Is a directory. Run the workflow",
        ),
        (OSError("a connection that broke"), None),
        (KeyError("x"), None),
        (UnicodeError("no card, and a ValueError of another kind"), None),
    ],
)
def test_what_lies_behind_an_error_says_whether_it_stays(cause, words):
    wrapped = RuntimeError("Error while uploading")
    wrapped.__context__ = cause
    for each in (cause, wrapped):
        found = repository.final(each, "me/x")
        assert bool(found) == bool(words) and (words or "None") in str(found)


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
    assert not repository.Repository(Answering(404), "me/x", "dataset").look()
    with pytest.raises(RepositoryNotFoundError):
        repository.Repository(Answering(401), "me/x", "dataset").look()
