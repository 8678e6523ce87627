"""The table of memory and time: one row a step and folder, the largest value of any job."""

from __future__ import annotations

from pathlib import Path

from tests.bench.resources import table

HEAD = "s\tmax_rss\tresources\tinput_size_mb\n"


def test_a_row_holds_the_largest_values_of_the_jobs_of_a_step(tmp_path: Path):
    folder = tmp_path / "benchmarks/speech/merge_shards"
    folder.mkdir(parents=True)
    asked = "{'mem_mb': 800, 'runtime': 15}"
    (folder / "malta.tsv").write_text(
        f"{HEAD}1.5\t120.4\t{asked}\t{{'a b.parquet': 0.5, 'c': 0.25}}\n"
    )
    (folder / "italy.tsv").write_text(f"{HEAD}9\tNA\t{asked}\t{{'a': 1200.5}}\n")
    (tmp_path / "benchmarks/asr/train_model").mkdir(parents=True)
    (tmp_path / "benchmarks/asr/train_model/demo.tsv").write_text("s\tmax_rss\n75\t1116\n")
    assert table([tmp_path]).splitlines()[2:] == [
        "| `asr_train_model` | 0.00 | 1,116 |  | 75 |  |",
        "| `speech_merge_shards` | 1,200.50 | 120 | 800 | 9 | 15 |",
    ]
