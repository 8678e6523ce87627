"""The reader benchmark: the same samples from every reader, equal audio, and ratios against the
bars."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.asr.loading.row_table import RowTable
from tests.bench.readers import __main__, benchmark
from tests.bench.readers import corpus as reader_corpus
from tests.bench.readers import report as reader_report
from tests.bench.readers.benchmark import FLOOR, ORIGINAL, OURS, STREAMING, Result, Setting


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> Setting:
    tmp_path = tmp_path_factory.mktemp("readers")
    buckets = reader_corpus.make(tmp_path / "tars", tars=3, members_per_tar=12)
    (tmp_path / "scratch").mkdir()
    corpus = reader_corpus.load(buckets, 20)
    return Setting(buckets, corpus, tmp_path / "scratch", batch_seconds=30, raw_members=15)


def test_the_corpus_is_whole_tars_in_batches_that_fit(setting):
    corpus = setting.corpus
    assert len(corpus.members) == 24 and len(corpus.tars) == 2
    rows = RowTable.open(setting.bucket_dir).rows(corpus.rows)
    assert [row[2:4] for row in rows] == [(member.offset, member.size) for member in corpus.members]
    batches = corpus.batches(30, seed=1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(24))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * corpus.durations[batch].max() <= 30


def test_all_readers_give_the_same_audio(setting):
    failures = benchmark.prepare(setting)
    assert benchmark.check_equal(setting) == 24
    sums = {}
    for name in set(benchmark.BATCHES) - set(failures):
        batches = (zip(*batch, strict=True) for batch in benchmark.batch_stream(setting, name))
        waves = [line[:length].double() for batch in batches for line, length in batch]
        sums[name] = sorted(round(float(wave.abs().sum()), 6) for wave in waves)
    assert set(sums) >= {OURS, ORIGINAL} and all(
        figures == sums[ORIGINAL] for figures in sums.values()
    )
    for name in set(benchmark.RAW) - set(failures):
        members = list(benchmark.raw_stream(setting, "raw cold", name))
        assert len(members) == (24 if name in STREAMING else 15)
        if name == FLOOR:
            assert members == [member.size for member in setting.raw()]
        else:
            assert all(bytes(raw[:4]) == b"fLaC" for raw in members)


def test_the_table_gives_ratios_bars_and_who_did_not_run(setting):
    rates = {OURS: 100.0, ORIGINAL: 30.0, "webdataset": 250.0, "lhotse": 0.0}
    results = []
    for kind in benchmark.KINDS:
        for name in benchmark.BATCHES if kind == "batches" else benchmark.RAW:
            rate, order = rates.get(name, 50.0), "stream" if name in STREAMING else "random"
            runs = [rate, rate * 3, rate / 3] if rate else []
            results.append(
                Result(kind, name, order, runs, [1.0], "" if rate else "No module named 'lhotse'")
            )
    lines = [
        " ".join(line.split()) for line in reader_report.table(setting, results, 24).splitlines()
    ]
    assert "decoded padded batches, warm original script random 30 1.000 3.33x 2.5x met" in lines
    assert "decoded padded batches, warm webdataset stream 250 1.000 0.40x 2.5x not met" in lines
    assert "raw members, page cache warm original script random 30 1.000 3.33x" in lines
    assert lines.count("lhotse did not run: No module named 'lhotse'") == 3
    assert lines.count("millrace reaches 200% of what the storage alone gives") == 2
    assert sum(line.startswith("webdataset is faster") for line in lines) == 3


@pytest.mark.slow
@pytest.mark.e2e
def test_the_command(tmp_path, capfd):
    arguments = ["--make-tars=1", "--members=40", "--runs=1", "--workers=1", "--batch-seconds=60"]
    assert __main__.main([*arguments, "--kinds", "batches"]) == 0
    output = capfd.readouterr().out
    assert "equal bit by bit" in output and "2.5x" in output
    assert __main__.main(["--buckets", str(tmp_path)]) == 1
