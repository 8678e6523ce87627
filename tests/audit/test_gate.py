"""The lanes' own loaders: they pass, and a bug that is planted in one of them keeps its run from
starting."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from millrace.audit.runner.guard import Guard
from tests.asr import audio_tars
from tests.audit.running import audited
from tests.image.trees import small_tree
from tests.music import versions
from tests.workflow.workflow import ROOT, Workflow

pytestmark = pytest.mark.long

# File, what stands there, and the bug: all ranks read what rank 0 does; a resumed run begins the
# epoch again.
ASR = ("asr/training/task.py", "rank=rank, max_open_tars", "rank=0, max_open_tars")
MUSIC = ("music/training/task.py", "loader.start_step = start_step", "loader.start_step = 0")
IMAGE = ("image/training/task.py", "loader.start_step = start_step", "loader.start_step = 0")
RUN = {"arch": "resnet_small", "epochs": 1, "batch_size": 16, "workers": 1, "shuffle_pool": 2}
RUN |= {"device": "cpu"}
RECORDS = {"train_files": 4, "val_files": 2, "train_size": 16, "val_resize": 16, "val_size": 16}
AUDIT, GATE, TRAIN = "audit_check_loader", "audit_verify_findings", "image_train_active"


def clone(folder: Path, bug: tuple[str, str, str]) -> Path:
    """A copy of this clone with a bug."""
    for name in ("scripts", "rules", "profiles", "envs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", folder)
    place, before, after = folder / "scripts/millrace" / bug[0], *bug[1:]
    assert before in place.read_text()
    place.write_text(place.read_text().replace(before, after))
    return folder


def asr(folder: Path) -> list[str]:
    buckets = audio_tars.corpus(folder, tars=3, members=20)
    chosen = {"bucket_dir": str(buckets), "batch_seconds": 0.6, "num_workers": 1}
    chosen["model_options"] = json.dumps({"hidden": 16, "channels": 4})
    return [
        "--ranks",
        "2",
        *(word for name, value in chosen.items() for word in ("--arg", f"{name}={value}")),
    ]


def music(folder: Path) -> list[str]:
    versions.corpus(folder, {"train": (12, 3), "valid": (3, 2), "test": (3, 2)})
    keys = dict(text.split("=") for text in versions.overrides(folder) if "path.logs" not in text)
    return ["--arg", f"keys={json.dumps(keys)}", "--ranks", "1"]


@pytest.mark.parametrize(
    "corpus, bug, entry",
    [(asr, ASR, "DP2"), pytest.param(music, MUSIC, "resume", marks=pytest.mark.slow)],
)
def test_a_planted_bug_turns_the_audit_of_a_lane_red(
    guard, tmp_path, monkeypatch, corpus, bug, entry
):
    loader = f"millrace.{corpus.__name__}.training.task:audited"
    flags = ["--loader", loader, *corpus(tmp_path / "corpus"), "--only", entry, "--timeout", "120"]
    assert audited(guard, flags)["entries"][entry]["verdict"] == "pass"
    monkeypatch.syspath_prepend(clone(tmp_path / "clone", bug) / "scripts")
    with Guard() as other:
        found = audited(other, flags)["entries"][entry]
    assert found["verdict"] == "fail", found


class Elsewhere(Workflow):
    """The workflow of another clone."""

    root = ROOT

    def command(self, *arguments: str) -> list[str]:
        words = super().command(*arguments)  # the first is Python, which may lie in this clone
        return [words[0], *(word.replace(str(ROOT), str(self.root)) for word in words[1:])]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Elsewhere:
    """A run of the image lane, audited and trained."""
    folder = small_tree(tmp_path_factory.mktemp("gate"), classes=2, train=40)
    image = {"raw_data_dir": ".", "records": RECORDS, "runs": {"demo": RUN}}
    workflow = Elsewhere(folder, lanes=["image"], image=image, audit={"timeout": 400})
    workflow.said = workflow.run("image")
    return workflow


def test_a_lane_that_passes_is_trained_and_nothing_is_pending(trained: Elsewhere):
    assert "Millrace: audit: loader of image demo: " in trained.said and " fail" not in trained.said
    assert trained.dry("image", "audit") == []
    report = json.loads((trained.folder / "results/audit/image/demo/findings.json").read_text())
    verdicts = {entry["name"]: entry["verdict"] for entry in report["entries"]}
    # The model and the split of evaluation are given, so that these are decided.
    assert (verdicts["DP8"], verdicts["splits"]) == ("pass", "pass")


@pytest.mark.parametrize(
    "chosen, pending",
    [
        ("image={runs: {demo: {lr: 0.01}}}", {TRAIN}),
        ("image={runs: {demo: {mixed_batches: 2}}}", {AUDIT, GATE, TRAIN}),
        ("audit={ignore: {DP9: it is bounded}}", {GATE}),
        ("audit={refuse: none}", {GATE}),
    ],
)
def test_an_audit_runs_again_only_for_its_loader_and_no_training_for_an_audit(
    trained, chosen, pending
):
    assert {job.rule for job in trained.dry("image", "--config", chosen)} == pending


def test_a_bug_stops_the_run_with_one_line_and_can_be_ignored_with_a_reason(
    trained: Elsewhere, tmp_path
):
    metrics = trained.folder / "results/image/runs/demo/metrics.json"
    before = metrics.read_bytes(), metrics.stat().st_mtime_ns
    trained.root = clone(tmp_path, IMAGE)
    jobs = {job.rule: job.reason for job in trained.dry("image")}
    assert set(jobs) == {AUDIT, GATE} and "MILLRACE_LOADER_CODE" in jobs[AUDIT]
    other = "image={runs: {demo: {lr: 0.01}}}"
    done = trained.call("image", "--config", other)
    (line,) = (text for text in done.stderr.splitlines() if text.startswith("Millrace: failed"))
    assert (
        done.returncode == 1
        and f"{GATE} image/demo: results/audit/image/demo/refused.html: resume" in line
    )
    assert "set audit.ignore: {resume: why}" in line
    assert (metrics.read_bytes(), metrics.stat().st_mtime_ns) == before
    ignored = ("--config", other, "audit={ignore: {resume: it never stops}}")
    assert {job.rule for job in trained.dry("image", *ignored)} == {GATE, TRAIN}
    trained.run("results/audit/image/demo/findings.html", *ignored)
    assert (
        "it never stops" in (trained.folder / "results/audit/image/demo/findings.html").read_text()
    )
