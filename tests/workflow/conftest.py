"""What the tests of the workflow share: a small corpus, the table of the rules, and one dry run of
everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests import corpora
from tests.asr.bucket_corpus import COLUMNS, write_manifest, write_tar
from tests.image.trees import small_tree
from tests.workflow import snakemake_server
from tests.workflow.workflow import ROOT, Job, Workflow

TWO_RANKS = {"ranks": 2, "calibration": {"device": "cpu"}, "training": {"device": "cpu"}}


def one_row(tar: Path, manifest: Path) -> None:
    """Write a tar of one member, and the manifest of it."""
    write_tar(tar, ["a.flac"])
    row = dict(zip(COLUMNS, (str(tar), "a.flac", "text", "en", 4.0), strict=True))
    write_manifest(manifest, [row])


@pytest.fixture(scope="session")
def fresh(tmp_path_factory) -> Workflow:
    """Two countries, one with a space in its name, where nothing has been built. Tests only dry-run
    it."""
    folder = tmp_path_factory.mktemp("fresh")
    corpora.make_corpus(folder / "resources/speech/countries", {"malta": 6, "new zealand": 4})
    return Workflow(folder)


@pytest.fixture(scope="session")
def rules(fresh) -> dict[str, dict]:
    """Name -> what tests/workflow/rule_table.py tells of the rule, for two ranks."""
    (fresh.folder / "ranks.yaml").write_text(yaml.safe_dump({"asr": TWO_RANKS}))
    arguments = [str(ROOT / "Snakefile"), "ranks.yaml"]
    done = snakemake_server.call(
        arguments, fresh.folder, fresh.environment(), module="tests.workflow.rule_table"
    )
    assert done.returncode == 0, done.stderr
    return {rule["name"]: rule for rule in json.loads(done.stdout.splitlines()[-1])}


@pytest.fixture(scope="session")
def jobs(rules) -> dict[str, dict]:
    """The rules that run a command."""
    return {name: rule for name, rule in rules.items() if rule["shell"]}


@pytest.fixture(scope="session")
def dry_run(fresh, tmp_path_factory) -> list[Job]:
    """Everything, the demos, the ASR lane over foreign tars, the music lane over features and the
    image lane over a folder, dry-run where nothing has been built."""
    folder = tmp_path_factory.mktemp("tars")
    one_row(folder / "some tars/audio.tar", folder / "train.parquet")
    tars = Workflow(folder, lanes=["asr"], asr={"source": "manifests", "manifest_dir": "."})
    folder = tmp_path_factory.mktemp("features")
    (folder / "chunk 1.h5").touch()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.json").write_text("{}")
    chosen = {"h5_root": ".", "splits": ".", "audio_root": "some audio"}
    chosen |= {"contract": {"bins": 72}, "runs": {"tiny": {"data.nworkers": 1}}}
    audit = {"timeout": 99, "refuse": ["DP1"]}
    music = Workflow(folder, lanes=["music"], music=chosen, audit=audit)
    images = small_tree(tmp_path_factory.mktemp("images"), classes=1, train=2)
    section = {"raw_data_dir": ".", "runs": {"demo": {}}}
    image = Workflow(images, lanes=["image"], image=section, audit={"refuse": "none"})
    by_hand = ("image_fetch_demo", "speech_fetch_corpus", "asr_calibrate", "asr_throughput")
    by_hand += ("speech_hub", "speech_hub_diff", "results/asr/hub/check/receipt.json")
    by_hand += ("results/asr/export/check/last/qwen-asr/config.json",)
    by_hand += ("results/asr/report/runs.html",)
    text = (
        fresh.dry("all", *by_hand)
        + tars.dry("asr_data")
        + music.dry("music", "music_fetch_demo", "music_create_features")
    )
    return text + image.dry("image", "image_readers", "audit")
