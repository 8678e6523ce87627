"""What the tests of the workflow share: a small corpus, the table of the rules, and one dry run of
everything."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import corpora
from tests.asr.bucket_corpus import COLUMNS, write_manifest, write_tar
from tests.workflow.workflow import ROOT, Job, Workflow


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """Two countries, one with a space in its name, where nothing has been built. Tests only dry-run it."""
    folder = tmp_path_factory.mktemp("fresh")
    corpora.make_corpus(folder / "resources/speech/countries", {"malta": 6, "new zealand": 4})
    return Workflow(folder)


@pytest.fixture(scope="session")
def rules(fresh: Workflow) -> dict[str, dict]:
    """Name -> what tests/workflow/rule_table.py tells of the rule."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.workflow.rule_table", str(ROOT / "Snakefile"), "config.test.yaml"],
        cwd=fresh.folder,
        env=fresh.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {rule["name"]: rule for rule in json.loads(done.stdout.splitlines()[-1])}


@pytest.fixture(scope="session")
def jobs(rules: dict[str, dict]) -> dict[str, dict]:
    """The rules that run a command."""
    return {name: rule for name, rule in rules.items() if rule["shell"]}


@pytest.fixture(scope="session")
def dry_run(fresh: Workflow, tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """Everything, the demo corpus, and the ASR lane over foreign tars, dry-run where nothing has been
    built."""
    folder = tmp_path_factory.mktemp("tars")
    tar = write_tar(folder / "some tars/audio.tar", ["a.flac"])
    write_manifest(
        folder / "train.parquet", [dict(zip(COLUMNS, (str(tar), "a.flac", "text", "en", 4.0), strict=True))]
    )
    tars = Workflow(folder, lanes=["asr"], asr={"source": "manifests", "manifest_dir": "."})
    by_hand = ("speech_fetch_corpus", "asr_calibrate", "asr_throughput", "speech_hub", "speech_hub_diff")
    by_hand += ("results/asr/hub/check/receipt.json",)
    return fresh.dry("all", *by_hand) + tars.dry("asr_data")
