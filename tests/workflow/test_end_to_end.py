"""What `make run` promises: real speech in, shards, buckets and a trained model out, and then
nothing is pending."""

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest
import yaml

from tests.workflow.workflow import ROOT, Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Workflow:
    """The shipped config on the demo corpus, with a run of a few steps."""
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    config["asr"]["runs"] = {"demo": {"max_steps": 12, "log_steps": 3, "eval_samples": 20}}
    config["asr"]["training"] |= {"batch_seconds": 20, "num_workers": 0}
    config["asr"]["model_options"] = {"hidden": 32, "channels": 4, "bins": 20}
    workflow = Workflow(tmp_path_factory.mktemp("demo"), **config)
    workflow.run("speech_fetch_corpus")
    workflow.said = workflow.run()
    made = [path.name for path in (workflow.folder / "results/asr/report").iterdir()]
    assert made == ["runs.html"]  # only its own target makes the throughput report
    return workflow


def test_nothing_is_pending_afterwards(ran):
    assert ran.dry() == []


def test_the_last_lines_say_what_was_made(ran):
    lines = [line for line in ran.said.splitlines() if line.startswith("Millrace: ")]
    assert re.fullmatch(r"Millrace: speech: recordings: 37, countries: 5", lines[-8])
    shards = r"[\d.]+ hours, \d+ segments in shards, \d+ rejected \(\d+ \w+.*\)"
    assert re.fullmatch(rf"Millrace: speech: {shards}(; .* repeats .*)?", lines[-7])
    buckets = r"\d+ samples in buckets, no rows rejected; hours: train [\d.]+, .*"
    assert re.fullmatch(rf"Millrace: asr: {buckets}", lines[-6])
    assert re.fullmatch(
        r"Millrace: asr: run demo: dev WER [\d.]+ -> [\d.]+, .*, 12 steps in .*", lines[-5]
    )
    assert re.fullmatch(
        r"Millrace: audit: loader of asr demo: (\d+ (?!fail)[a-z ]+(, )?)+", lines[-4]
    )
    assert lines[-3:] == [
        f"Millrace: open {ran.folder}/results/speech/report/summary.html",
        f"Millrace: open {ran.folder}/results/asr/report/runs.html",
        f"Millrace: all pages in one: snakemake -s {ROOT}/Snakefile"
        " --configfile config.test.yaml --report report.html",
    ]
    assert ran.said.rstrip().endswith(lines[-1])


def test_speech_in_five_languages_is_in_shards_and_buckets(ran):
    index = pq.read_table(ran.folder / "results/speech/index.parquet")
    assert set(index["language"].to_pylist()) == {"en", "es", "fr", "it", "ru"}
    ledger = ran.read("results/speech/ledger.json")["total"]
    assert ledger["rows_in"] == index.num_rows + ledger["rows_rejected"]
    config = ran.read("results/asr/buckets/bucket_config.json")
    splits = index["split"].to_pylist()
    assert config["total_samples"] == splits.count("train") > 0
    assert {"validation", "test"} < set(splits)


def test_no_recording_is_in_two_splits(ran):
    index = pq.read_table(
        ran.folder / "results/speech/index.parquet", columns=["country", "video_id", "split"]
    )
    split_of = {}
    for row in index.to_pylist():
        split_of.setdefault((row["country"], row["video_id"]), set()).add(row["split"])
    assert all(len(splits) == 1 for splits in split_of.values())


def test_the_model_was_trained_and_tested(ran):
    metrics = ran.read("results/asr/runs/demo/metrics.json")
    assert metrics["optimizer_steps"] == 12 and metrics["test"]["samples"] > 0
    assert metrics["loss"] < metrics["first_evaluation"]["loss"]


def test_shards_and_model_are_on_the_local_hub(ran):
    shards = {row["path"] for row in ran.read("results/speech/hub/receipt.json")["files"]}
    index = pq.read_table(ran.folder / "results/speech/index.parquet", columns=["shard"])
    assert len(shards) == len(set(index["shard"].to_pylist())) + 2
    model = ran.read("results/asr/hub/demo/receipt.json")
    assert {row["path"] for row in model["files"]} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    assert "keep" in ran.run("speech_hub_diff") and ran.dry() == []
    assert [job.rule for job in ran.dry("speech_hub_diff")] == ["speech_upload_shards"]
