"""The profiler: a trace that opens, times that add up, and nothing left behind in torch."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.nn.modules import module as modules

from millrace.asr.loading.collate import Batch
from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.throughput.profile import StepProfiler, parts_of, phase_of, table
from millrace.common import jsonl
from millrace.common.training import loop
from millrace.common.training.settings import LoopSettings
from tests.asr.audio_tars import ListedPlan, corpus
from tests.asr.small_task import Loudness, SmallTask

STEPS = [[[step, step + 1]] for step in range(8)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> BucketedDataset:
    return BucketedDataset(RowTable.open(corpus(tmp_path_factory.mktemp("profiled"))), ListedPlan(STEPS))


def _train(folder: Path, dataset: BucketedDataset, profiler: StepProfiler, steps: int = 8) -> None:
    settings = LoopSettings(
        max_steps=steps, log_steps=2, tensorboard=0, save_steps=0, device="cpu", eval_steps=3
    )
    task = SmallTask(lambda _, start: profiler.watch(dataset[step] for step in range(start, 8)), 8)
    with profiler:
        loop.train(task, settings, folder, on_step=profiler.on_step)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, dataset: BucketedDataset) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    _train(folder, dataset, StepProfiler(folder, steps=4, skip=2))
    return folder


def test_the_table_has_the_phases_of_a_step(profiled: Path) -> None:
    found = jsonl.read(profiled / "profile.json")
    host = {phase["phase"]: phase["host_seconds"] for phase in found["phases"]}
    names = [
        "data wait",
        "forward",
        "forward: head",
        "forward: layers",
        "forward: power",
        "backward",
        "optimiser",
        "idle",
    ]
    assert list(host) == names and found["steps"] == 4 and found["device_busy_seconds"] is None
    outer = sum(seconds for name, seconds in host.items() if ": " not in name)
    assert outer == pytest.approx(found["seconds"], rel=0.02)
    assert sum(seconds for name, seconds in host.items() if ": " in name) <= host["forward"]
    assert all(seconds > 0 for seconds in host.values())
    calls = {operator["operator"]: operator["calls"] for operator in found["operators"]}
    assert calls["aten::addmm"] == 3 * 4  # three linear layers in four steps


def test_the_trace_is_chromes_and_holds_the_profiled_steps_only(profiled: Path) -> None:
    with gzip.open(profiled / "trace.json.gz") as handle:
        events = json.load(handle)["traceEvents"]
    marks = [event["name"] for event in events if str(event.get("name", "")).startswith("millrace: ")]
    assert marks.count("millrace: step") == 4 == marks.count("millrace: forward")
    assert marks.count("millrace: forward: layers") == 8
    assert sorted(path.name for path in profiled.glob("*.json*")) == [
        "metrics.jsonl",
        "profile.json",
        "trace.json.gz",
    ]


def test_no_hook_is_left_in_torch(profiled: Path) -> None:
    assert not modules._global_forward_pre_hooks and not modules._global_forward_hooks


@pytest.mark.parametrize(("steps", "skip", "expected"), [(50, 3, 5), (1, 0, 1), (50, 0, 8)])
def test_fewer_steps_than_asked_for_are_profiled_all_the_same(
    tmp_path: Path, dataset: BucketedDataset, steps: int, skip: int, expected: int
) -> None:
    _train(tmp_path, dataset, StepProfiler(tmp_path, steps=steps, skip=skip))
    assert jsonl.read(tmp_path / "profile.json")["steps"] == expected


def test_a_run_shorter_than_the_warm_up_and_other_ranks_write_nothing(
    tmp_path: Path, dataset: BucketedDataset
) -> None:
    _train(tmp_path / "short", dataset, StepProfiler(tmp_path / "short", steps=2, skip=100))
    _train(tmp_path / "rank", dataset, StepProfiler(tmp_path / "rank", steps=2, skip=0, rank=1))
    assert not list(tmp_path.rglob("profile.json")) and not list(tmp_path.rglob("trace*"))


def test_a_run_that_fails_leaves_torch_clean(tmp_path: Path, dataset: BucketedDataset) -> None:
    with pytest.raises(KeyError), StepProfiler(tmp_path, steps=5, skip=0) as profiler:
        batch: Batch = next(profiler.watch([dataset[0]]))
        Loudness()(batch.audio)
        profiler.on_step(1)
        raise KeyError
    assert not modules._global_forward_hooks and not (tmp_path / "profile.json").exists()


def test_recomputed_parts_are_not_counted_as_forward(tmp_path: Path) -> None:
    class TrainingStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Loudness()

        def forward(self, audio: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.model, audio, use_reentrant=False).sum()

    step = TrainingStep()
    with StepProfiler(tmp_path, steps=1, skip=0) as profiler:
        step(torch.ones(2, 100)).backward()
        profiler.on_step(1)
    host = {
        phase["phase"]: phase["host_seconds"] for phase in jsonl.read(tmp_path / "profile.json")["phases"]
    }
    parts = sum(seconds for name, seconds in host.items() if ": " in name)
    assert 0 < parts <= host["forward"]
    with gzip.open(tmp_path / "trace.json.gz") as handle:
        marks = [event.get("name") for event in json.load(handle)["traceEvents"]]
    assert marks.count("millrace: forward: head") == 2  # it did run twice


def test_wrappers_are_gone_through_and_layers_share_a_name() -> None:
    wrapped = torch.nn.Module()
    wrapped.hf = torch.nn.Module()
    wrapped.hf.model = torch.nn.Module()
    wrapped.hf.model.audio_tower = torch.nn.Linear(30, 30)
    wrapped.hf.model.projector = torch.nn.Linear(3, 3)
    wrapped.hf.model.language_model = torch.nn.Linear(30, 40)
    wrapped.mel = torch.nn.Identity()
    names = [name for name, _ in parts_of(wrapped)]
    assert sorted(names) == ["audio_tower", "language_model", "mel", "projector"]
    assert [name for name, _ in parts_of(Loudness())] == ["power", "layers", "layers", "head"]


def test_phases_of_events() -> None:
    assert phase_of("autograd::engine::evaluate_function: AddmmBackward0") == "backward"
    assert phase_of("Optimizer.step#AdamW.step") == "optimiser"
    assert phase_of("nccl:all_reduce") == "communication" == phase_of("gloo:all_reduce")
    assert phase_of("millrace: step") is None is phase_of("aten::mm")
    assert phase_of("millrace: forward: mel") == "forward: mel"
    assert table([], 0, "cpu")["seconds"] == 0
