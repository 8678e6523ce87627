"""The worst case of a bucket, the batches of a soak, and real trials in processes of their own."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millrace.asr.calibration import steps, trial, worst_case
from millrace.asr.calibration.steps import TrialSteps, soak_steps, worst_batch
from millrace.asr.loading.row_table import RowTable
from millrace.asr.planning import planner
from millrace.asr.planning.cut import BatchBudget, batch_cost
from millrace.asr.planning.plan import ChosenSteps, Plan
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common.machine.memory import is_out_of_memory, says_out_of_memory
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import MicroBatch
from tests import forks
from tests.asr import calibration_corpus as corpus
from tests.refusals import refused


def test_the_worst_case_is_the_longest_audio_and_the_longest_transcripts(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (4, 0.2, 0.3), "b_1_2": (7, 0.3, 0.5)})
    case = worst_case.find(config, "b_1_2", 3)
    assert (case.rows, case.number, case.audio_rows) == (7, 1, [10, 9, 8])
    assert case.text_rows[0] == 4 and case.longest_characters == len("number 4 said and more")
    longest = RowTable.open(config.parent).rows([10])[0].duration_s
    assert case.longest_seconds == pytest.approx(longest, rel=1e-6)
    with refused(r"no bucket 'b_9_9'.*b_0_1, b_1_2"):
        worst_case.find(config, "b_9_9", 3)
    path = config.parent / "train/b_0_1.parquet"
    rows = pq.read_table(path)
    pq.write_table(pa.concat_tables([rows] * 10), path)
    case = worst_case.find(config, "b_0_1", 40)
    assert case.audio_rows == sorted(range(40), key=lambda row: -(row % 4)), "equal ones in order"
    assert case.text_rows == sorted(range(40), key=lambda row: row % 4 > 0)
    texts = pa.array([None, "é€𐍈", None, ""], pa.string())
    pq.write_table(rows.drop_columns("transcript").append_column("transcript", texts), path)
    case = worst_case.find(config, "b_0_1", 9)
    assert (case.longest_characters, case.text_rows) == (3, [1, 0, 2, 3]), (
        "no transcript, no characters"
    )
    prompts = pa.array([None, "ab", "a prompt", None], pa.string())
    pq.write_table(pq.read_table(path).append_column("prompt", prompts), path)
    case = worst_case.find(config, "b_0_1", 2)
    assert (case.longest_characters, case.text_rows) == (8, [2, 1])
    pq.write_table(rows.slice(0, 0), path)
    assert worst_case.find(config, "b_0_1", 3) is None
    path.write_bytes(b"PAR1 cut")
    with refused("cannot be read"):
        worst_case.find(config, "b_1_2", 3)


def soak_plan(
    durations: list, size: int, steps: int, world: int = 1, first: int = 0
) -> ChosenSteps:
    budgets = [BatchBudget(seconds=None, rows=size)] * len(durations)
    plans = (
        planner.plan_epoch(durations, budgets, 42, epoch, world) for epoch in itertools.count()
    )
    return soak_steps(plans, steps, first)


@given(*(st.integers(*ends) for ends in ((1, 400), (1, 40), (1, 60), (1, 3), (0, 5))))
def test_a_soak_has_its_steps_its_rows_and_the_heaviest_batch(rows, size, steps, world, first):
    durations = np.random.default_rng(rows).uniform(7, 10, rows).astype(np.float32)
    plan, again = (soak_plan([durations], size, steps, world, first) for _ in range(2))
    assert steps <= len(plan) <= steps + 1
    batches = [plan.batch(step, rank) - first for step in range(len(plan)) for rank in range(world)]
    assert all(
        0 < len(batch) <= size and batch.min() >= 0 and batch.max() < rows for batch in batches
    )
    weights = [float(batch_cost(len(batch), durations[batch].max())) for batch in batches]
    whole = plan.chosen[0][0]
    heaviest = batch_cost(np.diff(whole.offsets), whole.longest).max()
    assert whole.split_batches or max(weights) >= 0.9999 * heaviest
    assert all((plan.batch(step, 0) == again.batch(step, 0)).all() for step in range(len(plan)))


def test_a_soak_of_all_buckets_visits_all():
    short, long = np.full(400, 2.0, np.float32), np.full(3, 29.0, np.float32)
    plan = soak_plan([short, long, np.zeros(0)], 4, 20)
    rows = {int(row) for step in range(len(plan)) for row in plan.batch(step, 0)}
    assert min(rows) < 400 <= max(rows)


def test_a_soak_visits_evenly_spaced_steps_and_the_heaviest_of_every_bucket():
    """Of ten steps on two ranks: the heaviest batches are those of rank 1 in the steps 3 and 6."""
    rows = np.ones((10, 2), np.int64)
    rows[3, 1] = 5
    rows[4] = 4
    rows[6, 1] = 3
    bucket = np.zeros((10, 2), np.int64)
    bucket[5:] = 1
    longest = np.full(20, 2.0)
    offsets = np.concatenate([[0], rows.ravel().cumsum()])
    plan = Plan(
        2, 42, 0, np.arange(rows.sum()), offsets, longest, longest, bucket.ravel(), np.empty((0, 2))
    )
    soak = soak_steps(itertools.repeat(plan), 13)
    assert [number for _, number in soak_steps(itertools.repeat(plan), 2).chosen] == [0, 3, 6, 9]
    assert [number for _, number in soak.chosen] == [*range(10), 0, 4, 9]


class Scripted:
    """A meter with a peak for every step, or an error, and updates that only say what was done."""

    limit = 8.0

    def __init__(self, trial_steps: TrialSteps, peaks: list[float | Exception]) -> None:
        self.model = trial_steps.updates.model
        self.peaks = iter(peaks)
        self.done: list[str | bool] = []
        trial_steps.meter = trial_steps.updates = self
        trial_steps.steps = 0

    def begin(self) -> None:
        self.done.append("begin")

    def peak(self) -> float:
        peak = next(self.peaks)
        if isinstance(peak, Exception):
            raise peak
        return peak

    def facts(self) -> dict:
        return {"retries": 2}

    def clear(self) -> None:
        self.done.append("clear")

    def forward(self, batch: MicroBatch, more: bool) -> None:
        batch.weight = 1.0
        self.done.append(more)

    def backward(self, loss: None, batch: object, more: bool) -> None:
        pass

    def apply(self, *arguments: object) -> None:
        self.done.append("apply")


def test_what_a_trial_says_of_its_steps(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (8, 0.2, 0.3), "b_1_2": (8, 1.2, 1.4)})
    for path in config.parent.glob("train/*.parquet"):
        rows = pq.read_table(path)
        prompts = pa.array([f"prompt {row}" for row in rows["sample_id"].to_pylist()])
        pq.write_table(rows.append_column("prompt", prompts), path)
    options = TrainOptions(bucket_dir=str(config.parent), model_options=corpus.MODEL_OPTIONS)

    def answers() -> list:
        task = AsrTask(options, "cpu")
        trial_steps = TrialSteps(task, LoopSettings(device="cpu", grad_acc=3), 4.0)
        model = trial_steps.updates.model
        batches = [worst_batch(task, model, [15, 14], [8], rows) for rows in (1, 2, 3, 4)]
        scripted = Scripted(trial_steps, [3.0, 5.0, 5.0, 4.0])
        found = [trial_steps.run(batches), scripted.done]
        Scripted(trial_steps, [3.0, 9.0, 9.0])
        found.append(trial_steps.run(batches, stop=True))
        Scripted(trial_steps, [3.0, MemoryError()])
        found.append(trial_steps.run(batches))
        scripted = Scripted(trial_steps, [9.0, 3.0])
        found += [trial_steps.soak(1, 4, 2), scripted.done]
        Scripted(trial_steps, [RuntimeError("mat1 and mat2 shapes cannot be multiplied")])
        with pytest.raises(RuntimeError, match="mat1"):
            trial_steps.run(batches)
        return [*found, batches[1].prompts]

    whole, done, stopped, over, soak, soaked, prompts = forks.answered(answers)
    longest = RowTable.open(config.parent).rows([15])[0].duration_s
    heaviest = whole["heaviest"]
    assert (heaviest["step"], heaviest["rows"]) == (2, 2), "the first of equal peaks"
    assert heaviest["characters"] == len("number 8 said and more")
    assert heaviest["seconds"] == pytest.approx(longest, abs=1e-3)
    assert (whole["steps"], whole["retried"], stopped["steps"]) == (4, True, 2)
    assert over["oom"] and over["heaviest"] == {**heaviest, "step": over["steps"] + 1}
    # Two batches stand for any number that is accumulated.
    assert done == ["clear", True, False, "apply"] * 4
    assert prompts == ["prompt 8"] * 2, "with the longest transcript comes its prompt"
    assert soaked[0] == "begin" and soak["steps"] == 1
    assert soak["heaviest"]["seconds"] > 1.2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("CUDA error: out of memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_what_counts_as_out_of_memory(error):
    assert is_out_of_memory(error) and not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert says_out_of_memory("terminate called after throwing an instance of 'std::bad_alloc'")
    assert says_out_of_memory("ArrayMemoryError: Unable to allocate 3.00 GiB for an array")


def test_a_trial_that_is_far_too_large_ends_in_order(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (8, 0.9, 1.0)}, broken={7}, more=100)
    request = corpus.request(config, "b_0_1", "worst", 4.0, 3, 2)
    # As one of eight ranks: under DDP, with gradients that wait for a second batch.
    settings = {"device": "cpu", "grad_acc": 2, "precision": "bf16-mixed"}
    request |= {"world_size": 8, "settings": settings}
    small = forks.answered(lambda: steps.answer(request))
    assert not small["oom"] and small["steps"] == 2
    assert small["heaviest"]["characters"] < 30, (
        "no room for 900 characters in a second: its own text"
    )
    assert small["heaviest"]["rows"] == 3, (
        "a clip that cannot be read is replaced by the longest that can"
    )
    assert small["fixed_gb"] < small["step_peak_gb"] <= small["peak_gb"] < 4
    request = corpus.request(config, "b_0_1", "worst", small["peak_gb"], 4000, 2)
    over = forks.answered(lambda: steps.answer(request))
    assert over["oom"] and "memory" in over["message"]


@pytest.mark.parametrize(
    "death, is_oom",
    [
        ("echo std::bad_alloc >&2; exit 134", True),
        ("kill -9 $$", True),
        ("echo '{\"oom\": false}'; kill -9 $$", True),
        ("kill -6 $$", False),
    ],
)
def test_a_trial_that_dies_for_lack_of_memory_is_an_answer(tmp_path, monkeypatch, death, is_oom):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat > /dev/null\n{death}\n")
    python.chmod(0o755)
    monkeypatch.setattr(trial.sys, "executable", str(python))
    if not is_oom:
        with refused("exited with code -6"):
            trial.ask({})
        return
    answer = trial.ask({})
    assert answer["oom"] and "exited with code" in answer["message"]


def test_what_is_no_lack_of_memory_is_an_error(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (2, 0.2, 0.3)}, broken={0, 1})
    request = corpus.request(config, "b_0_1", "worst", 4.0, 2, 2)
    with refused("none of the longest 2 samples can be used"):
        forks.answered(lambda: steps.answer(request))


@pytest.mark.long
def test_a_trial_that_raises_is_quoted(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (2, 0.2, 0.3)})
    request = corpus.request(config, "b_0_1", "worst", 4.0, 2, 2)
    with refused(r"code 1; stderr:[\s\S]*This is no lack of memory"):
        trial.ask({**request, "options": {"unknown": 1}})


def test_a_trial_is_a_process_that_answers_in_json():
    answer = trial.ask({"kind": "device", "device": "cpu"})
    assert answer["kind"] == answer["name"] == "cpu" and answer["memory_gb"] > 0
    assert answer["precision"] == "32-true"


def test_the_environment_of_a_trial_is_that_of_a_training_run(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = trial.environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert "expandable_segments:True" in environment["PYTORCH_CUDA_ALLOC_CONF"]
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native")
    environment = trial.environment()
    assert environment["PYTHONPATH"] == f"{trial.ROOT}:/of/the/user"
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "backend:native"
