"""The tables beside shards: what a folder says of the shards of one partition."""

from __future__ import annotations

import pyarrow as pa

from millrace.speech.columns import SIDECAR_SCHEMA
from millrace.speech.names import Partition
from millrace.speech.shards.index import (
    Sidecar,
    made_keys,
    read_sidecar,
    tars_of,
    write_sidecar,
)


def test_a_partition_knows_its_own_shards_among_others_and_by_their_sidecars_too(tmp_path):
    folder = tmp_path / "land/train-1"
    folder.mkdir(parents=True)
    for number in (0, 1, 100):
        table = pa.Table.from_pylist([{"key": f"key_{number}"}], schema=SIDECAR_SCHEMA)
        write_sidecar(folder / f"land-train-1-{number:05d}.tar", Sidecar("digest", 0, None, table))
    for name in (
        "land-train-1-00000.tar",
        "land-train-1-00002.tar",
        "land-train-1-00101.tar",
        "mine.tar",
    ):
        (folder / name).write_bytes(b"")
    (folder / ".land-train-1-00003.tar.host-1.partial").write_bytes(b"")

    first, second = Partition("land", "train-1", 0), Partition("land", "train-1", 100)
    assert [tar.stem[-5:] for tar in tars_of(first, tmp_path)] == ["00000", "00001", "00002"]
    assert [tar.stem[-5:] for tar in tars_of(second, tmp_path)] == ["00100", "00101"]
    assert made_keys(first, tmp_path) == {"key_0", "key_1"} and made_keys(second, tmp_path) == {
        "key_100"
    }
    assert tars_of(Partition("land", "test", 0), tmp_path) == []


def test_a_sidecar_of_other_columns_is_none(tmp_path):
    """That of an earlier version has no fingerprints."""
    tar = tmp_path / "land-train-1-00000.tar"
    table = pa.Table.from_pylist([{"key": "a"}], schema=SIDECAR_SCHEMA)
    write_sidecar(tar, Sidecar("digest", 0, None, table))
    assert read_sidecar(tar) == Sidecar("digest", 0, None, table)
    write_sidecar(tar, Sidecar("digest", 0, None, table.drop_columns(["words"])))
    assert read_sidecar(tar) is None
