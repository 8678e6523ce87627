"""Rows joined with members by hash: twins, absent members, and two tars' members that share one hash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.asr.buckets.join import Addresses, TarIndices, index_files
from millrace.common.errors import MillraceError
from tests.asr.bucket_corpus import index_of, write_tar


def addresses(*rows: tuple[int, int, int, int]) -> Addresses:
    key, tar, offset, size = (np.array(column) for column in zip(*rows, strict=True))
    return Addresses(
        pa.table({"key": key.astype(np.uint64), "tar": tar.astype(np.int32), "offset": offset, "size": size})
    )


def test_members_are_found_by_key_and_tar() -> None:
    # Key 7 is in three tars (as after a collision), twice in tar 2: there the last counts, though it lies
    # before.
    members = addresses(
        (9, 0, 512, 5), (7, 2, 4096, 1), (7, 0, 1024, 2), (7, 2, 2048, 3), (7, 5, 512, 4), (3, 1, -1, 0)
    )
    keys = np.array([7, 7, 7, 7, 9, 3, 1, 8, 99, 7], np.uint64)
    tars = np.array([0, 2, 5, 4, 0, 1, 0, 0, 0, 9])
    offsets, sizes = members.find(keys, tars)
    assert offsets.tolist() == [1024, 2048, 512, -2, 512, -1, -2, -2, -2, -2]
    assert sizes.tolist() == [2, 3, 4, -2, 5, 0, -2, -2, -2, -2]
    nothing = Addresses(None)
    assert nothing.find(keys, tars)[0].tolist() == [-2] * 10
    assert members.find(keys[:0], tars[:0])[0].tolist() == []


def test_indices_of_several_partitions_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tars = [
        write_tar(tmp_path / f"t{number}.tar", [f"m{number}_{n}" for n in range(5)]) for number in range(4)
    ]
    (tmp_path / "indices").mkdir()
    index_of(tars[:2], tmp_path / "indices" / "a.parquet")
    index_of([*tars[2:], tmp_path / "gone.tar"], tmp_path / "indices" / "b.parquet")
    indices = TarIndices(index_files([tmp_path / "indices"]), piece=7)
    pieces = list(indices.members([str(tar) for tar in reversed(tars)]))
    assert [len(piece) for piece in pieces] == [10, 10]
    rows = {
        row
        for piece in pieces
        for row in zip(piece["tar"].to_pylist(), piece["name"].to_pylist(), strict=True)
    }
    assert rows == {(3 - number, f"m{number}_{n}".encode()) for number in range(4) for n in range(5)}
    assert indices.state(str(tars[0])) == (tars[0].stat().st_size, tars[0].stat().st_mtime_ns)
    assert indices.state(str(tmp_path / "gone.tar")).startswith("missing")
    assert indices.state("elsewhere.tar") == "in none of the tar indices"
    # Another spelling of the same path is the same tar.
    monkeypatch.chdir(tmp_path)
    assert indices.state("t1.tar") == indices.state(str(tars[1]))
    with pytest.raises(MillraceError, match="two indices hold this tar"):
        TarIndices([tmp_path / "indices" / "a.parquet", index_of(tars[1:2], tmp_path / "again.parquet")])
