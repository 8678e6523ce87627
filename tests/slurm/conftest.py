"""Test clusters in the environment of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.cluster import cluster


@contextmanager
def _entered(folder: Path) -> Iterator[None]:
    with cluster(folder) as environment, pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF"):
            patch.setenv(name, environment[name])
        yield


@pytest.fixture
def slurm(tmp_path):
    """One for each test, which sees all jobs in the queue as its own."""
    with _entered(tmp_path / "slurm"):
        yield


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory):
    """One for all tests of a module, which tell jobs by their folder."""
    with _entered(tmp_path_factory.mktemp("slurm") / "cluster"):
        yield
