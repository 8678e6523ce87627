"""What README says is so: its snippets run on real shards, its tables are complete, its commands exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests import corpora
from tests.workflow.workflow import ROOT, Workflow

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """A country's shards, made by a run."""
    folder = tmp_path_factory.mktemp("readme")
    corpora.make_corpus(folder / "resources/speech/countries", {"malta": 3}, seconds=10)
    workflow = Workflow(folder)
    workflow.run("speech_shards")
    return workflow


@pytest.mark.e2e
@pytest.mark.parametrize(("number", "split"), [(0, "train"), (1, "train"), (2, "test")])
def test_snippets_read_every_segment(built: Workflow, number: int, split: str, tmp_path: Path):
    assert len(SNIPPETS) == 4
    expected = pq.read_table(built.folder / "results/speech/index.parquet", filters=[("split", "=", split)])
    done = subprocess.run(
        [sys.executable, "-c", SNIPPETS[number]],
        cwd=built.folder,
        env=built.environment(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == expected["key"].to_pylist() != []


@pytest.mark.e2e
def test_the_snippet_of_the_asr_lane_reads_the_training_rows(built: Workflow):
    built.run("asr_data")
    done = subprocess.run(
        [sys.executable, "-c", SNIPPETS[3]],
        cwd=built.folder,
        env=built.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    index = pq.read_table(built.folder / "results/speech/index.parquet", filters=[("split", "=", "train")])
    seen = [
        int(size) for line in done.stdout.splitlines() for size in re.findall(r"torch.Size\(\[(\d+),", line)
    ]
    assert sum(seen) == index.num_rows > 0


@pytest.mark.e2e
def test_touched_audio_is_pending_and_can_be_accepted(built: Workflow):
    audio = next(built.folder.glob("resources/speech/countries/malta/downloaded_audio/*/*.wav"))
    assert built.dry("speech_shards") == []
    audio.touch()
    assert {job.rule for job in built.dry("speech_shards")} >= {
        "speech_generate_manifest",
        "speech_create_shards",
    }
    built.run("--touch", "speech_shards")
    assert built.dry("speech_shards") == []


@pytest.mark.e2e
def test_keys_that_change_places_make_their_steps_pending_and_are_named(built: Workflow):
    # 1 and 0.3 before, 0.3 and 1 now: as a set, which is how Snakemake compares params, they are the same.
    jobs = built.dry("speech_shards", "--config", "speech={max_shard_size_gb: 0.3, max_cer: 1}")
    reasons = [job.reason for job in jobs if job.rule == "speech_create_shards"]
    assert reasons and all(
        "--max-cer 1" in reason and "--max-shard-size-gb 0.3" in reason for reason in reasons
    )


@pytest.mark.e2e
def test_the_files_and_columns_of_the_table_are_those_that_are_there(built: Workflow):
    folder = built.folder / "results/speech"
    manifest = re.search(r"\| `manifest/<country>_manifest.csv` \| one row a segment: (.*) \|", README)[1]
    splits = re.search(r"\| `manifest/<country>_splits.csv` \| one row an audio file: (.*) \|", README)[1]
    rejects = re.search(r"\| `shards/<country>_rejects.csv` \| what was left out: (.*) \|", README)[1]
    shown = {"shards/malta_manifest.csv": manifest, "shards/malta_rejects.csv": rejects}
    for name, columns in shown.items():
        assert (folder / name).read_text().splitlines()[0] == columns.replace(", ", ",")
    built.run("speech_manifest")
    assert (folder / "manifest/malta_manifest.csv").read_text().splitlines()[0] == manifest.replace(", ", ",")
    assert (folder / "manifest/malta_splits.csv").read_text().splitlines()[0] == splits.replace(", ", ",")
    for name in (
        "malta_ledger.json",
        *(f"malta_{split}_nemo.jsonl" for split in ("train", "validation", "test")),
    ):
        assert (folder / "shards" / name).stat().st_size


def test_every_target_for_people_is_in_the_table(rules):
    listed = set(re.findall(r"^\| `([a-z_]+)`", README, re.M))
    assert (
        {name for name, rule in rules.items() if not rule["shell"]}
        <= listed
        <= set(rules) | {"speech_fetch_corpus"}
    )


def test_the_keys_it_explains_are_in_the_schema():
    schemas = [
        yaml.safe_load(path.read_text())["properties"] for path in (ROOT / "rules/schemas").glob("*.yaml")
    ]
    keys = {key for schema in schemas for key in schema}
    explained = set(re.findall(r"^- `([a-z_]+)`:", README, re.M))
    assert explained and explained <= keys


def test_files_and_links_it_names_are_there():
    for link in re.findall(r"\]\(([A-Za-z][\w./-]*)\)", README):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:rules|scripts|envs|profiles|\.ci)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)`", README):
        assert re.search(rf"^{target}:.*## ", makefile, re.M), target


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_assignment_file_gets_into_version_control_with_the_command_it_gives(tmp_path: Path):
    command = re.search(r"`(git add [^`]*)`", README)[1].split()
    assert command[-1] == yaml.safe_load((ROOT / "config.yaml").read_text())["speech"]["assignment_file"]
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / command[-1]).parent.mkdir(parents=True)
    (tmp_path / command[-1]).touch()
    for step in (["git", "init", "--quiet"], command):
        subprocess.run(step, cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert listed.split() == [command[-1]]
