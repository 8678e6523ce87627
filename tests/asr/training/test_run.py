"""A run in its folder: what is refused before it trains, and the model of one of its
checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from millrace.asr.models import registry
from millrace.asr.training import run as training_run
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common import atomic, jsonl
from millrace.common.training import run_folder
from millrace.common.training.settings import LoopSettings
from tests import forks
from tests.asr.training.test_task import SIZES, write, write_splits
from tests.refusals import refused

SETTINGS = LoopSettings(max_steps=2, save_steps=2, tensorboard=0, device="cpu")


def train(buckets: Path, folder: Path, **options: object) -> dict:
    chosen = {"model_options": SIZES, "num_workers": 0, "batch_seconds": 0.7, **options}
    return training_run.run(TrainOptions(str(buckets), **chosen), SETTINGS, folder)


def test_what_would_fail_after_training_is_refused_before(tmp_path):
    buckets, calibration = write(tmp_path), tmp_path / "calibrated_bs.json"
    sizes = {name: {"batch_size": 3} for name in ("b_0_3", "b_3_5")}
    atomic.write_json(calibration, {"key": {"precision": "bf16-mixed"}, "buckets": sizes})
    with refused("calibrated for another precision than this run has"):
        train(buckets, tmp_path / "run", calibration=str(calibration))
    write_splits(buckets, dev="train/b_0_3.parquet", test="test.parquet")
    with refused(r"test\.parquet"):
        train(buckets, tmp_path / "run")
    assert not list(tmp_path.glob("run/*"))


def test_the_test_split_is_evaluated_in_the_precision_of_the_run(tmp_path, monkeypatch):
    evaluate = AsrTask.test
    precisions = []

    def noted(task, model, precision, split="test"):
        precisions.append(precision)
        return evaluate(task, model, precision, split)

    monkeypatch.setattr(AsrTask, "test", noted)
    buckets = write(tmp_path)
    write_splits(buckets, dev="train/b_0_3.parquet", test="train/b_3_5.parquet")
    options = TrainOptions(str(buckets), model_options=SIZES, num_workers=0, batch_seconds=0.7)
    training_run.run(options, replace(SETTINGS, precision="bf16-mixed"), tmp_path / "run")
    assert precisions == ["bf16-mixed"]


def test_the_summary_holds_the_figures_of_both_splits_and_the_model_is_the_trained_one(tmp_path):
    buckets, folder = write(tmp_path), tmp_path / "run"
    write_splits(buckets, dev="train/b_0_3.parquet", test="train/b_3_5.parquet")
    summary = train(buckets, folder, eval_samples=5)
    assert (summary["optimizer_steps"], summary["ranks"], summary["loader"]) == (2, 1, "bucketed")
    for split in ("dev", "test"):
        assert summary["error_rates"][split]["overall"]["samples"] == 5
    facts = jsonl.read(folder / "throughput.json")
    assert (facts["precision"], facts["tf32"]) == ("32-true", "convolutions")
    assert (facts["max_steps"], facts["grad_acc"], facts["lr"]) == (2, 1, SETTINGS.lr)

    # What makes it another run, and what may change.
    of_run = jsonl.read(folder / "run.json")["run"].keys()
    assert {"plan", "texts", "model", "batch_seconds", "seed", "lr"} <= of_run
    assert not {"max_steps", "max_bad_fraction", "num_workers", "bucket_dir", "tf32"} & of_run

    last, _ = training_run.load_model(folder, "last", buckets)
    assert summary["parameters"] == sum(parameter.numel() for parameter in last.parameters())
    saved = registry.load(folder / "model")
    pairs = zip(last.state_dict().values(), saved.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs) and not last.training


def test_nobody_else_trains_in_the_folder_meanwhile(tmp_path, monkeypatch):
    train_here = training_run.loop.train

    def hold(folder: Path) -> None:
        with run_folder.held(folder, patience=0):
            pass

    def watched(task: object, settings: LoopSettings, folder: Path, on_step: object) -> object:
        with refused("another process is training here"):
            forks.answered(lambda: hold(folder))
        return train_here(task, settings, folder, on_step)

    monkeypatch.setattr(training_run.loop, "train", watched)
    train(write(tmp_path), tmp_path / "run")


def test_a_checkpoint_is_not_loaded_with_other_transcripts(tmp_path):
    """As many other characters fit the same weights, and mean something else."""
    train(write(tmp_path, "a1"), tmp_path / "run")
    assert training_run.load_model(tmp_path / "run", "last", tmp_path / "buckets")
    other = write(tmp_path / "other", "b1")
    with refused(r"the transcripts of .* are not those"):
        training_run.load_model(tmp_path / "run", "last", other)
