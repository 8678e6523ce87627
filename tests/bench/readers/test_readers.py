"""The reader benchmark: the same samples from every reader, equal audio, and a report that says where we
lose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from millrace.asr.loading.row_table import RowTable
from tests.bench.readers import __main__, benchmark
from tests.bench.readers import corpus as reader_corpus
from tests.bench.readers import report as reader_report
from tests.bench.readers.benchmark import Result, Setting


@pytest.fixture
def setting(tmp_path) -> Setting:
    buckets = reader_corpus.make(tmp_path / "tars", tars=3, members_per_tar=12)
    (tmp_path / "scratch").mkdir()
    return Setting(
        str(buckets), reader_corpus.load(buckets, 20), tmp_path / "scratch", batch_seconds=30, raw_members=15
    )


def test_the_corpus_is_whole_tars_in_batches_that_fit(setting):
    corpus = setting.corpus
    assert len(corpus.members) == 24 and len(corpus.tars) == 2
    rows = RowTable.open(setting.bucket_dir).rows(corpus.rows)
    assert [(row.offset, row.size) for row in rows] == [
        (member.offset, member.size) for member in corpus.members
    ]
    batches = corpus.batches(30, seed=1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(24))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * corpus.durations[batch].max() <= 30


def test_all_readers_give_the_same_audio(setting):
    failures = benchmark._prepare(setting)
    equal, *_ = benchmark._check_equal(setting)
    assert equal == 24
    sums = {}
    for name in benchmark.BATCHES:
        if name not in failures:
            stream = benchmark._batch_stream(setting, name)
            sums[name] = sorted(
                round(float(np.abs(line[:length].numpy().astype(np.float64)).sum()), 6)
                for audio, lengths in stream
                for line, length in zip(audio, lengths, strict=True)
            )
    assert set(sums) >= {"millrace", "seed"} and all(found == sums["seed"] for found in sums.values())
    for name in benchmark.RAW:
        if name not in failures:
            members = list(benchmark._raw_stream(setting, "raw cold", name))
            assert len(members) == (24 if name in benchmark.STREAMING else 15)
            if name == benchmark.FLOOR:
                assert members == [member.size for member in benchmark._asked(setting)]
            else:
                assert all(bytes(raw[:4]) == b"fLaC" for raw in members)


def test_the_report_says_where_streaming_wins_and_who_did_not_run(setting, tmp_path):
    rates = {"millrace": 100.0, "seed": 30.0, "tarfile": 20.0, "webdataset": 250.0, "lhotse": 0.0}
    results = []
    for kind in benchmark.KINDS:
        for name in benchmark.BATCHES if kind == "batches" else benchmark.RAW:
            rate = rates.get(name, 50.0)
            order = "stream" if name in benchmark.STREAMING else "random"
            failed = "" if rate else "No module named 'lhotse'"
            results.append(
                Result(kind, name, order, [rate, rate * 3, rate / 3] if rate else [], [1.0], failed)
            )
    report = reader_report.report(setting, results, 24)
    line = {(line["kind"], line["reader"]): line for line in report["results"]}
    assert (
        line["raw warm", "seed"]["ours_is_faster_by"] == 3.33 and line["raw warm", "seed"]["bar_met"] is True
    )
    assert line["batches", "webdataset"]["bar_met"] is False and line["batches", "lhotse"]["bar_met"] is None
    said = "\n".join(report["findings"])
    assert "the storage alone gives 50 members/s, of which millrace reaches 200%" in said
    assert (
        "streaming wins. webdataset" in said
        and "2.50 times millrace" in said
        and "No module named 'lhotse'" in said
    )
    text = reader_report.table(report)
    assert "not met" in text and "3.33x" in text and "failed" in text
    for name in ("a.svg", "b.svg", "c.png"):
        reader_report.draw(report, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    json.dumps(report)


@pytest.mark.e2e
def test_the_command(tmp_path):
    output = tmp_path / "out" / "readers.json"
    arguments = [
        "--make-tars",
        "1",
        "--members",
        "40",
        "--runs",
        "1",
        "--batch-seconds",
        "60",
        "--workers",
        "1",
    ]
    arguments += ["--kinds", "batches"]
    assert __main__.main([*arguments, "--output", str(output), "--figure", str(tmp_path / "f.svg")]) == 0
    report = json.loads(output.read_text())
    assert report["bit_equal_samples"] > 0 and (tmp_path / "f.svg").stat().st_size > 5000
    assert all(line["runs"] or line["failed"] for line in report["results"])
    assert __main__.main(["--buckets", str(tmp_path), "--output", str(tmp_path / "x.json")]) == 1
    assert not Path(tmp_path / "x.json").exists()
