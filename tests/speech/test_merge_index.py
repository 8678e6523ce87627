"""The index of all countries, and the total of their ledgers."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
import soundfile

from millrace.common import jsonl
from millrace.speech import merge_index
from millrace.speech.columns import INDEX_SCHEMA
from tests import corpora
from tests.speech.chain import Chain, flags


def test_all_countries_in_one_index(tmp_path):
    chain = Chain(tmp_path)
    corpora.make_corpus(chain.root, {"germany": 3, "estonia": 2}, seconds=10)
    (chain.root / "latvia").mkdir()
    countries = ("estonia", "germany", "latvia")
    rows = [chain.run(country)["segments"]["rows_out"] for country in countries]
    indices = [str(chain.shards_dir / f"{country}_index.parquet") for country in countries]
    ledgers = [str(chain.shards_dir / f"{country}_ledger.json") for country in countries]
    outputs = flags(tmp_path, "index.parquet", "ledger.json")
    assert merge_index.main(["--indices", *indices, "--ledgers", *ledgers, *outputs]) == 0
    table = pq.read_table(tmp_path / "index.parquet")
    assert table.schema.equals(INDEX_SCHEMA) and table.num_rows == sum(rows) > 0
    assert table["country"].to_pylist() == ["estonia"] * rows[0] + ["germany"] * rows[1]
    ledger = jsonl.read(tmp_path / "ledger.json")
    assert ledger["total"]["rows_out"] == sum(rows) and len(ledger["countries"]) == 3


@pytest.mark.parametrize("row_group_size", [None, 1])
def test_cut_copies_in_other_splits_leave_all_tables_with_the_ledger_balanced(
    tmp_path, row_group_size
):
    chain = Chain(tmp_path)
    corpora.make_corpus(chain.root, {"germany": 3, "estonia": 1}, seconds=10)
    chain.sync()
    (test,) = [name for name in chain.placements() if chain.placements()[name] == "test"]
    original = test.removeprefix("germany/")
    # The first half of the recording, under other names, where training will see it.
    source = chain.root / f"germany/downloaded_audio/mp4_converted/{original}.wav"
    samples = soundfile.read(source, dtype="int16")[0]
    for country in ("germany", "estonia"):
        corpora.write_audio(chain.root, country, "cut.wav", samples[: len(samples) // 2])
        value = jsonl.read(chain.aligned("germany", original))
        value |= {"audio_file": "cut.wav", "segments": value["segments"][:1]}
        corpora.write_alignment(chain.root, country, "cut_t1", value)
        labels = {"country": country, "video_id": "cut", "split": "train", "subset_id": 1}
        row = {
            "item": f"{country}/cut",
            "group": f"{country}-train-1",
            "number": 0,
            "cost": 0.001,
            **labels,
        }
        with open(chain.assignment, "a") as lines:
            lines.write(json.dumps(row) + "\n")
    ledgers = {country: chain.run(country) for country in ("estonia", "germany")}
    pair = {"split": "train", "of_recording": test, "of_split": "test", "segments": 1}
    assert ledgers["germany"]["copies"] == [{"recording": "germany/cut", **pair}]
    assert ledgers["germany"]["segments"]["rejected"] == {"duplicate_across_splits": 1}
    manifest = pd.read_csv(chain.shards_dir / "germany_manifest.csv").query("video_id == 'cut'")
    assert list(manifest.status) == ["error_local_tar_duplicate"]
    assert test in manifest.error_message.item() and "in test" in manifest.error_message.item()
    for name in ("germany_train_nemo.jsonl", "germany_index.parquet"):
        assert b"germany_cut" not in (chain.shards_dir / name).read_bytes()
    # A country knows itself; the index of all knows the others too.
    indices = [chain.shards_dir / f"{country}_index.parquet" for country in ledgers]
    before = [key for path in indices for key in pq.read_table(path)["key"].to_pylist()]
    for path in indices:
        pq.write_table(pq.read_table(path), path, row_group_size=row_group_size)
    arguments = flags(tmp_path, "index.parquet", "ledger.json")
    for flag, file in (("--indices", "index.parquet"), ("--ledgers", "ledger.json")):
        arguments += [flag, *(str(chain.shards_dir / f"{country}_{file}") for country in ledgers)]
    assert merge_index.main(arguments) == 0
    index, ledger = (
        pq.read_table(tmp_path / "index.parquet").to_pandas(),
        jsonl.read(tmp_path / "ledger.json"),
    )
    assert index.sha256.is_unique and "cut" not in set(index.video_id)
    assert list(index.key) == [key for key in before if "_cut_" not in key]
    assert ledger["total"]["rejected"] == {"duplicate_across_splits": 2}
    assert ledger["total"]["rows_out"] == len(index)
    copies = [pair["recording"] for country in ledger["countries"] for pair in country["copies"]]
    assert copies == ["estonia/cut", "germany/cut"]
