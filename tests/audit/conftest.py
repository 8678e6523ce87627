"""One start of torch for the audits of all tests, and a rank for probes in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.audit.runner.guard import Guard
from tests.audit.ranks import Clock


@pytest.fixture(scope="session")
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard


@pytest.fixture
def rank(tmp_path: Path) -> Clock:
    """The only rank, which has time."""
    return Clock(0, 1, tmp_path, 0.0, [1000.0])
