"""The loop on one rank: killed and resumed runs against runs left alone, and against a plain torch
loop."""

from __future__ import annotations

import copy
import logging
import math
import multiprocessing
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch

from millrace.common import jsonl, stopping
from millrace.common import settings as common_settings
from millrace.common.stopping import REQUEUE_EXIT_CODE
from millrace.common.training import devices, loop, run_log, seeding
from millrace.common.training.meters import Window
from millrace.common.training.position import Position
from millrace.common.training.ranks import Exchange, Ranks
from millrace.common.training.schedule import Schedule
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import weights_digest
from millrace.common.training.updates import Updates
from tests.common.training.tiny_task import TinyDataset, TinyTask, run
from tests.refusals import refused

# What must be the same in a run that was left alone; times and rates are not.
EVENTS = ("train", "epoch", "eval")
EXACT = (
    "event",
    "step",
    "epoch",
    "loss",
    "weight",
    "lr",
    "grad_norm",
    "samples",
    "metrics",
    "epoch_samples",
)


@pytest.fixture(autouse=True)
def one_thread():
    """As the rules set it; forked children then need no thread pool of their parent."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lines(folder: Path) -> list[dict]:
    return [orjson.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]


def exact(folder: Path) -> list[dict]:
    return [{name: line[name] for name in EXACT if name in line} for line in lines(folder)]


def values(folder: Path, name: str, event: str = "train") -> list[Any]:
    """What the lines of an event say of something."""
    return [line[name] for line in lines(folder) if line["event"] == event]


def losses(folder: Path) -> list[float]:
    return values(folder, "loss")


def ids_of(folder: Path, rank: int = 0) -> list[dict]:
    return [
        orjson.loads(line)
        for line in (folder / f"sample_ids.{rank}.jsonl").read_bytes().splitlines()
    ]


def forked(folder: Path, settings: dict, task: dict) -> int:
    """The exit code of a run in a process of its own."""
    child = multiprocessing.get_context("fork").Process(target=run, args=(folder, settings, task))
    child.start()
    child.join(120)
    assert child.exitcode is not None, "the run hangs"
    return child.exitcode


def saved_steps(folder: Path) -> list[int]:
    return sorted(
        int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*")
    )


@pytest.mark.parametrize(
    "settings, task, kills",
    [
        # 13 steps an epoch. Killed before the first checkpoint, at one, in the last step of an
        # epoch, in the next.
        ({"epochs": 2, "eval_steps": 5, "eval_at_start": 1}, {}, (1, 2, 7, 13, 14, 26)),
        # Windows of the log, checkpoints and accumulation out of step with each other; workers.
        ({"epochs": 2, "log_steps": 3, "grad_acc": 2}, {"workers": 2, "dropout": 0.3}, (12,)),
        (
            {"epochs": 1, "max_steps": 17, "lr_scheduler_type": "linear", "save_steps": 5},
            {},
            (9, 15),
        ),
    ],
)
def test_a_run_killed_at_any_step_goes_on_as_if_it_had_not_been(tmp_path, settings, task, kills):
    alone = run(tmp_path / "alone", settings, task)
    killed = tmp_path / "killed"
    for step in kills:
        assert (
            forked(killed, settings, {**task, "fault": "kill", "at_step": step}) == -signal.SIGKILL
        )
    result = run(killed, settings, task)
    assert result.resumed_step is not None
    assert exact(killed) == exact(tmp_path / "alone")
    assert ids_of(killed) == ids_of(tmp_path / "alone")
    assert result.digest == alone.digest
    assert result.position.samples == alone.position.samples


def test_stop_signals_finish_the_step_save_and_ask_for_a_requeue(tmp_path):
    settings = {"epochs": 2, "save_steps": 0, "eval_steps": 4}
    alone = run(tmp_path / "alone", settings, {})
    stopped = tmp_path / "stopped"
    assert forked(stopped, settings, {"fault": "TERM", "at_step": 4}) == REQUEUE_EXIT_CODE
    assert saved_steps(stopped) == [4]
    assert not (stopped / "metrics.json").exists()
    assert forked(stopped, settings, {"fault": "USR1", "at_step": 13}) == REQUEUE_EXIT_CODE
    assert saved_steps(stopped) == [4, 13]
    assert forked(stopped, settings, {"fault": "TERM", "at_step": 26}) == REQUEUE_EXIT_CODE
    result = run(stopped, settings, {})
    assert result.digest == alone.digest
    # An evaluation that was due when the signal came is made up for by the next run, so it may
    # follow an epoch's line.
    assert sorted(map(repr, exact(stopped))) == sorted(map(repr, exact(tmp_path / "alone")))


def test_a_finished_run_is_not_trained_or_evaluated_again(tmp_path):
    first = run(tmp_path, {"max_steps": 3}, {})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = run(tmp_path, {"max_steps": 3}, {"fault": "nan", "at_step": 4})
    assert again.summary() == first.summary() and again.digest == first.digest
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert orjson.loads((tmp_path / "rank.0.json").read_bytes())["digest"] == first.digest


def plain_torch(task: TinyTask, clip: float, group: int) -> tuple[torch.nn.Module, list[float]]:
    """One epoch written down directly: batches of `group` samples, mean over frames, cosine from
    step 0."""
    seeding.seed_all(42, "model")
    model = task.build_model()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    )
    order = seeding.generator(42, "order", 0).permutation(task.size).tolist()
    steps, seen = -(-task.size // group), []
    for step in range(steps):
        batch = TinyDataset(42)[(0, order[step * group : (step + 1) * group])]
        loss = (((model(batch.x) - batch.y) ** 2) * batch.mask).sum() / batch.mask.sum()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for each in optimizer.param_groups:
            each["lr"] = 0.01 * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.step()
        seen.append(loss.item())
    return model, seen


@pytest.mark.parametrize("batch, grad_acc", [(6, 1), (3, 2), (1, 6)])
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_accumulated_clipped_steps_equal_those_of_whole_batches(tmp_path, batch, grad_acc, clip):
    # 37 samples: the last step has a single sample, and batches of every length in between.
    model, expected = plain_torch(TinyTask(dropout=0.0), clip, 6)
    settings = {
        "grad_acc": grad_acc,
        "max_grad_norm": clip,
        "warmup_ratio": 0.0,
        "weight_decay": 0.1,
    }
    result = run(tmp_path, settings, {"batch": batch, "dropout": 0.0})
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-5)
    for mine, theirs in zip(result.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    # The norm that is logged is the one before clipping.
    assert max(values(tmp_path, "grad_norm")) > 0.6


def test_empty_batches_and_batches_without_weight_change_nothing(tmp_path, caplog):
    order = seeding.generator(42, "order", 0).permutation(37).tolist()
    result = run(tmp_path / "empty", {}, {"skip_ids": tuple(order[6:9])})
    seen = losses(tmp_path / "empty")
    assert (
        len(seen) == 13 and seen[2] is None and all(math.isfinite(x) for x in seen[:2] + seen[3:])
    )
    assert "no rank has a usable sample" in caplog.text
    assert result.position.samples == 34
    run(tmp_path / "weightless", {}, {"fault": "weightless", "at_step": 3})
    assert losses(tmp_path / "weightless")[2] is None
    # With another batch in the same step, whose gradients a nan times 0 would spoil.
    run(tmp_path / "beside", {"grad_acc": 2}, {"fault": "weightless", "at_step": 3})
    assert (
        all(math.isfinite(x) for x in losses(tmp_path / "beside"))
        and len(losses(tmp_path / "beside")) == 7
    )
    # Accumulated with others, an empty batch leaves the others' mean as it is.
    merged = run(
        tmp_path / "merged", {"grad_acc": 2}, {"skip_ids": tuple(order[6:9]), "dropout": 0.0}
    )
    assert len(losses(tmp_path / "merged")) == 7 and merged.position.samples == 34
    assert all(torch.isfinite(p).all() for p in merged.model.parameters())


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path):
    with refused(r"not finite .after step 3, by step 4"):
        run(tmp_path, {"save_steps": 3, "log_steps": 9}, {"fault": "nan", "at_step": 4})
    assert saved_steps(tmp_path) == [3]
    with refused(r"after step 3, by step 4"):
        run(tmp_path, {"save_steps": 3, "log_steps": 9}, {"fault": "nan", "at_step": 4})
    result = run(tmp_path, {"save_steps": 3}, {})
    assert result.resumed_step == 3 and all(
        torch.isfinite(p).all() for p in result.model.parameters()
    )


def test_a_gradient_that_is_only_looked_at_later_is_looked_at_before_a_checkpoint(
    tmp_path, monkeypatch
):
    """As on a GPU, where no step waits for the norm of its gradient."""
    apply = Updates.apply

    def applied(updates, total, batches, step, factor):
        apply(updates, total, batches, step, factor)
        updates._infinite |= step == 2

    monkeypatch.setattr(Updates, "apply", applied)
    with refused(r"not finite .after step 2, by step 2"):
        run(tmp_path, {"save_steps": 2, "log_steps": 9}, {})
    assert saved_steps(tmp_path) == []


def test_checkpointed_activations_and_workers_and_evaluations_leave_the_losses_alone(tmp_path):
    settings, task = {"max_steps": 8}, {"dropout": 0.3}
    run(tmp_path / "a", settings, task)
    checkpointed = run(
        tmp_path / "b", {**settings, "gradient_checkpointing": 1, "eval_steps": 1}, task
    )
    run(tmp_path / "c", settings, {**task, "workers": 2})
    assert checkpointed.model.checkpointed == 1 + 8
    assert len(checkpointed.evaluations) == 8
    assert losses(tmp_path / "b") == losses(tmp_path / "a") == losses(tmp_path / "c")


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_learns_with_weights_in_float32(tmp_path, precision):
    result = run(
        tmp_path, {"precision": precision, "epochs": 4, "eval_at_start": 1}, {"dropout": 0.0}
    )
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    steps = sorted(result.evaluations)
    assert result.evaluations[steps[-1]]["mse"] < 0.5 * result.evaluations[0]["mse"]


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_gradient_that_is_not_finite_stops_a_run_in_mixed_precision(tmp_path, precision):
    with refused(r"not finite .after step 1, by step 2"):
        run(tmp_path, {"precision": precision}, {"fault": "nan", "at_step": 2})


def test_a_run_in_half_precision_goes_on_with_its_scale(tmp_path, monkeypatch):
    scales, backward = [], Updates.backward

    def noted(updates: Updates, *args: Any) -> None:
        scales.append(updates._scale)
        backward(updates, *args)

    monkeypatch.setattr(Updates, "backward", noted)
    settings = {"precision": "16-mixed", "max_steps": 8, "save_steps": 4}
    alone = run(tmp_path / "alone", settings, {})
    assert forked(tmp_path / "killed", settings, {"fault": "kill", "at_step": 6}) == -signal.SIGKILL
    result = run(tmp_path / "killed", settings, {})
    assert result.resumed_step == 4 and result.digest == alone.digest
    assert exact(tmp_path / "killed") == exact(tmp_path / "alone")
    assert scales[8:] == scales[4:8]


@pytest.mark.parametrize(
    "settings, task, message",
    [
        ({"seed": 1}, {}, "trained with seed 42, not 1"),
        ({}, {"size": 38}, "the plan is of 37 samples"),
        ({}, {"model": "wider"}, "of another model"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch, settings, task, message):
    run(tmp_path, {"max_steps": 2}, {})
    if task.pop("model", None):
        monkeypatch.setattr(TinyTask, "build_model", lambda self: torch.nn.Linear(2, 2))
    with refused(message):
        run(tmp_path, {"max_steps": 4, **settings}, task)
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("extra, message", [(1, "ended at step 13"), (-1, "more than 12 batches")])
def test_a_loader_that_breaks_its_word_is_found_out(tmp_path, extra, message):
    # -1 would silently lose samples, +1 would hang the other ranks.
    with refused(message):
        run(tmp_path, {}, {"steps_too_many": extra})


def test_all_checkpoints_damaged_is_an_error_not_a_new_beginning(tmp_path):
    run(tmp_path, {"max_steps": 2}, {})
    for state in tmp_path.glob("checkpoints/step-*/state.pt"):
        state.write_bytes(state.read_bytes()[:-1])
    with refused("no checkpoint is whole: step"):
        run(tmp_path, {"max_steps": 2}, {})


def test_a_model_that_is_built_for_evaluation_trains_with_its_dropout(tmp_path, monkeypatch):
    """As transformers gives a pretrained one."""
    run(tmp_path / "trained", {"max_steps": 2}, {"dropout": 0.5})
    build = TinyTask.build_model
    monkeypatch.setattr(TinyTask, "build_model", lambda task: build(task).eval())
    run(tmp_path / "evaluated", {"max_steps": 2}, {"dropout": 0.5})
    assert losses(tmp_path / "evaluated") == losses(tmp_path / "trained")


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path):
    run(tmp_path, {"epochs": 1}, {})
    result = run(tmp_path, {"epochs": 2}, {})
    assert result.resumed_step == 13 and result.position.samples == 74
    rates = values(tmp_path, "lr")
    # The schedule is that of the longer run from there on: half-way down at its middle.
    assert rates[13] == pytest.approx(0.01 * (1 + math.cos(math.pi * 12 / 25)) / 2)
    assert sorted(x for row in ids_of(tmp_path) for x in row["ids"]) == sorted(2 * list(range(37)))


def test_every_epoch_of_such_a_task_has_its_own_lines_checkpoint_and_evaluation(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(TinyTask, "every_epoch", True)
    settings = {"epochs": 2, "log_steps": 4, "save_steps": 0, "save_total_limit": 0}
    for _ in range(2):  # a finished run does nothing again
        run(tmp_path, settings, {})
        steps = {event: values(tmp_path, "step", event) for event in EVENTS}
        assert steps == {
            "train": [4, 8, 12, 13, 17, 21, 25, 26],
            "epoch": [13, 26],
            "eval": [13, 26],
        }
        assert saved_steps(tmp_path) == [13, 26]
    assert values(tmp_path, "epoch_samples", "epoch") == [
        37,
        37,
    ]


def score_as(monkeypatch: pytest.MonkeyPatch, scores: dict[int, float]) -> list[float]:
    """Have evaluations find these scores, by step; what the task observes."""
    seen: list[float] = []
    monkeypatch.setattr(TinyTask, "evaluate", lambda self, *_: {"score": scores[self.now]})
    monkeypatch.setattr(TinyTask, "score", lambda self, metrics: metrics["score"])

    def observe(self: TinyTask, metrics: dict[str, float]) -> str:
        seen.append(metrics["score"])
        return "it is bad" if metrics["score"] > 8 else ""

    monkeypatch.setattr(TinyTask, "observe", observe)
    return seen


def best_step(folder: Path) -> int:
    return jsonl.read(folder / "checkpoints/best/checkpoint.json")["step"]


def test_the_best_checkpoint_is_of_the_lowest_score_also_of_runs_before(tmp_path, monkeypatch):
    settings = {"eval_steps": 2, "save_steps": 2, "eval_at_start": 1, "save_total_limit": 1}
    scores = {0: -1.0, 2: math.nan, 4: 5.0, 6: 3.0, 8: 3.0, 10: 4.0, 12: math.nan, 14: 2.0}
    seen = score_as(monkeypatch, scores)
    # The untrained model is no candidate, nor is what is as good, or no number.
    for most, best, observed in (
        (4, 4, [-1, None, 5]),
        (8, 6, [-1, None, 5, 3, 3]),
        (10, 6, None),
        (12, 6, [-1, None, 5, 3, 3, 4, None]),
        (14, 14, None),
    ):
        seen.clear()
        run(tmp_path, {**settings, "max_steps": most}, {})
        assert best_step(tmp_path) == best and saved_steps(tmp_path) == [most]
        if observed:
            assert [None if math.isnan(score) else score for score in seen] == observed


def test_a_run_whose_weights_are_not_kept_saves_when_it_is_stopped_only(tmp_path, monkeypatch):
    score_as(monkeypatch, {2: 5.0, 3: 1.0})
    monkeypatch.setattr(TinyTask, "keeps_weights", False)
    settings = {"max_steps": 3, "eval_steps": 2, "save_steps": 0}
    assert run(tmp_path / "whole", settings, {}).evaluations[3] == {"score": 1.0}
    assert not list((tmp_path / "whole").glob("checkpoints/*"))
    stopped = tmp_path / "stopped"
    assert forked(stopped, settings, {"fault": "TERM", "at_step": 2}) == REQUEUE_EXIT_CODE
    assert saved_steps(stopped) == [2]
    assert run(stopped, settings, {}).resumed_step == 2


def test_an_evaluation_that_is_made_up_for_saves_no_step_again(tmp_path, monkeypatch):
    score_as(monkeypatch, {2: 1.0, 3: 2.0})
    settings = {"max_steps": 3, "eval_steps": 2, "save_steps": 0}
    assert forked(tmp_path, settings, {"fault": "TERM", "at_step": 2}) == REQUEUE_EXIT_CODE
    saved = tmp_path / "checkpoints/step-00000002"
    before = saved.stat().st_ino
    run(tmp_path, settings, {})
    assert best_step(tmp_path) == 2 and saved.stat().st_ino == before


def test_lines_are_on_disk_before_a_checkpoint_and_ranks_wait_for_it(tmp_path, monkeypatch):
    calls = []

    def gathered(_: Exchange, value: object) -> list[object]:
        calls.append("tell")
        return [value]

    monkeypatch.setattr(Exchange, "gathered", gathered)
    monkeypatch.setattr(run_log.RunLog, "sync", lambda _: calls.append("sync"))
    monkeypatch.setattr(loop.Checkpoints, "save", lambda *_: calls.append("save"))
    run(tmp_path, {"max_steps": 1}, {})
    # Then the evaluation of the first rank, its line, and whether all weights are equal.
    assert " ".join(calls).endswith("sync tell save tell tell sync tell")


def test_a_task_that_ends_the_run_ends_it_for_good(tmp_path, monkeypatch):
    score_as(monkeypatch, {2: 1.0, 4: 9.0, 6: 1.0})
    for _ in range(2):
        result = run(tmp_path, {"eval_steps": 2, "max_steps": 6}, {})
        assert result.position.optimizer_step == 4 and saved_steps(tmp_path)[-1] == 4
        assert values(tmp_path, "step") == [
            1,
            2,
            3,
            4,
        ]


def test_what_a_rank_saves_comes_back_to_it(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(TinyTask, "rank_state", lambda self: {"now": self.now})
    monkeypatch.setattr(TinyTask, "load_rank_states", lambda self, states: taken.extend(states))
    run(tmp_path, {"max_steps": 3}, {})
    assert taken == []
    run(tmp_path, {"max_steps": 5}, {})
    assert taken == [{"now": 3}]


def test_seconds_and_samples_of_all_parts_of_a_run_are_summed(tmp_path):
    for most in (3, 7):
        run(tmp_path, {"max_steps": most, "log_steps": 2}, {})
    summary = jsonl.read(tmp_path / "metrics.json")
    trained = [line for line in lines(tmp_path) if line["event"] == "train"]
    assert [line["step"] for line in trained] == [2, 3, 4, 6, 7]
    assert summary["seconds"] == pytest.approx(sum(line["seconds"] for line in trained))
    assert summary["samples"] == trained[-1]["samples"] == 21
    assert sum(line["counts"]["samples"] for line in trained) == 21
    evaluations = [summary["first_evaluation"]["step"], summary["last_evaluation"]["step"]]
    assert evaluations == [3, 7]
    assert summary["loss"] == trained[-1]["loss"] and summary["optimizer_steps"] == 7


@pytest.mark.parametrize(
    "settings, expected",
    [
        (
            {"warmup_ratio": 0.1, "max_steps": 13},
            [1 / 3, 2 / 3, 1.0, 1.0],
        ),  # 1.3 steps of it are two
        ({"warmup_ratio": 0.0, "max_steps": 13}, [1.0] * 4),
    ],
)
def test_the_rate_warms_up_and_is_the_tasks_in_each_epoch(
    tmp_path, monkeypatch, settings, expected
):
    monkeypatch.setattr(TinyTask, "rate_factor", lambda self, epoch: 0.1 if epoch else 1.0)
    constant = {"lr_scheduler_type": "constant", "lr": 0.01}
    run(tmp_path, {**constant, **settings, "max_steps": 15}, {})
    rates = values(tmp_path, "lr")
    assert rates[:4] == pytest.approx([0.01 * factor for factor in expected])
    assert rates[12:] == pytest.approx([0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    "name, value",
    [
        ("epochs", 2),
        ("max_steps", 5),
        ("lr_scheduler_type", "linear"),
        ("warmup_ratio", 0.5),
    ],
)
def test_a_run_with_another_setting_of_the_rate_begins_a_schedule_of_its_own(name, value):
    assert LoopSettings(**{name: value}).length != LoopSettings().length


def test_the_rate_ends_with_the_last_step_also_of_accumulated_batches(tmp_path):
    linear = {"lr_scheduler_type": "linear", "warmup_ratio": 0.0}
    run(tmp_path, {**linear, "epochs": 3, "grad_acc": 2}, {})  # 13 batches an epoch are 7 steps
    rates = values(tmp_path, "lr")
    assert rates == pytest.approx([0.01 * (1 - step / 21) for step in range(21)])


def test_epochs_after_one_that_other_ranks_began_count_whole_for_the_rate():
    # 3 steps were done on two ranks; the 7 that are left are not as many as the next epoch has.
    schedule = Schedule("linear", 0, 1)
    run_here: Any = SimpleNamespace(
        position=Position(spans=((2, 3),), optimizer_step=3),
        settings=LoopSettings(epochs=2),
        task=TinyTask(),
        schedule=schedule,
        _schedule=schedule,
    )
    loop._Loop._plan_schedule(run_here, 7)
    assert schedule.total_steps == 3 + 7 + 13


def test_what_a_loader_draws_without_an_address_is_new_in_every_step(tmp_path, monkeypatch):
    drawn, loader = [], TinyTask.loader

    def drawing(self: TinyTask, *place: Any) -> Any:
        for batch in loader(self, *place):
            drawn.append(float(torch.rand(())))
            yield batch

    monkeypatch.setattr(TinyTask, "loader", drawing)
    run(tmp_path, {"epochs": 2}, {"size": 9})
    assert len(set(drawn)) == len(drawn) == 6


def test_what_a_loader_draws_without_an_address_is_another_on_each_rank():
    drawn = []
    for rank in range(2):
        run_here: Any = SimpleNamespace(
            ranks=Ranks(rank, 2, rank, 2),
            position=Position(),
            settings=LoopSettings(),
            task=SimpleNamespace(batch_ids=list),
            window=Window(torch.device("cpu")),
            device=torch.device("cpu"),
        )
        batches = (torch.rand(1) for _ in range(1))
        drawn.append(float(loop._Loop._next(run_here, batches, 0).batch))
    assert drawn[0] != drawn[1]


def test_each_group_of_a_tasks_optimiser_has_its_own_rate(tmp_path, monkeypatch):
    made = []

    def optimizer(self: TinyTask, model: torch.nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        made.append(torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": rest, "lr": 0.1}]))
        return made[0]

    monkeypatch.setattr(TinyTask, "optimizer", optimizer)
    run(tmp_path, {"max_steps": 2, "lr_scheduler_type": "linear", "warmup_ratio": 0.0}, {})
    assert [group["lr"] for group in made[0].param_groups] == pytest.approx([0.15, 0.05])
    assert values(tmp_path, "lr") == pytest.approx([0.3, 0.15])


class BesideAnother(Exchange):
    """What rank 0 of two hears: of rank 1 what `says` makes of its own values."""

    says: Callable[[Any], Any] = staticmethod(lambda value: value)
    asks: tuple[float, float] = (
        0.0,
        0.0,
    )  # whether rank 1 was told to stop, and that the time is up

    def gathered(self, value: Any) -> list[Any]:
        return [value, self.says(value)]

    def sums(self, values: Sequence[float]) -> list[float]:
        return [*values[:-2], values[-2] + self.asks[0], values[-1] + self.asks[1]]


@pytest.mark.parametrize(
    "kind, message",
    [
        (int, "ranks plan different numbers of steps: .13, 14."),
        (str, "ended with different weights"),
    ],
)
def test_ranks_that_do_not_do_the_same_are_found_out(tmp_path, monkeypatch, kind, message):
    def says(value: object) -> object:
        """One more step in the plan; or, of the weights' digests, another one."""
        is_plan = value == 13
        return value + 1 if isinstance(value, int) and is_plan == (kind is int) else value

    monkeypatch.setattr(BesideAnother, "says", staticmethod(says))
    monkeypatch.setattr(loop, "Exchange", BesideAnother)
    with refused(message):
        run(tmp_path, {"save_steps": 0, "log_steps": 100, "max_steps": 1}, {})


def become_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> list[int]:
    """Be this rank of two, without the other one; the levels of the log from now on."""
    levels: list[int] = []
    launch = devices.launch
    monkeypatch.setattr(Ranks, "from_environment", lambda: Ranks(rank, 2, rank, 2))
    monkeypatch.setattr(devices, "launch", lambda _, settings: launch(Ranks(), settings))
    monkeypatch.setattr(loop, "Exchange", lambda *_: Exchange(1))
    monkeypatch.setattr(loop.log, "setLevel", levels.append)
    return levels


def test_each_rank_draws_by_itself(tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr(TinyTask, "rank_state", lambda _: seeds.append(torch.initial_seed()))
    for rank in range(2):
        become_rank(monkeypatch, rank)
        run(tmp_path / f"{rank}", {"max_steps": 1}, {})
    assert seeds[0] != seeds[-1]


def test_another_rank_than_the_first_says_and_saves_nothing(tmp_path, monkeypatch):
    levels = become_rank(monkeypatch, 1)
    score_as(monkeypatch, {1: 1.0})
    run(tmp_path, {"max_steps": 1}, {})
    assert levels == [logging.WARNING]
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "metrics.jsonl").exists()


def test_all_ranks_go_on_with_the_evaluation_of_the_first(tmp_path, monkeypatch):
    class Another(Exchange):
        def from_main(self, value: Any) -> Any:
            return {"mse": 0.5} if isinstance(value, dict) else value

    monkeypatch.setattr(loop, "Exchange", Another)
    run(tmp_path, {"max_steps": 1}, {})
    assert values(tmp_path, "metrics", "eval") == [{"mse": 0.5}]


@pytest.mark.parametrize("asks, requeued", [((1.0, 1.0), [12]), ((1.0, 0.0), [])])
def test_a_notice_that_only_another_rank_has_got_stops_this_one_too(
    tmp_path, monkeypatch, asks, requeued
):
    called = []
    monkeypatch.setattr(stopping, "requeue_slurm_job", lambda: called.append(12))
    monkeypatch.setattr(BesideAnother, "asks", asks)
    monkeypatch.setattr(loop, "Exchange", BesideAnother)
    with pytest.raises(SystemExit) as left:
        run(tmp_path, {"save_steps": 0}, {})
    assert (
        left.value.code == REQUEUE_EXIT_CODE and saved_steps(tmp_path) == [1] and called == requeued
    )


def test_memory_that_runs_out_is_said_in_one_line(tmp_path, monkeypatch):
    step = TinyTask.training_step

    def hungry(self: TinyTask, *args: Any) -> Any:
        if self.now == 2:
            torch.empty(1 << 60, dtype=torch.uint8)
        return step(self, *args)

    monkeypatch.setattr(TinyTask, "training_step", hungry)
    with refused("cpu is out of memory at step 3") as error:
        run(tmp_path, {"save_steps": 2}, {})
    assert "the same command goes on" in str(error.value) and saved_steps(tmp_path) == [2]


def test_an_error_of_a_step_that_is_no_lack_of_memory_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(TinyTask, "training_step", lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="size"):
        run(tmp_path, {}, {})


def test_a_run_without_data_is_refused(tmp_path):
    with refused(r"the plan has 0 steps, of which 0 are done. Is there any data"):
        run(tmp_path, {}, {"size": 0})


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_no_count_is_refused_with_its_samples(tmp_path, monkeypatch, weight):
    step = TinyTask.training_step
    monkeypatch.setattr(TinyTask, "training_step", lambda *args: (step(*args)[0], weight, {}))
    with refused(r"samples \[.*: the weight of a batch is"):
        run(tmp_path, {}, {})


def test_equal_digests_are_of_equal_weights_at_equal_places():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    digests = [weights_digest(model), weights_digest(copy.deepcopy(model))]
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].bias[0] = torch.nextafter(changed[0].bias[0], torch.tensor(9.0))
    swapped = torch.nn.Sequential(model[1], model[0])
    half = copy.deepcopy(model).to(torch.bfloat16)
    others = {weights_digest(each) for each in (changed, swapped, half)}
    assert digests[0] == digests[1] and len(others - {digests[0]}) == 3


def test_lines_past_the_step_and_those_without_an_end_are_cut(tmp_path):
    whole = b'{"step":2}\n{"event":"eval","step":4}\n'
    (tmp_path / "log").write_bytes(whole + b'{"step":5}\n[]\n{"step":"3"}\n\n{"step":3}')
    run_log.truncate(tmp_path / "log", 4)
    assert (tmp_path / "log").read_bytes() == whole
    run_log.truncate(tmp_path / "log", -1)
    assert (tmp_path / "log").read_bytes() == b""


def test_the_time_that_is_left_is_told_from_the_steps_of_this_process(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "millrace")
    now = [100.0]
    monkeypatch.setattr(run_log.time, "monotonic", lambda: now[0])
    shares = {"loss": 1.0, "per_second": {}, "padding": {}, "time_share": {"data_wait": 0.25}}
    with run_log.RunLog(tmp_path, 0, 500, LoopSettings(tensorboard=0)) as told:
        for step, seconds in ((501, 0.0), (503, 60.0)):
            now[0] += seconds
            told.step(step, 513)
            told.line("train", step, shares)
    first, second = caplog.messages
    # 30 seconds a step, and ten steps: the 500 of an earlier process took no time of this one.
    assert "0:05:00 left" in second and "left" not in first and "data wait 25.0 %" in second


def test_tensorboard_holds_the_losses(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    run(tmp_path, {"max_steps": 3, "tensorboard": 1}, {})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(
        losses(tmp_path), rel=1e-6
    )
    assert events.Scalars("eval/metrics/mse")

    # What a killed run has written of step 4 and later is not shown beside what comes now.
    run(tmp_path, {"max_steps": 5, "tensorboard": 1}, {})
    files = (tmp_path / "tensorboard").iterdir()
    newest = max(files, key=lambda path: path.stat().st_mtime_ns)
    events = EventFileLoader(str(newest)).Load()
    assert [event.step for event in events if event.HasField("session_log")] == [4]


def test_schedule_values():
    cosine = Schedule("cosine", warmup_steps=4, total_steps=14)
    assert [cosine.factor(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert [cosine.factor(step) for step in (9, 14, 99)] == pytest.approx([0.5, 0.0, 0.0])
    linear = Schedule("linear", 0, 10)
    assert [linear.factor(step) for step in (0, 5, 9)] == pytest.approx([1, 0.5, 0.1])
    only_warm_up = Schedule("linear", 4, 4)
    assert [only_warm_up.factor(step) for step in (3, 4)] == pytest.approx([0.8, 0.0])
    constant = Schedule("constant", 1, 10)
    assert [constant.factor(step) for step in (0, 1, 9)] == [0.5, 1.0, 1.0]


def test_an_end_that_moves_makes_no_jump_in_the_rate():
    moved, still = Schedule("linear", 2, 12), Schedule("linear", 2, 12)
    moved.move_end(7, 12)
    assert [moved.factor(step) for step in range(13)] == [still.factor(step) for step in range(13)]
    moved.move_end(7, 27)
    assert moved.factor(7) == pytest.approx(still.factor(7)) and moved.factor(27) == pytest.approx(
        0.0
    )
    assert moved.factor(17) == pytest.approx(0.25)
    early = Schedule("linear", 4, 10)
    early.move_end(1, 24)  # during the warm-up
    assert early.factor(3) == pytest.approx(0.8) and early.factor(14) == pytest.approx(0.5)
    assert Schedule(**asdict(moved)) == moved


def test_settings_are_checked_and_each_has_a_flag_with_help():
    import argparse

    parser = argparse.ArgumentParser()
    common_settings.add_arguments(parser, LoopSettings)
    args = parser.parse_args(
        ["--lr", "1e-3", "--save_total_limit", "10", "--lr_scheduler_type", "linear"]
    )
    assert common_settings.from_args(LoopSettings, args) == LoopSettings(
        lr=1e-3, save_total_limit=10, lr_scheduler_type="linear"
    )
    assert common_settings.from_args(LoopSettings, args, lr=0.5).lr == 0.5
    bad = {"lr": float("nan"), "grad_acc": 0, "precision": "bf17", "warmup_ratio": 2.0, "epochs": 0}
    bad["timeout_seconds"] = 0.0  # of a range without its end
    for wrong in ({name: value} for name, value in bad.items()):
        with refused(next(iter(wrong))):
            LoopSettings(**wrong)


@dataclass
class Limited:
    value: float = common_settings.setting(0.5, "a share", at_least=0, below=1)
    size: float = common_settings.setting(1.0, "a size", above=0, at_most=2)
    free: float = common_settings.setting(0.0, "any number")


@pytest.mark.parametrize(
    "values, fits",
    [
        ({"value": 0.0}, True),
        ({"value": 1.0}, False),
        ({"size": 2.0}, True),
        ({"size": 0.0}, False),
        ({"free": -9.0}, True),
        ({"free": float("inf")}, False),
    ],
)
def test_a_limit_belongs_to_a_range_or_not_by_its_word(values, fits):
    if fits:
        common_settings.check(Limited(**values), "here")
        return
    with refused(f"here: {next(iter(values))} must be"):
        common_settings.check(Limited(**values), "here")


def test_a_metrics_line_that_was_cut_is_written_again(tmp_path):
    assert forked(tmp_path, {"max_steps": 5}, {"fault": "kill", "at_step": 4}) == -signal.SIGKILL
    whole = lines(tmp_path)
    assert [line["step"] for line in whole] == [1, 2, 3]
    with open(tmp_path / "metrics.jsonl", "ab") as handle:
        handle.write(b'{"event":"train","step":')
    run(tmp_path, {"max_steps": 5}, {})
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 5]
    assert jsonl.read(tmp_path / "metrics.json")["last_evaluation"]["step"] == 5


def test_the_rest_of_an_epoch_for_other_ranks_begins_without_an_evaluation():
    at = Position(step=3, world_size=2, optimizer_step=3)
    at.enter(1)
    run_here: Any = SimpleNamespace(
        position=at,
        settings=LoopSettings(eval_steps=0),
        evaluations={},
        finished=False,
        task=SimpleNamespace(every_epoch=True),
    )
    assert at.step == 0 and not loop._Loop._is_evaluation_due(run_here)
    at.end_epoch()
    assert loop._Loop._is_evaluation_due(run_here)


def test_after_a_change_of_ranks_the_first_takes_what_all_have_saved():
    windows, states = [], []
    with seeding.preserved():
        for rank in range(3):
            run_here: Any = SimpleNamespace(
                ranks=Ranks(rank, 3, rank, 3),
                position=Position(step=2, world_size=2, optimizer_step=5),
                settings=LoopSettings(),
                window=SimpleNamespace(load=windows.append),
                task=SimpleNamespace(load_rank_states=states.append),
            )
            saved = [{"window": number, "task": {"number": number}} for number in range(2)]
            loop._Loop._take_up_of_rank(run_here, saved)
            assert run_here.position.spans == ((2, 2),)
    assert windows == [[0, 1], [], []]
    assert states == [[{"number": 0}, {"number": 1}], [], []]


def test_a_position_keeps_the_plans_that_an_epoch_went_through():
    at = Position(world_size=2)
    at.enter(2)
    at.step = at.optimizer_step = 5
    at.enter(3)
    assert (at.step, at.spans) == (0, ((2, 5),))
    at.enter(4)  # three ranks did nothing
    assert (at.step, at.spans) == (0, ((2, 5),))
    at.enter(2)  # so the first plan goes on
    assert (at.step, at.spans) == (5, ())
    at.step = at.optimizer_step = 6
    at.enter(1)
    at.step, at.optimizer_step = 4, 10
    at.enter(2)
    assert (at.step, at.spans) == (0, ((2, 6), (1, 4)))
    assert Position(**asdict(at)) == at
    at.end_epoch()
    assert (at.epoch, at.step, at.spans) == (1, 0, ())


def test_the_log_has_steps_loss_rates_padding_and_data_wait(tmp_path, caplog):
    caplog.set_level(logging.INFO, "millrace")
    run(tmp_path, {"max_steps": 5}, {})
    line = next(line for line in caplog.messages if line.startswith("5 of 5 steps (100 %), "))
    assert re.search(r"loss \d\.\d+, \d+\.\d samples/s, padding \d+\.\d %, data wait \d", line), (
        line
    )
