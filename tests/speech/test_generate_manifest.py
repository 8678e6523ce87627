"""The manifest of a partition: rows, rejects and ledger from real alignment files and real audio."""

import json

import pyarrow.parquet as pq
import pytest

from millrace.speech.columns import SCHEMA
from tests import corpora
from tests.speech.chain import Chain


@pytest.fixture
def chain(tmp_path):
    made = Chain(tmp_path)
    corpora.add_recording(made.root, "germany", "one", 20)
    return made


def test_rows_have_the_columns_and_values_of_the_corpus(chain):
    (partition,) = chain.sync().partitions["germany"]
    assert chain.generate(partition) == 0
    table = pq.read_table(chain.part(partition) / "manifest.parquet")
    assert table.schema.equals(SCHEMA) and table.num_rows == 4
    row = table.to_pylist()[1]
    source = json.loads((chain.root / "germany/Alignment/alignment_output/one_t1_aligned.json").read_bytes())
    segment = source["segments"][1]
    assert row["key"] == "germany_one_4750_8750" and row["language"] == "de" and row["batch_id"] == partition
    assert (row["human_transcript"], row["asr_transcript"]) == (segment["human_text"], segment["asr_text"])
    assert row["cer"] == segment["cer"] and row["wer"] > 0 and row["original_transcript_start_idx"] == 8
    (recording,) = json.loads((chain.part(partition) / "recordings.json").read_bytes())
    assert recording["duration_hours"] == pytest.approx(20 / 3600) and recording["split"] == "train"


def test_the_ledger_counts_rejects_and_repairs(chain):
    path = chain.root / "germany/Alignment/alignment_output/one_t1_aligned.json"
    value = json.loads(path.read_bytes())
    first, second = value["segments"][:2]
    value["segments"] += [{"start": 1}, "text", {**first, "cer": None}, {**second, "start": 0.1}]
    path.write_text(json.dumps(value))
    (partition,) = chain.sync().partitions["germany"]
    assert chain.generate(partition, "--max-duration", "5") == 0
    ledger = json.loads((chain.part(partition) / "ledger.json").read_bytes())
    expected = {"time_missing": 1, "segment_not_an_object": 1, "duplicate_exact": 1, "too_long": 1}
    assert (ledger["rows_in"], ledger["rows_out"], ledger["rejected"]) == (8, 4, expected)
    assert ledger["repaired"]["cer_computed"] == 1
    rejects = [
        json.loads(line) for line in (chain.part(partition) / "rejects.jsonl").read_bytes().splitlines()
    ]
    reasons = [(row["segment"], row["reason"]) for row in rejects]
    assert sorted(reasons) == [
        (4, "time_missing"), (5, "segment_not_an_object"), (6, "duplicate_exact"), (7, "too_long"),
    ]  # fmt: skip


def test_the_same_input_gives_the_same_bytes(chain):
    (partition,) = chain.sync().partitions["germany"]
    contents = []
    for _ in range(2):
        assert chain.generate(partition) == 0
        contents.append({path.name: path.read_bytes() for path in chain.part(partition).iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 4


def test_audio_that_cannot_be_read_is_a_warning_here_and_an_error_where_it_is_cut(chain):
    (chain.root / "germany/downloaded_audio/mp4_converted/one.wav").write_bytes(b"no audio" * 500)
    (partition,) = chain.sync().partitions["germany"]
    assert chain.generate(partition) == 0
    ledger = json.loads((chain.part(partition) / "ledger.json").read_bytes())
    assert ledger["rows_out"] == 4 and sum(ledger["warnings"].values()) == 1


def test_the_same_audio_in_another_split_is_rejected(chain):
    (partition,) = chain.sync().partitions["germany"]
    path = chain.folder / f"partitions/{partition}.json"
    content = json.loads(path.read_bytes())
    content["recordings"][0] |= {"twin_of": "germany/two", "twin_split": "test"}
    path.write_text(json.dumps(content))
    assert chain.generate(partition) == 0
    ledger = json.loads((chain.part(partition) / "ledger.json").read_bytes())
    assert ledger["rejected"] == {"same_audio_in_other_split": 4}


def test_repairs_of_one_transcript_outlive_the_next(chain):
    """A transcript that states every CER must not wipe out what was counted for the one before."""
    folder = chain.root / "germany/Alignment/alignment_output"
    value = json.loads((folder / "one_t1_aligned.json").read_bytes())
    later = [{**segment, "start": segment["start"] + 0.1} for segment in value["segments"]]
    (folder / "one_t2_aligned.json").write_text(json.dumps({**value, "segments": later}))
    value["segments"] = [{**segment, "cer": None} for segment in value["segments"]]
    (folder / "one_t1_aligned.json").write_text(json.dumps(value))
    (partition,) = chain.sync().partitions["germany"]
    assert chain.generate(partition) == 0
    ledger = json.loads((chain.part(partition) / "ledger.json").read_bytes())
    assert ledger["repaired"]["cer_computed"] == len(later)
