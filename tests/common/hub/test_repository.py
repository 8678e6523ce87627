"""What is made of the client's errors."""

from __future__ import annotations

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

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
