"""The ASR lane's data on a folder of foreign tars, as its users run it."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from tests.asr.bucket_corpus import COLUMNS, write_manifest, write_tar
from tests.workflow.workflow import Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    rows = []
    for number in range(60):
        members = [f"clips/u{number}_{k}.flac" for k in range(20)]
        path = write_tar(
            folder / f"data/shard_{number:03d}/audio_16k.tar", members, dotted=number % 2 == 0
        )
        rows += [
            dict(zip(COLUMNS, (str(path), member, f"text {member}", "en", 1.0 + k), strict=True))
            for k, member in enumerate(members)
        ]
    for split, chosen in {
        "train": rows[:1000],
        "dev": rows[1000:1100],
        "test": rows[1100:],
    }.items():
        (folder / "manifests").mkdir(exist_ok=True)
        write_manifest(folder / f"manifests/{split}.parquet", chosen)
    section = {"source": "manifests", "manifest_dir": "manifests", "partition_gb": 0.0004}
    workflow = Workflow(folder, lanes=["asr"], asr=section)
    workflow.run("asr_data")
    return workflow


@pytest.fixture
def workflow(built, tmp_path):
    shutil.copytree(built.folder, tmp_path / "copy", copy_function=shutil.copy2)
    # The manifests name the tars by absolute path: they stay where they are.
    return Workflow(tmp_path / "copy", **built.config)


def test_every_row_points_at_its_bytes(built):
    config = json.loads((built.folder / "results/asr/buckets/bucket_config.json").read_bytes())
    assert config["total_samples"] == 1000 and len(config["buckets"]) == 7
    seen = 0
    for bucket in config["buckets"]:
        for row in pq.read_table(built.folder / "results/asr/buckets" / bucket["path"]).to_pylist():
            with open(row["tar_path"], "rb") as tar:
                tar.seek(row["offset"])
                body = tar.read(row["size"]).decode()
            assert row["tar_member_name"].removeprefix("./") in body.replace("./", "")
            seen += 1
    assert seen == 1000


def test_nothing_is_pending_afterwards_and_after_touching_a_manifest(workflow):
    assert workflow.dry("asr_data") == []
    (workflow.folder / "manifests/train.parquet").touch()
    assert workflow.dry("asr_data") == []


def test_one_replaced_tar_makes_its_partition_and_the_buckets_pending(built):
    path = built.folder / "data/shard_007/audio_16k.tar"
    raw = path.read_bytes()
    write_tar(path, [f"clips/u7_{k}.flac" for k in range(20)] + ["clips/one_more.flac"])
    jobs = built.dry("asr_data")
    assert sorted(job.rule for job in jobs) == [
        "asr_build_bucket_manifests",
        "asr_build_tar_indices",
    ]
    (index,) = [job for job in jobs if job.rule == "asr_build_tar_indices"]
    partition = json.loads(
        (
            built.folder / f"results/asr/partitions/{index.wildcards.removeprefix('tars=')}.json"
        ).read_bytes()
    )
    assert str(path) in [tar["path"] for tar in partition["tars"]]
    path.write_bytes(raw)
    built.run("asr_data")
    assert built.dry("asr_data") == []


def test_a_split_in_pieces_makes_only_the_buckets_pending(workflow):
    manifest = workflow.folder / "manifests/train.parquet"
    rows = pq.read_table(manifest).to_pylist()
    pieces = [manifest.with_name(f"train-0000{number}-of-00003.parquet") for number in range(3)]
    for number, piece in enumerate(pieces):
        write_manifest(piece, rows[number::3])
    manifest.unlink()
    assert [job.rule for job in workflow.dry("asr_data")] == ["asr_build_bucket_manifests"]
    indices, buckets = (
        workflow.files(f"results/asr/{name}/**/*.parquet") for name in ("tar_index", "buckets")
    )
    (
        workflow.folder / "results/asr/tar_index/tars-99999.parquet"
    ).touch()  # of a partition that is no more
    workflow.run("asr_data")
    assert workflow.files("results/asr/tar_index/**/*.parquet") == indices
    assert {
        path: seen[0] for path, seen in workflow.files("results/asr/buckets/**/*.parquet").items()
    } == {path: seen[0] for path, seen in buckets.items()}
    write_manifest(pieces[1], rows[4::3])
    assert [job.rule for job in workflow.dry("asr_data")] == ["asr_build_bucket_manifests"]


def test_copies_by_sound_make_the_buckets_pending_once(workflow):
    """The members here are no sound: all of them are counted, and none is lost."""
    section = {**workflow.config["asr"], "copies": "audio"}
    other = Workflow(workflow.folder, lanes=["asr"], asr=section)
    assert [job.rule for job in other.dry("asr_data")] == ["asr_build_bucket_manifests"]
    other.run("asr_data")
    assert other.dry("asr_data") == []
    ledgers = json.loads((other.folder / "results/asr/buckets/ledger.json").read_bytes())
    counts = {each["scope"]: (each["rows_out"], each["warnings"]) for each in ledgers}
    assert counts["train"] == (1000, {"not_compared": 1000})
    assert counts["test"] == (100, {"not_compared": 100})
