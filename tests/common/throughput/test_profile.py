"""The profiler: a trace that opens, and times that add up."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import profile, record_function

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.common import jsonl
from millrace.common.throughput.profile import StepProfiler, table
from millrace.common.training import loop
from millrace.common.training.settings import LoopSettings
from tests.asr.audio_tars import ListedPlan, corpus
from tests.asr.small_task import Loudness, SmallTask

STEPS = [[[step, step + 1]] for step in range(8)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> BucketedDataset:
    return BucketedDataset(
        RowTable.open(corpus(tmp_path_factory.mktemp("profiled"))), ListedPlan(STEPS)
    )


def _train(
    folder: Path, dataset: BucketedDataset, steps: int, model: Callable = Loudness, **choices: int
) -> None:
    settings = LoopSettings(
        max_steps=8, log_steps=2, tensorboard=0, save_steps=0, device="cpu", eval_steps=3
    )
    task = SmallTask(lambda _, start: (dataset[step] for step in range(start, 8)), 8)
    task.build_model = model
    with StepProfiler(folder, steps, "cpu", **choices) as profiler:
        loop.train(task, settings, folder, on_step=profiler.on_step)


def _marks(folder: Path) -> Counter[str]:
    with gzip.open(folder / "trace.json.gz") as handle:
        names = [str(event.get("name")) for event in json.load(handle)["traceEvents"]]
    return Counter(
        name.removeprefix("millrace: ") for name in names if name.startswith("millrace: ")
    )


def _host_seconds(folder: Path) -> dict[str, float]:
    return {
        row["phase"]: row["host_seconds"] for row in jsonl.read(folder / "profile.json")["phases"]
    }


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, dataset: BucketedDataset) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    _train(folder, dataset, 4, skip=2)
    return folder


def test_the_table_has_the_phases_of_a_step(profiled: Path) -> None:
    result, host = jsonl.read(profiled / "profile.json"), _host_seconds(profiled)
    assert list(host) == ["data wait", "forward", "forward: power", "backward", "optimiser", "idle"]
    assert result["steps"] == 4 and result["device_busy_seconds"] is None
    outer = sum(seconds for name, seconds in host.items() if ": " not in name)
    assert outer == pytest.approx(result["seconds"], rel=0.02)
    assert host["forward: power"] <= host["forward"]
    assert all(seconds > 0 for seconds in host.values())


def test_the_trace_is_chromes_and_holds_the_profiled_steps_only(profiled: Path) -> None:
    marks = _marks(profiled)
    assert marks["step"] == marks["forward"] == marks["backward"] == marks["optimiser"] == 4
    assert marks["forward: power"] == 4
    names = sorted(path.name for path in profiled.glob("*.json*"))
    assert names == ["metrics.jsonl", "profile.json", "trace.json.gz"]


@pytest.mark.parametrize(
    ("steps", "skip", "rank", "expected"),
    [(50, 3, 0, 5), (1, 1, 0, 1), (2, 8, 0, None), (2, 9, 0, None), (2, 1, 1, None)],
)
def test_rank_0_profiles_as_many_steps_as_the_run_has(
    tmp_path: Path, dataset: BucketedDataset, steps: int, skip: int, rank: int, expected: int | None
) -> None:
    _train(tmp_path, dataset, steps, skip=skip, rank=rank)
    report = tmp_path / "profile.json"
    assert (jsonl.read(report)["steps"] if report.exists() else None) == expected
    assert report.exists() == (tmp_path / "trace.json.gz").exists()


def test_a_run_that_fails_writes_none(tmp_path: Path, dataset: BucketedDataset) -> None:
    def evaluate(*_: object) -> dict:
        raise KeyError

    with pytest.raises(KeyError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmallTask, "evaluate", evaluate)
        _train(tmp_path, dataset, 5, skip=1)
    assert not (tmp_path / "profile.json").exists()


def test_communication_of_any_backend_is_a_phase_and_counts_once() -> None:
    with profile(acc_events=True) as running, record_function("millrace: step"):
        for name in ("nccl:all_reduce", "gloo:all_reduce"):
            with record_function("c10d::allreduce_"), record_function(name):
                torch.ones(1000).sum()
    result = table(running.events(), "cpu")
    host = {phase["phase"]: phase["host_seconds"] for phase in result["phases"]}
    assert list(host) == ["communication", "idle"] and result["steps"] == 1
    assert 0 < host["communication"] <= result["seconds"] == pytest.approx(sum(host.values()))


def _recorded(name: str) -> list[FunctionEvent]:
    """The events of a trace in the form that torch.profiler exports, as it hands them out
    itself."""
    events = []
    for line in jsonl.read(Path(__file__).parent / "traces" / name)["traceEvents"]:
        number, on_gpu = line["args"]["External id"], "stream" in line["args"]
        is_operator = line["cat"] in ("cpu_op", "user_annotation")
        event = FunctionEvent(
            id=number if is_operator else line["args"]["correlation"],
            linked_correlation_id=0 if is_operator else number,
            name=line["name"],
            thread=line["tid"],
            start_us=line["ts"],
            end_us=line["ts"] + line["dur"],
            use_device="cuda",
            device_type=DeviceType.CUDA if on_gpu else DeviceType.CPU,
            is_user_annotation=line["cat"].endswith("user_annotation"),
        )
        events.append(event)
    operators = {event.id: event for event in events if not event.linked_correlation_id}
    for event in events:
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            operators[event.linked_correlation_id].append_kernel(
                event.name, 0, event.time_range.elapsed_us()
            )
    events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    tree = EventList(events, use_device="cuda")
    tree._build_tree()
    return tree


def test_on_a_gpu_a_moment_counts_in_one_phase_and_nccl_apart() -> None:
    # Two ranks: the sum of the gradients runs beside the backward pass for 32 ms, and alone for 13
    # ms.
    result = table(_recorded("ddp_step.json"), "cuda")
    rows = {row["phase"]: (row["host_seconds"], row["device_seconds"]) for row in result["phases"]}
    expected = {
        "data wait": (0.010, 0.0),
        "forward": (0.0098, 0.030),
        "forward: layers": (0.0087, 0.030),
        "backward": (0.047, 0.040),
        "optimiser": (0.005, 0.010),
        "communication": (0.003, 0.013),
        "idle": (0.0252, 0.0),
    }
    assert list(rows) == list(expected)
    assert rows == {phase: pytest.approx(seconds) for phase, seconds in expected.items()}

    host, device = (
        sum(row[clock] for phase, row in rows.items() if ": " not in phase) for clock in (0, 1)
    )
    assert host == pytest.approx(result["seconds"]) and result["seconds"] == pytest.approx(0.1)
    # Until the optimiser's kernel ended; 1 ms is the copy of the batch, which is in no phase.
    assert result["device_seconds"] == pytest.approx(0.105)
    assert result["device_busy_seconds"] == pytest.approx(0.081)
    assert device == pytest.approx(0.081 - 0.001 + 0.013) and device <= result["device_seconds"]


def test_kernels_of_earlier_steps_do_not_fill_them() -> None:
    events = _recorded("ddp_step.json")
    step = next(event for event in events if event.name == "millrace: step")
    step.time_range.start = 60_000  # the kernels before were another step's
    result = table(events, "cuda")
    assert result["device_seconds"] == pytest.approx(0.045)
    assert sum(row["device_seconds"] for row in result["phases"]) <= result["device_seconds"]
    assert result["device_busy_seconds"] == pytest.approx(0.032)
