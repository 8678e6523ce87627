"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.asr.bucket_corpus import build_from, corpus, write_manifest


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> tuple[Path, list[dict], Path]:
    """A folder with buckets in out/ (do not change it), the rows of its train.parquet, the tar
    index."""
    folder = tmp_path_factory.mktemp("corpus")
    rows, index = corpus(folder)
    (ledger,) = build_from(
        folder / "out", index, train=write_manifest(folder / "train.parquet", rows)
    ).values()
    assert ledger.rows_out == len(rows) and not ledger.rejected
    return folder, rows, index


@pytest.fixture
def out(tmp_path) -> Path:
    """Where a test builds buckets."""
    return tmp_path / "out"
