"""The profiler: a trace that opens, and times that add up."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

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
    folder: Path,
    dataset: BucketedDataset,
    steps: int,
    model: Callable = Loudness,
    max_steps: int = 8,
) -> None:
    settings = LoopSettings(
        max_steps=max_steps, log_steps=2, tensorboard=0, save_steps=0, device="cpu", eval_steps=3
    )
    task = SmallTask(lambda _, start: (dataset[step] for step in range(start, 8)), 8)
    task.build_model = model
    with StepProfiler(folder, steps, "cpu") as profiler:
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
    _train(folder, dataset, 4)
    return folder


def test_the_table_has_the_phases_of_a_step(profiled: Path) -> None:
    result, host = jsonl.read(profiled / "profile.json"), _host_seconds(profiled)
    assert set(host) == {"data wait", "forward", "forward: power", "backward", "optimiser"}
    assert result["steps"] == 4
    outer = sum(seconds for name, seconds in host.items() if ": " not in name)
    assert outer <= result["seconds"]
    assert host["forward: power"] <= host["forward"]
    assert all(seconds > 0 for seconds in host.values())


def test_the_trace_is_chromes_and_holds_the_profiled_steps_only(profiled: Path) -> None:
    marks = _marks(profiled)
    assert marks["step"] == marks["forward"] == marks["backward"] == marks["optimiser"] == 4
    assert marks["forward: power"] == 4
    names = sorted(path.name for path in profiled.glob("*.json*"))
    assert names == ["metrics.jsonl", "profile.json", "trace.json.gz"]


@pytest.mark.parametrize("steps, expected", [(50, 5), (1, 1)])
def test_as_many_steps_are_profiled_as_the_run_has(
    tmp_path: Path, dataset: BucketedDataset, steps: int, expected: int
) -> None:
    _train(tmp_path, dataset, steps)
    assert jsonl.read(tmp_path / "profile.json")["steps"] == expected


@pytest.mark.parametrize("max_steps", [2, 3])
def test_a_run_that_ends_before_the_profiled_steps_writes_none(
    tmp_path: Path, dataset: BucketedDataset, max_steps: int
) -> None:
    _train(tmp_path, dataset, 4, max_steps=max_steps)
    assert not (tmp_path / "profile.json").exists()


def test_a_run_that_fails_writes_none(tmp_path: Path, dataset: BucketedDataset) -> None:
    def evaluate(*_: object) -> dict:
        raise KeyError

    with pytest.raises(KeyError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmallTask, "evaluate", evaluate)
        _train(tmp_path, dataset, 5)
    assert not (tmp_path / "profile.json").exists()


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


def test_on_a_gpu_a_phase_has_the_kernels_that_it_started() -> None:
    # Of two ranks: the sum of the gradients is part of the backward pass.
    result = table(_recorded("ddp_step.json"))
    rows = {row["phase"]: (row["host_seconds"], row["device_seconds"]) for row in result["phases"]}
    assert result["steps"] == 1 and result["seconds"] == pytest.approx(0.1)
    assert rows["data wait"] == pytest.approx((0.010, 0.0))
    assert rows["forward"] == pytest.approx((0.0098, 0.030))
    assert rows["forward: layers"] == pytest.approx((0.0087, 0.030))
    assert rows["optimiser"] == pytest.approx((0.005, 0.010))
    # Its kernels are started by a thread outside of the mark; a function within another one (of
    # checkpointed activations) is a part of that.
    assert rows["backward"] == pytest.approx((0.050, 0.085))
