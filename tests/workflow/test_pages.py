"""The pages that the workflow makes: the throughput report, and how all of them open in a
browser."""

from __future__ import annotations

import subprocess

import pytest

from tests import corpora
from tests.workflow.workflow import Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]
PAGES = {
    "report.html": "Snakemake Report",
    "results/speech/report/summary.html": "segments found",
    "results/asr/report/throughput.html": "Training throughput",
    "results/asr/report/runs.html": "ASR runs",
}
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--dump-dom",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Workflow:
    """A small corpus with a run of a few steps, and all runs of the throughput report."""
    folder = tmp_path_factory.mktemp("pages")
    corpora.make_corpus(folder / "resources/speech/countries", {"malta": 8}, seconds=20)
    section = {
        "runs": {"demo": {"max_steps": 4, "log_steps": 2}},
        "training": {"batch_seconds": 20, "num_workers": 0},
        "model_options": {"hidden": 32, "channels": 4, "bins": 20},
        "throughput": {"check_steps": 2, "bench_steps": 2, "profile_steps": 1},
    }
    workflow = Workflow(folder, asr=section)
    workflow.run("all", "asr_throughput")
    return workflow


def test_the_throughput_report_compares_the_baseline_with_the_pipeline(ran):
    report = ran.read("results/asr/report/throughput.json")
    assert report["profile"]["steps"] == 1 and report["buckets"]
    assert report["comparison"]["samples"]["ratio"] > 0


@pytest.mark.debian("chromium")
def test_the_pages_open_in_a_browser(ran):
    ran.run("--report", "report.html")
    for page, words in PAGES.items():
        place = [f"--user-data-dir={ran.folder}/chromium", f"file://{ran.folder}/{page}"]
        done = subprocess.run([*CHROMIUM, *place], capture_output=True, text=True, timeout=180)
        assert words in done.stdout, (page, done.stderr[-2000:])
