"""Rows on disk by part, and the hashes that part them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.asr.buckets.samples import sample_ids
from millrace.asr.buckets.spill import RowSpill, parts_for
from millrace.common import hashing


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=40), st.sampled_from(["", "a\0", "a", "é" * 9, "x" * 300])), max_size=30
    ),
    st.integers(0, 5),
)
def test_hashes_of_texts(values: list[str], skip: int) -> None:
    array = pa.array(values, pa.string())
    hashes = hashing.hash_strings(array)
    assert len(set(hashes.tolist())) == len(set(values))
    assert np.array_equal(hashing.hash_strings(array.slice(skip)), hashes[skip:])
    assert np.array_equal(hashing.hash_strings(pa.chunked_array([array, array])), np.tile(hashes, 2))
    assert [int(hashing.hash_strings(pa.array([value.encode()]))[0]) for value in values] == hashes.tolist()


def test_hashes_are_pinned() -> None:
    """Ids must not change between versions: a trained run's augmentation and the order of buckets rest on
    them."""
    assert hashing.hash_strings(pa.array(["", "clips/utt_000000001.flac"])).tolist() == [
        12035550249420947055,
        6985353777010062712,
    ]
    assert int(sample_ids(np.array([5], np.uint64), pa.array(["a"]))[0]) == 7247299724313172534


def test_spilled_rows_come_back_parted(tmp_path: Path) -> None:
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
