"""Segments that leave a tar and come back: no byte is lost, whenever a run is killed."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
from pathlib import Path

import pytest

from millrace.common import atomic
from millrace.speech.columns import COMPLETED, DUPLICATE
from millrace.speech.names import Partition
from millrace.speech.shards import build as shards
from millrace.speech.shards import left_out
from millrace.speech.shards.index import read_sidecar, sidecar_path, tars_of
from millrace.speech.shards.plan import ShardOptions, plan_partition
from tests.refusals import refused
from tests.speech.shard_corpus import PARTITION, corpus, digests

OPTIONS = ShardOptions(max_shard_size_gb=0.0004)


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> tuple[list[dict], Path]:
    """Rows, and the folder of their shards."""
    folder = tmp_path_factory.mktemp("cut")
    rows = corpus(folder / "audio", recordings=2)
    build(rows, folder / "out")
    return rows, folder / "out"


def build(rows: list[dict], output: Path) -> shards.Built:
    plan = plan_partition(Partition.parse(PARTITION), rows, OPTIONS)
    return shards.build(plan, output)


@pytest.fixture
def tar(cut, tmp_path) -> Path:
    shutil.copytree(cut[1], tmp_path / "out")
    return tars_of(Partition.parse(PARTITION), tmp_path / "out")[0]


def keys(tar: Path) -> list[str]:
    return read_sidecar(tar).table["key"].to_pylist()


def names(path: Path) -> list[str]:
    if not path.exists():
        return []
    with tarfile.open(path) as archive:
        return archive.getnames()


def test_copies_leave_the_tar_and_its_sidecar_and_come_back_byte_for_byte(tar):
    before = digests(tar.parent)
    first, second, *rest = keys(tar)
    assert left_out.settle(tar, {second: "as in test", "of another tar": "x"})
    assert names(tar) == [f"{key}.{kind}" for key in (first, *rest) for kind in ("flac", "json")]
    assert names(left_out.path_beside(tar)) == [f"{second}.flac", f"{second}.json"]

    sidecar = read_sidecar(tar)
    assert sidecar.describes(tar)
    rows = {row["key"]: row for row in sidecar.table.to_pylist()}
    assert (rows[second]["status"], rows[second]["error_message"]) == (DUPLICATE, "as in test")
    content = tar.read_bytes()
    for row in sidecar.cut():
        if row["key"] != second:
            body = content[row["offset"] : row["offset"] + row["size"]]
            assert hashlib.sha256(body).hexdigest() == row["sha256"]
            assert row["status"] == COMPLETED

    assert not left_out.settle(tar, {second: "as in test"})
    assert not left_out.settle(tar, {second: "as elsewhere"})
    rows = {row["key"]: row["error_message"] for row in read_sidecar(tar).table.to_pylist()}
    assert rows[second] == "as elsewhere" and tar.read_bytes() == content
    assert left_out.settle(tar, {first: "a", second: "b"})
    assert left_out.settle(tar, {})
    assert digests(tar.parent) == before


def test_a_tar_of_copies_alone_goes_and_comes_back(tar):
    before = digests(tar.parent)
    assert left_out.settle(tar, dict.fromkeys(keys(tar), "copy"))
    assert not tar.exists() and read_sidecar(tar).describes(tar)
    assert not left_out.settle(tar, dict.fromkeys(keys(tar), "copy"))
    assert left_out.settle(tar, {}) and digests(tar.parent) == before


def test_what_a_killed_run_took_out_comes_back_if_it_is_no_copy_after_all(tar, monkeypatch):
    whole = digests(tar.parent)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(left_out, "write_sidecar", interrupted)
        left_out.settle(tar, {keys(tar)[0]: "copy"})
    assert digests(tar.parent) != whole
    assert left_out.settle(tar, {}) and digests(tar.parent) == whole


def test_what_leaves_is_written_once(tar, monkeypatch):
    """A run that is killed where it is written again would leave a partial file for good."""
    replacing, written = atomic.replacing, []

    def noted(path):
        written.append(path)
        return replacing(path)

    monkeypatch.setattr(atomic, "replacing", noted)
    left_out.settle(tar, {keys(tar)[0]: "copy"})
    assert written == [left_out.path_beside(tar), tar, sidecar_path(tar)]


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("is_back", [False, True])
def test_a_killed_run_loses_nothing(tar, monkeypatch, writes, is_back):
    """It ends before each of the files that are written, then the next one settles the tar."""
    whole = digests(tar.parent)
    first, second, third, *_ = keys(tar)
    left_out.settle(tar, {first: "copy", second: "copy"})
    wanted = {} if is_back else {second: "copy", third: "copy"}
    replacing, count = atomic.replacing, []

    def killed(path):
        count.append(path)
        if len(count) > writes:
            raise KeyboardInterrupt
        return replacing(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replacing", killed)
        with contextlib.suppress(KeyboardInterrupt):
            left_out.settle(tar, wanted)
    beside = names(left_out.path_beside(tar))
    assert {*names(tar), *beside} >= {f"{key}.flac" for key in keys(tar)}
    left_out.settle(tar, wanted)
    assert read_sidecar(tar).describes(tar)
    left = {row["key"] for row in read_sidecar(tar).cut() if row["offset"] is None}
    assert left == wanted.keys()
    assert not {f"{key}.flac" for key in left} & {*names(tar)}
    left_out.settle(tar, {})
    left_out.settle(tar, {})
    assert digests(tar.parent) == whole


def test_shards_with_segments_left_out_are_kept_by_the_next_cut(cut, tar):
    rows, _ = cut
    left_out.settle(tar, {keys(tar)[0]: "copy"})
    state = digests(tar.parent)
    built = build(rows, tar.parents[2])
    assert built.rebuilt == 0 and digests(tar.parent) == state
    assert built.errors == {DUPLICATE: 1} and built.index.num_rows == len(rows) - 1
    build([row | {"cer": 0.06} for row in rows], tar.parents[2])
    assert left_out.settle(tar, {}) is False
    assert not left_out.path_beside(tar).exists()


def test_what_is_missing_is_named(tar):
    left_out.settle(tar, {keys(tar)[0]: "copy"})
    left_out.path_beside(tar).unlink()
    with refused(f"{keys(tar)[0]}.flac is missing.*Delete the tar"):
        left_out.settle(tar, {})
    read_sidecar(tar)
    next(tar.parent.glob(".*00000.index.parquet")).write_bytes(b"no parquet")
    remedy = "snakemake speech --forcerun speech_create_shards"
    with refused(rf"sidecar is missing or cannot be read.*{remedy}"):
        left_out.settle(tar, {})
