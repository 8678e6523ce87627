"""Rows on disk by part, and the ids of samples."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from millrace.asr.buckets.spill import RowSpill, parts_for
from millrace.asr.manifests.identity import sample_ids
from tests.refusals import refused


def test_ids_of_samples_are_pinned():
    """They must never change: a run's augmentation and the order of buckets rest on them."""
    assert int(sample_ids(np.array([5], np.uint64), pa.array(["a"]))[0]) == 7247299724313172534


def test_spilled_rows_come_back_parted(tmp_path):
    rng = np.random.default_rng(0)
    spill = RowSpill(tmp_path / "spill" / "rows", 8)
    pieces = [rng.integers(0, 2**64, size, dtype=np.uint64) for size in (1000, 1, 0, 300)]
    for keys in pieces:
        spill.add(pa.table({"key": keys, "text": [f"{key:x}" for key in keys.tolist()]}), keys)
    got = []
    for part in range(8):
        table = spill.read(part)
        keys = table["key"].to_numpy()
        assert (keys >> np.uint64(61) == part).all()
        assert table["text"].to_pylist() == [f"{key:x}" for key in keys.tolist()]
        got += keys.tolist()
    assert sorted(got) == sorted(np.concatenate(pieces).tolist())
    spill.close()
    assert not (tmp_path / "spill" / "rows").exists()
    rows = (0, 1, 1 << 18, (1 << 18) + 1, 5_000_000, 75_200_000, 10**9)
    assert [parts_for(count) for count in rows] == [1, 1, 1, 2, 32, 256, 256]


def test_a_spill_that_ends_early_is_an_error(tmp_path):
    spill = RowSpill(tmp_path / "rows", 1)
    keys = np.arange(100_000, dtype=np.uint64)
    spill.add(pa.table({"key": keys}), keys)
    os.truncate(spill.path, spill.path.stat().st_size - 1)
    with refused(r"damaged since it was made \(it ends early\)"):
        spill.read(0)
