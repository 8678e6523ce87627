"""The manifest of a partition: rows, rejects and ledger from real alignment files and real audio."""

import shutil

import pyarrow.parquet as pq
import pytest

from millrace.common import jsonl
from millrace.speech.columns import SCHEMA
from tests import corpora
from tests.speech.audio.recordings import RATE, signal, write_av
from tests.speech.chain import Chain, edit


@pytest.fixture
def chain(tmp_path):
    made = Chain(tmp_path)
    corpora.add_recording(made.root, "germany", "one", 20)
    return made


PARTITION = "germany-train-1-00000"


def generate(chain: Chain, *arguments: str) -> dict:
    """Sync, make the manifest, and read its ledger."""
    assert chain.sync().partitions == {"germany": [PARTITION]} and chain.generate(PARTITION, *arguments) == 0
    return jsonl.read(chain.part(PARTITION) / "ledger.json")


def test_rows_have_the_columns_and_values_of_the_corpus(chain):
    generate(chain)
    table = pq.read_table(chain.part(PARTITION) / "manifest.parquet")
    assert table.schema.equals(SCHEMA) and table.num_rows == 4
    row, segment = table.to_pylist()[1], jsonl.read(chain.aligned("germany", "one"))["segments"][1]
    assert row["key"] == "germany_one_4750_8750" and row["language"] == "de" and row["batch_id"] == PARTITION
    assert (row["human_transcript"], row["asr_transcript"]) == (segment["human_text"], segment["asr_text"])
    assert row["cer"] == segment["cer"] and row["wer"] > 0 and row["original_transcript_start_idx"] == 8
    (recording,) = jsonl.read(chain.part(PARTITION) / "recordings.json")
    assert recording["duration_hours"] == pytest.approx(20 / 3600) and recording["split"] == "train"


def test_the_ledger_counts_rejects_and_repairs(chain):
    def spoil(value: dict) -> None:
        first, second = value["segments"][:2]
        value["segments"] += [{"start": 1}, "text", {**first, "cer": None}, {**second, "start": 0.1}]

    edit(chain.aligned("germany", "one"), spoil)
    ledger = generate(chain, "--max-duration", "5")
    reasons = ["time_missing", "segment_not_an_object", "duplicate_exact", "too_long"]
    assert (ledger["rows_in"], ledger["rows_out"]) == (8, 4) and ledger["repaired"]["cer_computed"] == 1
    assert ledger["rejected"] == dict.fromkeys(reasons, 1)
    rejects = [row for _, row, _ in jsonl.lines(chain.part(PARTITION) / "rejects.jsonl")]
    assert {row["segment"]: row["reason"] for row in rejects} == dict(enumerate(reasons, 4))


def test_the_same_input_gives_the_same_bytes(chain):
    contents = []
    for _ in range(2):
        generate(chain)
        contents.append({path.name: path.read_bytes() for path in chain.part(PARTITION).iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 5


def test_audio_that_cannot_be_read_is_a_warning_here_and_an_error_where_it_is_cut(chain):
    (chain.root / "germany/downloaded_audio/mp4_converted/one.wav").write_bytes(b"no audio" * 500)
    ledger = generate(chain)
    assert ledger["rows_out"] == 4 and sum(ledger["warnings"].values()) == 1


def test_the_same_audio_in_another_split_is_rejected(chain):
    chain.sync()
    twin = {"twin_of": "germany/two", "twin_split": "test"}
    edit(chain.folder / f"partitions/{PARTITION}.json", lambda value: value["recordings"][0].update(twin))
    assert chain.generate(PARTITION) == 0
    rejected = jsonl.read(chain.part(PARTITION) / "ledger.json")["rejected"]
    assert rejected == {"same_audio_in_other_split": 4}


def test_repairs_of_one_transcript_outlive_the_next(chain):
    """A transcript that states every CER must not wipe out what was counted for the one before."""
    first, second = (chain.aligned("germany", "one", transcript) for transcript in ("t1", "t2"))
    shutil.copy(first, second)
    edit(first, lambda value: [segment.update(cer=None) for segment in value["segments"]])
    edit(
        second, lambda value: [segment.update(start=segment["start"] + 0.1) for segment in value["segments"]]
    )
    assert generate(chain)["repaired"]["cer_computed"] == 4


@pytest.mark.parametrize(("normalise", "cer", "wer"), [("True", 0.0, 0.0), ("False", 4 / 15, 1.0)])
def test_a_missing_cer_is_that_of_normalised_texts(chain, normalise, cer, wer):
    texts = {"human_text": "Order, Minister", "asr_text": "order minister.", "cer": None}
    edit(chain.aligned("germany", "one"), lambda value: value["segments"][0].update(texts))
    generate(chain, "--normalise-text", normalise)
    row, stated = pq.read_table(chain.part(PARTITION) / "manifest.parquet").to_pylist()[:2]
    assert (row["cer"], row["wer"]) == (pytest.approx(cer), wer) and stated["cer"] == 0.05


def test_a_segment_behind_the_end_of_a_cut_ogg_says_so(chain):
    path = chain.root / "germany/downloaded_audio/mp4_converted/one.wav"
    write_av(path, signal(20), RATE, "libopus", "ogg")
    assert generate(chain)["warnings"] == {}
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    ledger = generate(chain)
    assert ledger["warnings"] == {"ogg_cut": 1} and ledger["rejected"]["time_out_of_range"] >= 2
    details = [row["detail"] for _, row, _ in jsonl.lines(chain.part(PARTITION) / "rejects.jsonl")]
    assert all("one.wav ends without its last page: it was cut off" in detail for detail in details)
