"""The task of version matching: the best model, when the rate falls, and means over ranks and
stops."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from millrace.common.errors import MillraceError
from millrace.common.loading.plan import BatchRequest
from millrace.common.training.ranks import Exchange
from millrace.music.models.clews import Clews
from millrace.music.training import conf, evaluation, run
from millrace.music.training import task as task_module
from millrace.music.training.loss import contrastive_loss
from millrace.music.training.task import VersionTask, audited
from tests.music.features.trees import indexed
from tests.music.seeded import set_weights
from tests.music.versions import SIZES, corpus, overrides
from tests.refusals import refused

FIGURES = ("m_MAP", "m_MR1", "m_ARP", "m_COMP")


def task_of(folder: Path, *more: str) -> VersionTask:
    task = VersionTask(conf.read(overrides(folder, *more)), folder)
    task.exchange = Exchange(1)
    return task


def mix_versions(path: Path) -> None:
    """Let the versions of a clique be of different tunes: any model finds those of one tune."""
    cliques = json.loads(path.read_text())
    versions = [version for clique in cliques.values() for version in clique]
    versions = versions[::2] + versions[1::2]
    path.write_text(json.dumps({name: [versions.pop(), versions.pop()] for name in cliques}))


def model_of(task: VersionTask, seed: int) -> Clews:
    """A model at which no part is without effect, another one for each seed."""
    model = Clews(task.config)
    set_weights(model)
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn(weights.shape, generator=draws), alpha=0.1)
    return model.eval()


def evaluated(task: VersionTask, model: Clews, epoch: int) -> dict[str, float]:
    """The figures of a model after so many epochs; the task saves it and observes them, as in the
    loop."""
    task.epochs_done = epoch
    with torch.inference_mode():
        metrics = task.evaluate(model, Fabric(accelerator="cpu", devices=1))
    task.observe(metrics)
    return metrics


def test_a_model_that_the_disk_has_no_room_for_is_named(tmp_path):
    corpus(tmp_path)
    task = task_of(tmp_path)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            evaluated(task, model_of(task, 1), 1)
        except MillraceError as error:
            os._exit(7 if "checkpoint_last.ckpt" in error.where else 8)

    child = multiprocessing.get_context("fork").Process(target=limited)
    child.start()
    child.join(60)
    assert child.exitcode == 7 and not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("quantity", FIGURES)
def test_the_best_model_is_the_one_with_the_best_monitored_figure(tmp_path, quantity):
    corpus(tmp_path, {**SIZES, "valid": (6, 2)})
    mix_versions(tmp_path / "valid.json")
    monitor = f"training.monitor.quantity={quantity}"
    task, values, marked = task_of(tmp_path, monitor), [], []
    # Each model twice: of equal figures the first stays.
    for epoch, seed in enumerate((1, 2, 3, 1, 2, 3), 1):
        metrics = evaluated(task, model_of(task, seed), epoch)
        values.append(metrics[f"valid/{quantity}"])
        best = torch.load(tmp_path / "checkpoint_best.ckpt", weights_only=True)
        marked.append(best["epoch"])
    pick = np.argmax if quantity == "m_MAP" else np.argmin
    # After each epoch the best so far, the first of equal ones; and there is something to choose
    # from.
    assert marked == [1 + int(pick(values[: number + 1])) for number in range(6)]
    assert len(set(marked)) > 1
    assert torch.load(tmp_path / "checkpoint_last.ckpt", weights_only=True)["epoch"] == 6


def observed(task: VersionTask, values: list[float]) -> list[float]:
    """The factor of the learning rate after each value of the monitor, which the others share."""
    factors = []
    for epoch, value in enumerate(values, 1):
        task.epochs_done = epoch
        names = [f"valid/{name}" for name in FIGURES]
        task.observe({"hpar/epoch": float(epoch), **dict.fromkeys(names, value)})
        factors.append(round(task.rate_factor(epoch), 6))
    return factors


WORSE = [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
BETTER = WORSE[::-1]


@pytest.mark.parametrize(
    "schedule, quantity, values, factors",
    [
        ("plateau_1", "m_COMP", WORSE, [1, 0.2, 0.04, 0.008, 0.0016, 0.00032]),
        ("plateau_2", "m_COMP", WORSE, [1, 1, 0.2, 0.2, 0.04, 0.04]),
        ("plateau_3", "m_COMP", WORSE, [1, 1, 1, 0.2, 0.2, 0.2]),
        ("plateau_2", "m_COMP", BETTER, [1] * 6),
        ("plateau_2", "m_MAP", WORSE, [1] * 6),
        ("plateau_2", "m_MAP", BETTER, [1, 1, 0.2, 0.2, 0.04, 0.04]),
        ("plateau_2", "m_COMP", [5, 6, 4, 6, 6, 6], [1, 1, 1, 1, 0.2, 0.2]),
        ("flat", "m_COMP", WORSE, [1] * 6),
    ],
)
def test_the_rate_falls_to_a_fifth_after_so_many_epochs_without_a_better_figure(
    tmp_path, schedule, quantity, values, factors
):
    corpus(tmp_path)
    monitor = f"training.monitor.quantity={quantity}"
    task = task_of(
        tmp_path, monitor, f"training.optim.sched={schedule}", "training.optim.min_lr=1e-12"
    )
    assert observed(task, values) == factors


def test_a_resumed_task_knows_how_many_epochs_are_done(tmp_path):
    corpus(tmp_path)
    tasks = [task_of(tmp_path) for _ in range(3)]
    tasks[0].epochs_done, tasks[1].epochs_done = 3, 2
    tasks[2].load_rank_states([task.rank_state() for task in tasks[:2]])
    assert tasks[2].epochs_done == 3


def test_tracks_that_cannot_be_read_are_counted_as_left_out_of_the_validation(tmp_path):
    index = corpus(tmp_path, {**SIZES, "valid": (4, 3)}, chunks=30)
    task = task_of(tmp_path, "data.max_missing_fraction=0.5")
    lost = task.features.cliques["valid"].tracks[0]
    Path(index.track(int(lost)).file).unlink()
    metrics = evaluated(task, model_of(task, 0), 0)
    assert metrics["valid/left_out"] == 1
    task.conf["data.max_missing_fraction"] = 0.0
    with refused("1 of 12 tracks cannot be read"):
        evaluated(task, model_of(task, 0), 0)
    # The untrained model is no best one.
    assert not (tmp_path / "checkpoint_best.ckpt").exists()


def test_a_step_gives_the_loss_of_cliques_and_recordings_and_counts_what_was_replaced(tmp_path):
    corpus(tmp_path)
    task = task_of(tmp_path)
    model = model_of(task, 0)
    batch = task.batch_loader(0).dataset.load(BatchRequest(0, task.plan(0, 1).batch(0, 0), epoch=0))
    torch.manual_seed(0)
    expected = contrastive_loss(model(batch.x), batch.cc, batch.ii, task.config)
    torch.manual_seed(0)
    batch.bad = [object()] * 2
    loss, tracks, counts = task.training_step(model, batch)
    assert torch.equal(loss, expected)
    assert (tracks, counts) == (len(batch.ii), {"replaced": 2})


@pytest.mark.parametrize("name", ["ids", "cliques", "frames", "hops"])
def test_other_recordings_are_another_run(tmp_path, name):
    corpus(tmp_path)
    task = task_of(tmp_path)
    before = task.state_dict()
    getattr(task.features.cliques["train"], name)[0] += 1
    assert task.state_dict() != before


@pytest.mark.parametrize("split", ["train", "valid"])
def test_other_values_of_as_many_frames_are_another_run(tmp_path, split):
    index = corpus(tmp_path)
    task = task_of(tmp_path)
    before = task.state_dict()
    track = index.track(int(task.features.cliques[split].tracks[0]))
    with h5py.File(track.file, "a") as h5:
        h5[track.key][0, 0] += 1
    indexed(tmp_path)
    assert task_of(tmp_path).state_dict() != before


def test_a_run_ends_by_a_figure_that_is_no_number_and_by_a_rate_below_the_least(tmp_path):
    corpus(tmp_path)
    task = task_of(tmp_path, "training.optim.lr=1", "training.optim.min_lr=1")
    figures = dict.fromkeys((f"valid/{name}" for name in FIGURES), 5.0)
    task.epochs_done = 1
    assert task.observe({"hpar/epoch": 1.0, **figures}) == ""
    broken = {"hpar/epoch": 1.0, **figures, "valid/m_ARP": float("nan")}
    assert task.observe(broken) == "NaN or inf reached (valid/m_ARP)"


def test_training_begins_with_a_model_of_its_own_sizes(tmp_path):
    corpus(tmp_path)
    task = task_of(tmp_path)
    evaluated(task, model_of(task, 0), 1)
    run.write_configuration(task.conf, tmp_path)
    checkpoint = f"checkpoint={tmp_path}/checkpoint_last.ckpt"
    assert task_of(tmp_path, checkpoint).build_model().config == task.config
    with refused("another one than the configuration's"):
        task_of(tmp_path, checkpoint, "model.zdim=32").build_model()


def test_choices_of_the_configuration_reach_what_reads_batches(tmp_path):
    corpus(tmp_path)
    chosen = {"data.max_missing_fraction": 0.25, "data.p_samesong": 0.5, "data.prefetch_factor": 7}
    chosen |= {"data.nworkers": 1, "data.mp_context": "forkserver"}
    task = task_of(tmp_path, *(f"{key}={value}" for key, value in chosen.items()))
    loader = task.batch_loader(0)
    dataset = loader.dataset
    assert loader.bad.max_bad_fraction == 0.25
    assert (dataset.p_samesong, dataset.seed, dataset.augment) == (0.5, 43, task.augment)
    workers = loader.data_loader
    assert workers.multiprocessing_context.get_start_method() == "forkserver"
    assert workers.prefetch_factor == 7


def test_too_many_unreadable_tracks_end_training_with_the_key_of_the_configuration(tmp_path):
    corpus(tmp_path)
    bad = task_of(tmp_path, "data.nworkers=0").batch_loader(0).bad
    bad.reasons["file_missing"] = 1000
    with refused(r"or raise data\.max_missing_fraction$"):
        bad.check()


def test_choices_of_the_configuration_reach_what_reads_features(tmp_path):
    index = corpus(tmp_path)
    (tmp_path / "moved").mkdir()
    for file in tmp_path.glob("*.h5"):
        file.rename(tmp_path / "moved" / file.name)
    task = task_of(tmp_path, f"path.h5_root={tmp_path}/moved")
    reader = task.features.reader
    windows = reader.windows
    assert windows.read(0, 0, 5).shape == (84, 5) and windows.index.roots != index.roots


def test_a_recording_in_two_splits_and_features_of_other_bins_are_refused(tmp_path):
    corpus(tmp_path)
    splits = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("train", "valid")]
    (tmp_path / "other.json").write_text(json.dumps({"C-1": splits[0]["C-1"]}))
    with refused("C-1"):
        task_of(tmp_path, f"path.splits.test={tmp_path / 'other.json'}")
    splits[1]["C-1"] = splits[0]["C-1"]
    (tmp_path / "valid.json").write_text(json.dumps(splits[1]))
    with refused("C-1"):
        task_of(tmp_path)
    both = task_of(tmp_path, "data.on_leak=reject").features.cliques
    assert (len(both["train"]), len(both["valid"])) == (15, 9)
    with refused(r"are 84, 0\.02 and 5, the model takes 72"):
        task_of(tmp_path, "data.on_leak=reject", "model.cqt.noctaves=6")
    with refused(r"the model takes 84, 0\.02 and 2"):
        task_of(tmp_path, "data.on_leak=reject", "model.cqt.pool=2")
    for reduction in ("model.loss.redux.pos=mean", "model.loss.redux.neg=mean"):
        with refused("there is no track reduction 'mean'"):
            task_of(tmp_path, "data.on_leak=reject", reduction)


def test_windows_of_the_validation_overlap_by_half_and_those_of_training_do_not(
    tmp_path, monkeypatch
):
    corpus(tmp_path)
    task = task_of(tmp_path)
    cuts = []

    def embed(model, cliques, reader, cut, *options):
        cuts.append(cut(300))
        return evaluation.embed(model, cliques, reader, cut, *options)

    monkeypatch.setattr(task_module, "embed", embed)
    evaluated(task, model_of(task, 0), 1)
    assert cuts == [(100, 40, 20, 0)]
    assert task.batch_loader(0).dataset.geometry == (100, 40, 40, 0)
    assert task_of(tmp_path, "data.maxlen=12").geometry(4) == (100, 40, 40, 120)


def test_the_audit_knows_a_batch_by_its_anchors(tmp_path):
    corpus(tmp_path)
    keys = dict(text.split("=", 1) for text in overrides(tmp_path))
    loader = audited(keys)
    seen = [loader.sample_ids(batch) for batch in loader]
    flat = [number for batch in seen for number in batch]
    assert {len(batch) for batch in seen} == {4} and len(set(flat)) == len(flat) == 16
    # Of the recordings that it trains on none is evaluated.
    index = loader.task.features.index
    for split, names in (
        ("train", loader.recordings()),
        ("valid", task_module.audited_validation(keys).recordings()),
    ):
        tracks = loader.task.features.cliques[split].tracks
        assert list(names) == [index.id(track) for track in tracks.tolist()]


@pytest.mark.parametrize("device, pins", [("cpu", False), ("cuda", True), ("auto", True)])
def test_batches_are_pinned_only_where_a_gpu_trains(tmp_path, monkeypatch, device, pins):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    corpus(tmp_path)
    task = task_of(tmp_path, f"fabric.accelerator={device}")
    assert task.batch_loader(0).data_loader.pin_memory == pins
