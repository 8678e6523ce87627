"""What a country's shards come to: final statuses, balance, lists, sweeping."""

import errno
import json
import os
import random
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import soundfile

from millrace.common import jsonl
from tests import corpora
from tests.corpora import RATE
from tests.speech.chain import FRACTIONS, Chain, edit


@pytest.fixture
def chain(tmp_path):
    made = Chain(tmp_path)
    corpora.make_corpus(made.root, {"germany": 5}, seconds=10)
    return made


def test_found_is_in_shards_or_rejected(chain):
    edit(chain.aligned("germany", "rec_0001"), lambda value: value["segments"][0].update(cer=0.9))
    ledger = chain.run("germany")["segments"]
    assert (
        ledger["rejected"] == {"cer_over_limit": 1} and ledger["rows_in"] == ledger["rows_out"] + 1
    )
    final = pd.read_csv(chain.shards_dir / "germany_manifest.csv", keep_default_na=False)
    statuses = {"completed_local_tar": ledger["rows_out"], "error_local_tar_cer": 1}
    assert final.status.value_counts().to_dict() == statuses
    assert pq.read_table(chain.shards_dir / "germany_index.parquet").num_rows == ledger["rows_out"]


def test_a_lost_reject_breaks_the_balance(chain, capfd):
    edit(
        chain.aligned("germany", "rec_0001"),
        lambda value: value["segments"].append({"start": None}),
    )
    chain.run("germany")
    for rejects in chain.manifest_dir.rglob("rejects.jsonl"):
        rejects.write_text("")
    assert chain.merge_shards("germany") == 1
    assert "does not add up" in capfd.readouterr().err


def test_the_lists_hold_the_tars_of_the_index(chain):
    chain.run("germany", partition_hours=0.004)
    index = pq.read_table(chain.shards_dir / "germany_index.parquet").to_pylist()
    for split in FRACTIONS:
        listed = (chain.shards_dir / f"germany_{split}_shards.txt").read_text().splitlines()
        assert listed == sorted({row["shard"] for row in index if row["split"] == split})
        assert split != "train" or len(listed) > 1


def test_an_emptied_partition_is_swept_and_strangers_stay(chain):
    chain.run("germany")
    names = [
        "train-1/notes.txt",
        "test/germany-test-00000_copy.tar",
        "test/germany-test-00000.tar.bak",
    ]
    strangers = [
        chain.shards_dir / "germany" / name for name in [*names, "test/germany-train-00000.tar"]
    ]
    # A country whose name begins like this one's.
    strangers.append(chain.manifest_dir / "partitions/germany-x-test-00000/manifest.parquet")
    strangers[-1].parent.mkdir()
    for stranger in strangers:
        stranger.write_text("mine")
    content = jsonl.read(chain.folder / "partitions/germany-test-00000.json")
    for recording in content["recordings"]:
        os.unlink(recording["transcripts"][0]["path"])
    chain.sync()
    assert chain.merge_shards("germany") == 0
    left = {*chain.shards_dir.rglob("*germany-test-*"), *chain.manifest_dir.rglob("germany-test-*")}
    assert left < set(strangers) and all(stranger.exists() for stranger in strangers)
    assert list(chain.shards_dir.rglob("germany-train-1-*.tar"))


def test_an_alignment_file_that_is_damaged_in_its_middle_is_a_reject_of_the_same_run(
    chain, monkeypatch
):
    alignment = chain.aligned("germany", "rec_0001")
    edit(alignment, lambda value: value["segments"][1].update(human_text="long " * 2000))
    alignment.write_bytes(alignment.read_bytes().replace(b"long long", b"long \xff long", 1))
    chain.cut()
    assert chain.merge_shards("germany", "--max-error-fraction", "1") == 0
    files = jsonl.read(chain.shards_dir / "germany_ledger.json")["files"]
    assert (files["rows_in"], files["rows_out"]) == (5, 4)
    assert files["rejected"] == {"json_encoding": 1}
    rejects = pd.read_csv(chain.shards_dir / "germany_rejects.csv")
    assert rejects.file.tolist() == [alignment.name] and rejects.segment.isna().all()

    def copy_half(source: str, target: Path) -> None:
        Path(target).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(shutil, "copyfile", copy_half)
    assert chain.merge_shards("germany", "--max-error-fraction", "1") == 1
    assert pd.read_csv(chain.shards_dir / "germany_rejects.csv").equals(rejects)


def test_too_many_errors_are_listed(chain, capfd):
    for path in (chain.root / "germany/downloaded_audio/mp4_converted").glob("rec_000[01].wav"):
        path.write_bytes(b"")
    chain.cut()
    assert chain.merge_shards("germany") == 1
    printed = capfd.readouterr().err
    assert "max_error_fraction 0.1" in printed and "Traceback" not in printed
    # By file, the worst first.
    assert re.search(r"in:\n  \S+rec_000[01].wav: [34]\n  \S+rec_000[01].wav: [23]", printed)
    assert "errors.csv" in printed
    assert len(pd.read_csv(chain.folder / "errors.csv")) > 0
    assert chain.merge_shards("germany", "--max-error-fraction", "1") == 0


def plant(
    chain: Chain,
    country: str,
    name: str,
    samples: np.ndarray,
    value: dict,
    split: str,
) -> None:
    """Put a recording into a split."""
    corpora.write_audio(chain.root, country, f"{name}.wav", samples)
    corpora.write_alignment(
        chain.root, country, f"{name}_t1", value | {"audio_file": f"{name}.wav"}
    )
    subset = 1 if split == "train" else None
    block = f"{country}-{split}-1" if subset else f"{country}-{split}"
    group = {"group": block, "number": 0, "cost": 0.001}
    labels = {"country": country, "video_id": name, "split": split, "subset_id": subset}
    with open(chain.assignment, "a") as lines:
        lines.write(json.dumps({"item": f"{country}/{name}", **group, **labels}) + "\n")


def all_keys(chain: Chain, country: str) -> list[set[str]]:
    """The keys of the segments of train: by the index, and in the listed tars."""
    folder = chain.shards_dir
    index = pq.read_table(folder / f"{country}_index.parquet").to_pylist()
    tars = (folder / f"{country}_train_shards.txt").read_text().splitlines()
    members: set[str] = set()
    for tar in tars:
        with tarfile.open(folder / tar) as archive:
            members |= {name.partition(".")[0] for name in archive.getnames()}
    return [
        {row["key"] for row in index if row["split"] == "train"},
        members,
    ]


def test_copies_of_test_leave_the_tars_and_come_back_when_it_goes(tmp_path, capfd):
    chain = Chain(tmp_path)
    corpora.make_corpus(chain.root, {"germany": 3, "estonia": 2}, seconds=20)
    chain.sync()
    name = next(item for item, split in chain.placements().items() if split == "test")
    alignment = chain.aligned(*name.split("/"))
    source = alignment.parents[2] / f"downloaded_audio/mp4_converted/{name.split('/')[1]}.wav"
    samples = soundfile.read(source, dtype="int16")[0]
    value = jsonl.read(alignment)
    shifted = [s | {"start": s["start"] + 0.04, "end": s["end"] + 0.04} for s in value["segments"]]
    # A cut copy abroad, whose segments begin elsewhere, and one that begins earlier.
    plant(chain, "estonia", "cut", samples[: 10 * RATE], value | {"segments": shifted[:2]}, "train")
    later = value | {"segments": value["segments"][:3]}
    plant(chain, "germany", "late", samples[RATE:] // 2, later, "train")
    ledgers = {land: chain.run(land) for land in ("germany", "estonia")}

    assert ledgers["estonia"]["segments"]["rejected"] == {"duplicate_across_splits": 2}
    assert ledgers["germany"]["segments"]["rejected"] == {"duplicate_across_splits": 3}
    (pair,) = ledgers["germany"]["left_out_copies"]
    assert (pair["recording"], pair["of_recording"]) == ("germany/late", name)
    assert pair["segments"] == 3 and pair["offset"] == pytest.approx(1.0, abs=0.02)
    line = f"germany/late (train) repeats 3 segments of {name} (test), {pair['offset']:g} s later"
    told = capfd.readouterr().err
    assert line in told and f"repeats 2 segments of {name} (test): left out of train" in told
    for land in ledgers:
        index, *others = all_keys(chain, land)
        assert others == [index] and not any("_cut_" in k or "_late_" in k for k in index)

    # Made again, all stays; without the test recording the copies come back.
    tars = {path: path.read_bytes() for path in chain.shards_dir.rglob("*.tar")}
    assert chain.run("germany")["left_out_copies"] == [pair]
    assert all(path.read_bytes() == content for path, content in tars.items())
    alignment.unlink()
    assert chain.run("germany")["left_out_copies"] == [] == chain.run("estonia")["left_out_copies"]
    for land in ledgers:
        index, *others = all_keys(chain, land)
        assert others == [index] and any("_cut_" in k or "_late_" in k for k in index)
    assert not list(chain.shards_dir.rglob(".*.left_out"))


def plant_equal(chain: Chain, country: str, *names: str) -> None:
    """Put recordings of one sound into the splits that their names begin with."""
    value = {"segments": corpora.segments(10, random.Random(1))}
    for name in names:
        plant(chain, country, name, corpora.noise(10, 1), value, name.partition("_")[0])


def test_of_recordings_that_are_all_equal_only_those_of_test_stay(tmp_path):
    """In a country without validation, and one that has test alone."""
    chain = Chain(tmp_path)
    plant_equal(chain, "germany", "train_1", "train_2", "test_1")
    plant_equal(chain, "estonia", "test_2")
    ledgers = {land: chain.run(land)["segments"] for land in ("germany", "estonia")}
    assert ledgers["germany"]["rejected"] == {"duplicate_across_splits": 4}
    assert (ledgers["germany"]["rows_out"], ledgers["estonia"]["rows_out"]) == (2, 2)
    for land in ledgers:
        assert all_keys(chain, land) == [set(), set()]
        assert (chain.shards_dir / f"{land}_test_shards.txt").read_text().count("\n") == 1


def test_without_a_search_copies_come_back_and_nothing_is_cut_again(tmp_path):
    chain = Chain(tmp_path)
    plant_equal(chain, "germany", "train_1", "test_1")
    chain.run("germany")
    for arguments, rejected in ((["--copies", "none"], {}), ([], {"duplicate_across_splits": 2})):
        assert chain.merge_shards("germany", *arguments) == 0
        ledger = jsonl.read(chain.shards_dir / "germany_ledger.json")["segments"]
        assert ledger["rejected"] == rejected
        index, listed = all_keys(chain, "germany")
        assert index == listed and len(index) == 2 - sum(rejected.values())
