"""Rows joined with members by hash: twins, and absent members."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.asr.buckets.addresses import TarIndices, find_members, index_files
from millrace.asr.buckets.order import sort_rows
from millrace.asr.tars.stamp import Stamp
from tests.asr.bucket_corpus import index_of, write_tar
from tests.refusals import refused


def members_of(*rows: tuple[int, int, int, int]) -> pa.Table:
    columns = dict(zip(("key", "tar", "offset", "size"), zip(*rows, strict=True), strict=True))
    types = {"key": pa.uint64(), "tar": pa.int32(), "offset": pa.int64(), "size": pa.int64()}
    return pa.table({name: pa.array(columns[name], types[name]) for name in types})


def test_members_are_found_by_key_and_tar():
    # Key 7 is twice in tar 2: there the last counts.
    sevens = ((7, 2, 4096, 1), (7, 2, 2048, 3))
    members = members_of((9, 0, 512, 5), *sevens, (3, 1, -1, 0))
    keys = np.array([7, 7, 9, 3, 1, 8, 99], np.uint64)
    tars = np.array([2, 4, 0, 1, 0, 0, 0])
    offsets, sizes = find_members(members, keys, tars)
    assert offsets.tolist() == [2048, -2, 512, -1, -2, -2, -2]
    assert sizes.tolist() == [3, -2, 5, 0, -2, -2, -2]
    assert find_members(None, keys, tars)[0].tolist() == [-2] * 7
    assert find_members(members, keys[:0], tars[:0])[0].tolist() == []


def test_of_many_members_of_one_name_the_last_counts():
    names, times = 1000, 5
    rows = [(at % names, 0, 512 * at, 1) for at in range(names * times)]
    keys = np.arange(names, dtype=np.uint64)
    offsets, _ = find_members(members_of(*rows), keys, np.zeros(names, np.int32))
    assert offsets.tolist() == [row[2] for row in rows[-names:]]


def test_rows_of_different_members_that_share_one_hash_are_no_twins():
    columns = {
        "sample_id": pa.array([7, 7, 7, 7], pa.uint64()),
        "tar": [0, 1, 0, 0],
        "tar_member_name": ["a", "a", "b", "b"],
        "duration_s": [1.0, 2.0, 3.0, 3.0],
        "transcript": ["x"] * 4,
        "language": ["de"] * 4,
        "row": [0, 1, 2, 3],
    }
    found = sort_rows(pa.table(columns), ["a.tar", "b.tar"], np.uint64(1))
    assert found.order[found.twins].tolist() == [3] and not len(found.contradicting)


def test_a_tar_that_was_indexed_through_a_link_is_known_by_its_own_path(tmp_path):
    (tmp_path / "disk").mkdir()
    tar = write_tar(tmp_path / "disk/a.tar", ["m"])
    (tmp_path / "link").symlink_to("disk")
    indices = TarIndices([index_of([tmp_path / "link/a.tar"], tmp_path / "a.parquet")])
    assert indices.state(str(tar)) == Stamp.of(tar)


def test_indices_of_several_partitions_are_one(tmp_path, monkeypatch):
    names = [[f"m{tar}_{n}" for n in range(count)] for tar, count in enumerate((5, 5, 5, 5, 1))]
    tars = [write_tar(tmp_path / f"t{tar}.tar", of_tar) for tar, of_tar in enumerate(names)]
    (tmp_path / "indices").mkdir()
    index_of(tars[:2], tmp_path / "indices" / "a.parquet")
    index_of([*tars[2:], tmp_path / "gone.tar"], tmp_path / "indices" / "b.parquet")
    indices = TarIndices(index_files([tmp_path / "indices"]), piece=7)
    pieces = list(indices.members([str(tar) for tar in reversed(tars)]))
    assert [len(piece) for piece in pieces] == [10, 10, 1]
    rows = {(row["tar"], row["name"]) for piece in pieces for row in piece.to_pylist()}
    assert rows == {
        (4 - number, name.encode()) for number, of_tar in enumerate(names) for name in of_tar
    }
    assert indices.state(str(tars[0])) == Stamp.of(tars[0])
    assert indices.state(str(tmp_path / "gone.tar")).startswith("missing")
    assert indices.state("elsewhere.tar") == "in none of the tar indices"
    # Another spelling of the same path is the same tar.
    monkeypatch.chdir(tmp_path)
    assert indices.state("t1.tar") == indices.state(str(tars[1]))
    with refused("two indices hold this tar"):
        TarIndices(
            [tmp_path / "indices" / "a.parquet", index_of(tars[1:2], tmp_path / "again.parquet")]
        )
