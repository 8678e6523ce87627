"""Hashes of texts: alike for all types and slices of a column, and the same for ever."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.common import hashing


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=40), st.sampled_from(["", "a\0", "a", "é" * 9, "x" * 300])),
        max_size=30,
    ),
    st.integers(0, 5),
)
def test_hashes_of_texts(values: list[str], skip: int) -> None:
    array = pa.array(values, pa.string())
    hashes = hashing.hash_strings(array)
    assert len(set(hashes.tolist())) == len(set(values))
    assert np.array_equal(hashing.hash_strings(array.slice(skip)), hashes[skip:])
    assert np.array_equal(
        hashing.hash_strings(pa.chunked_array([array, array])), np.tile(hashes, 2)
    )
    assert [
        int(hashing.hash_strings(pa.array([value.encode()]))[0]) for value in values
    ] == hashes.tolist()


def test_hashes_are_pinned() -> None:
    """Ids must not change between versions: a trained run's augmentation and the order of buckets
    rest on them."""
    assert hashing.hash_strings(pa.array(["", "clips/utt_000000001.flac"])).tolist() == [
        12035550249420947055,
        6985353777010062712,
    ]
