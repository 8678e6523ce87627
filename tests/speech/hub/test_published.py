"""The published manifest, of an index as large corpora have it."""

from __future__ import annotations

import pandas as pd
import pyarrow.parquet as pq
import pytest

from millrace.speech.hub import card, published
from tests.speech.hub.corpus import write_corpus

COUNTRIES = {"norway": ("train", "test"), "malta": ("validation",)}


@pytest.mark.parametrize("rows", [1, 3, 7, 10])
def test_an_index_of_several_row_groups_is_counted_whole(tmp_path, rows):
    """A shard's rows lie in several groups, and a group has rows of several shards."""
    index = write_corpus(tmp_path, COUNTRIES)
    whole = published.shards(tmp_path / "index.parquet")
    pq.write_table(index, tmp_path / "index.parquet", row_group_size=rows)
    assert pq.ParquetFile(tmp_path / "index.parquet").num_row_groups == -(-21 // rows)
    pd.testing.assert_frame_equal(published.shards(tmp_path / "index.parquet"), whole)

    expected = index.to_pandas().groupby("shard")["duration_seconds"].agg(["size", "sum"])
    assert whole.set_index("shard")["samples"].to_dict() == expected["size"].to_dict()
    assert whole.set_index("shard")["seconds"].to_dict() == pytest.approx(expected["sum"].to_dict())


def test_the_card_has_a_line_for_each_split_and_sums_them_in_its_total(tmp_path):
    write_corpus(tmp_path, COUNTRIES)
    table = published.shards(tmp_path / "index.parquet")
    table["seconds"] *= 36_000  # hours
    text = card.render(table, "me/speech", "")
    hours = {row.split: row.seconds / 3600 for row in table.itertuples()}
    lines = [
        f"| {country} | no | {split} | 7 | {hours[split]:,.2f} |"
        for country, split in (("malta", "validation"), ("norway", "train"), ("norway", "test"))
    ]
    assert "\n".join(lines) in text
    assert (
        f"\n21 segments of speech with their texts, {sum(hours.values()):,.2f} hours in 3 shards"
        in text
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"samples": 999}, 'size_categories:\n- "n<1K"'),
        ({"samples": 1000}, 'size_categories:\n- "1K<n<10K"'),
        ({"language": "und"}, 'license: "unknown"\ntask_categories'),
        ({"country": "a|b"}, r"| a\|b | no |"),
        ({"sample_rate": 8000}, "datasets.Audio(sampling_rate=8000)"),
    ],
)
def test_the_card_says_what_the_index_says_and_what_is_unknown(tmp_path, changes, words):
    write_corpus(tmp_path, {"norway": ("train",)}, samples=4)
    table = published.shards(tmp_path / "index.parquet").assign(**changes)
    assert words in card.render(table, "me/speech", "")
