"""One start of torch for the audits of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.audit.runner.guard import Guard


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard
