"""What a country's shards come to: final statuses, balance, NeMo manifests, sweeping."""

import json
import os
import re
import tarfile

import pandas as pd
import pyarrow.parquet as pq
import pytest
import soundfile

from millrace.common import jsonl
from tests import corpora
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


def test_nemo_manifests_point_into_the_tars(chain):
    chain.run("germany", partition_hours=0.004)
    seen, tars = 0, {}
    for split in FRACTIONS:
        tars[split] = (chain.shards_dir / f"germany_{split}_shards.txt").read_text().splitlines()
        for _, row, _ in jsonl.lines(chain.shards_dir / f"germany_{split}_nemo.jsonl"):
            with tarfile.open(chain.shards_dir / row["tar"]) as tar:
                assert tar.getmember(row["audio_filepath"]).size > 0
            assert row["duration"] > 0 and row["text"] and row["lang"] == "de"
            # The list is given to NeMo, which takes the tars by their place in it.
            assert tars[split][row["shard_id"]] == row["tar"] and f"-{split}-" in row["tar"]
            seen += 1
    assert len(tars["train"]) > 1
    assert seen == pq.read_table(chain.shards_dir / "germany_index.parquet").num_rows > 0


def test_a_copy_in_a_later_partition_leaves_by_its_own_row(chain):
    chain.sync()
    (test,) = [name for name, split in chain.placements().items() if split == "test"]
    original = test.removeprefix("germany/")
    source = chain.root / f"germany/downloaded_audio/mp4_converted/{original}.wav"
    samples = soundfile.read(source, dtype="int16")[0]
    corpora.write_audio(chain.root, "germany", "cut.wav", samples[: len(samples) // 2])
    value = jsonl.read(chain.aligned("germany", original))
    value |= {"audio_file": "cut.wav", "segments": value["segments"][:1]}
    corpora.write_alignment(chain.root, "germany", "cut_t1", value)
    labels = {"country": "germany", "video_id": "cut", "split": "train", "subset_id": 1}
    row = {"item": "germany/cut", "group": "germany-train-1", "number": 9, "cost": 0.001, **labels}
    with open(chain.assignment, "a") as lines:
        lines.write(json.dumps(row) + "\n")

    ledger = chain.run("germany")["segments"]
    assert ledger["rejected"] == {"duplicate_across_splits": 1}
    final = pd.read_csv(chain.shards_dir / "germany_manifest.csv", keep_default_na=False)
    index = pq.read_table(chain.shards_dir / "germany_index.parquet").to_pandas()
    assert (
        set(index.key) == set(final[final.video_id != "cut"].key)
        and len(index) == ledger["rows_out"]
    )
    assert (
        jsonl.read(chain.folder / "partitions/countries/germany.json")["partitions"][-1][-5:]
        != "00000"
    )


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


def test_recordings_left_out_by_choice_are_counted_and_no_errors(chain):
    ledger = chain.run("germany", max_recordings=2)
    assert ledger["recordings"] == 2 and ledger["segments"]["rejected"] == {}
    assert (ledger["files"]["rows_in"], ledger["files"]["rows_out"]) == (5, 2)
    assert ledger["files"]["rejected"] == {"over_max_recordings": 3}
    rejects = pd.read_csv(chain.shards_dir / "germany_rejects.csv")
    assert sorted(rejects.file) == [f"rec_000{n}_t1_aligned.json" for n in (2, 3, 4)]


def test_too_many_errors_are_listed(chain, capfd):
    corpora.add_recording(chain.root, "estonia", "one", 8)
    for path in (chain.root / "germany/downloaded_audio/mp4_converted").glob("rec_000[01].wav"):
        path.write_bytes(b"")
    for partition in chain.sync().partitions["germany"]:
        assert chain.generate(partition) == 0 and chain.create(partition) == 0
    assert chain.merge_shards("germany") == 1
    printed = capfd.readouterr().err
    assert "max_error_fraction 0.1" in printed and "Traceback" not in printed
    # By file, the worst first; and what can be built meanwhile.
    assert re.search(
        r"in:\n  \S+rec_000[01].wav: [34], first audio_load: .*\n  \S+rec_000[01].wav: [23],",
        printed,
    )
    assert "errors.csv" in printed and "--config 'speech={countries: [estonia]}'" in printed
    assert len(pd.read_csv(chain.folder / "errors.csv")) > 0
    assert chain.merge_shards("germany", "--max-error-fraction", "1") == 0
