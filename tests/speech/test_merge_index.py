"""The index of all countries, and the total of their ledgers."""

import pyarrow.parquet as pq

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
    # A country's index that lacks rows, or is not given.
    assert merge_index.main(["--indices", *indices[1:], "--ledgers", *ledgers, *outputs]) == 1
