"""What is recorded of every step equals what was trained on, and the machine's counters are really
read."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.throughput.loaders import BaselineLoader, BaselinePlan
from millrace.asr.throughput.measure import BucketMeasure
from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.common.machine import memory
from millrace.common.machine.use import Reading, Sampler, cores
from millrace.common.stopping import Requeue
from millrace.common.throughput.recorder import StepRecorder
from millrace.common.throughput.run import Run, StepLine
from millrace.common.training import loop
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings
from tests.asr.audio_tars import ListedPlan, corpus
from tests.asr.small_task import SmallTask

# Rows of the batch of each step; rows 12 to 23 are the second bucket.
STEPS = [[[0, 1, 2]], [[3, 4]], [[12, 13, 14, 15]], [[11, 12]], [[5]], [[20, 21]]]
# Of the rows of `buckets`.
MEASURE = BucketMeasure({"b_0_3": 12, "b_3_5": 12})


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("recorded"))


def _dataset(buckets: Path) -> BucketedDataset:
    return BucketedDataset(RowTable.open(buckets), ListedPlan(STEPS))


def _run(
    folder: Path, buckets: Path, evaluate: Callable | None = None, **choices: int
) -> StepRecorder:
    choices = {
        "max_steps": 6,
        "log_steps": 2,
        "tensorboard": 0,
        "save_steps": 0,
        "device": "cpu",
        **choices,
    }
    dataset = _dataset(buckets)
    recorder = StepRecorder(folder, "cpu", {"loader": "bucketed"}, Ranks(), MEASURE)
    task = SmallTask(lambda _, start: recorder.watch(dataset[step] for step in range(start, 6)), 6)
    task.evaluate = evaluate or task.evaluate
    with recorder:
        loop.train(task, LoopSettings(**choices), folder, on_step=recorder.on_step)
    return recorder


def _lines(folder: Path) -> list[StepLine]:
    return [row for _, row, _ in jsonl.lines(folder / "steps.jsonl")]


def test_a_line_a_step_with_its_bucket_batch_and_padding(tmp_path: Path, buckets: Path) -> None:
    _run(tmp_path, buckets)
    lines, dataset = _lines(tmp_path), _dataset(buckets)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["bucket"] for line in lines] == ["b_0_3", "b_0_3", "b_3_5", None, "b_0_3", "b_3_5"]
    for step, line in enumerate(lines):
        batch = dataset[step]
        assert line["samples"] == len(batch)
        assert line["audio_seconds"] == pytest.approx(float(batch.lengths.sum()) / 16_000)
        assert line["padded_audio_seconds"] == pytest.approx(batch.audio.numel() / 16_000)
        assert sum(seconds for _, seconds in line["buckets"].values()) == pytest.approx(
            line["audio_seconds"]
        )
        assert sum(count for count, _ in line["buckets"].values()) == len(batch)
        assert 0 < line["wait_seconds"] <= line["seconds"]
        assert line["peak_memory_bytes"] > 10_000_000
    assert lines[3]["buckets"].keys() == {"b_0_3", "b_3_5"}
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["failed"] is None and facts["loader"] == "bucketed"
    assert facts["peak_memory_bytes"] == max(line["peak_memory_bytes"] for line in lines)
    assert facts["memory_is"] == "resident set of the trainer"
    assert facts["machine"]["device"] == "cpu" and facts["use"]["gpu"] is None


def test_accumulated_batches_are_one_step(tmp_path: Path, buckets: Path) -> None:
    _run(tmp_path, buckets, max_steps=3, grad_acc=2)
    names = ("batches", "samples", "bucket")
    steps = [tuple(line[name] for name in names) for line in _lines(tmp_path)]
    assert steps == [(2, 5, "b_0_3"), (2, 6, None), (2, 3, None)]


def test_epochs_and_a_resume_leave_each_step_once(tmp_path: Path, buckets: Path) -> None:
    _run(tmp_path, buckets, max_steps=8)
    first = (tmp_path / "steps.jsonl").read_bytes()
    # What a killed run had done after its last checkpoint.
    (tmp_path / "steps.jsonl").write_bytes(
        first + b'{"step":9,"samples":1,"seconds":1.0}\n{"step":10,"samp'
    )
    _run(tmp_path, buckets, max_steps=14)
    lines = _lines(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 15))
    assert (tmp_path / "steps.jsonl").read_bytes().startswith(first)
    assert [line["samples"] for line in lines] == [len(STEPS[step % 6][0]) for step in range(14)]


def test_evaluations_are_not_part_of_a_step(tmp_path: Path, buckets: Path) -> None:
    evaluations = []

    def evaluate(*_: object) -> dict[str, float]:
        evaluations.append((time.perf_counter(), time.sleep(0.02), time.perf_counter()))
        return {"loss": 1.0}

    spans = _run(tmp_path, buckets, evaluate, eval_steps=1).spans
    assert len(evaluations) == len(spans) == 6
    for (begin, _, end), (before, after) in zip(evaluations, pairwise(spans), strict=False):
        assert before[1] <= begin < end <= after[0]


def _too_large() -> BaseException:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    return error.value


def _said_by_the_loop() -> BaseException:
    with pytest.raises(MillraceError) as error:
        raise MillraceError("cpu is out of memory at step 3") from _too_large()
    return error.value


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (_too_large(), "out of memory"),
        (_said_by_the_loop(), "out of memory"),
        (torch.OutOfMemoryError("CUDA"), "out of memory"),
        (Requeue(), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(), "ValueError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_reasons_for_a_failure(
    tmp_path: Path, buckets: Path, error: BaseException, reason: str
) -> None:
    recorder = StepRecorder(tmp_path, "cpu", {"folder": tmp_path}, Ranks(), MEASURE)
    with pytest.raises(type(error)), recorder:
        for step, _ in enumerate(recorder.watch([_dataset(buckets)[0]] * 3), 1):
            recorder.on_step(step)
            if step == 2:
                raise error
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["folder"] == str(tmp_path) and facts["failed"] == reason
    assert len(_lines(tmp_path)) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_hides_no_error(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path, "cuda", {}, Ranks(), MEASURE)
    with pytest.raises(MillraceError, match="0 GPUs"), recorder:
        loop.train(SmallTask(lambda *_: [], 1), LoopSettings(device="cuda"), tmp_path)
    assert "0 GPUs" in jsonl.read(tmp_path / "throughput.json")["failed"]


def test_other_ranks_write_only_what_their_samplers_saw(tmp_path: Path) -> None:
    with StepRecorder(tmp_path / "r1", "cpu", {}, Ranks(1, 2), MEASURE) as recorder:
        assert list(recorder.watch([1, 2, 3])) == [1, 2, 3]
        recorder.on_step(1)
    assert [path.name for path in (tmp_path / "r1").iterdir()] == ["throughput.rank-1.json"]


def test_the_baselines_loader_says_what_it_spends(tmp_path: Path, buckets: Path) -> None:
    table = RowTable.open(buckets)
    recorder = StepRecorder(tmp_path, "cpu", {"loader": "baseline"}, Ranks(), MEASURE)
    loader = BaselineLoader(table, BaselinePlan(table, 4, seed=1, epoch=0))
    task = SmallTask(lambda _, start: recorder.watch(loader), 6)
    settings = LoopSettings(max_steps=6, log_steps=2, tensorboard=0, save_steps=0, device="cpu")
    with recorder:
        summary = loop.train(task, settings, tmp_path, recorder.on_step).summary()
    atomic.write_json(tmp_path / "metrics.json", summary)
    lines = _lines(tmp_path)
    for line in lines:
        assert 0 < line["decode_seconds"] + line["read_seconds"] <= line["wait_seconds"]
    assert sum(line["decode_seconds"] for line in lines) == pytest.approx(loader.spent["decode"])
    run = Run(tmp_path)
    assert run.finished and run.shares["decode"] > 0
    assert sum(run.shares.values()) == pytest.approx(1)
    assert run.lost_samples == 0


def _burn(seconds: float, ready: multiprocessing.Event, end: multiprocessing.Event) -> None:
    while time.process_time() < seconds:
        pass
    ready.set()
    end.wait()


def test_cpu_time_of_workers_is_theirs_and_not_the_trainers() -> None:
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    samplers = [Sampler() for _ in range(3)]  # each finds the workers of its first reading
    samplers[0].read()
    worker = context.Process(target=_burn, args=(0.3, ready, end))
    worker.start()
    try:
        assert ready.wait(60)
        samplers[1].read()
    finally:
        end.set()
        worker.join()
    samplers[2].read()
    before, after, ended = (sampler.readings[0] for sampler in samplers)
    assert after.workers_cpu - before.workers_cpu >= 0.25 > after.trainer_cpu - before.trainer_cpu
    assert (
        ended.workers_cpu <= after.workers_cpu - 0.25
    )  # a worker that ended takes its time with it


def test_use_counts_only_readings_within_steps() -> None:
    sampler = Sampler()
    sampler.readings = [
        Reading(0.0, 0.0, 0.0, 0.1),
        Reading(1.0, 1.0, 2.0, 0.9),
        Reading(2.0, 2.0, 4.0, 0.7),
        Reading(3.0, 2.0, 4.0, 0.0),  # an evaluation
        Reading(4.0, 3.0, 6.0, 0.8),
        Reading(5.0, 4.0, 1.0, 0.8),  # a worker has ended
    ]
    use = sampler.use([(0.0, 0.9), (0.95, 2.3), (3.05, 5.0)], cores=4)
    assert use == pytest.approx({"cpu": 0.625, "workers_cpu": 0.375, "gpu": 0.8})


@pytest.mark.parametrize(("quota", "least"), [("50000 100000", 0.5), ("max 100000", 1.0)])
def test_the_cores_of_a_container_are_its_quota(monkeypatch, quota, least) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: quota)
    assert cores() == (least if least < 1 else len(psutil.Process().cpu_affinity()))


def test_workers_that_start_later_are_found() -> None:
    sampler = Sampler()
    sampler.read()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as worker:
        time.sleep(0.5)
        for _ in range(20):
            sampler.read()
        worker.kill()
    assert sampler.readings[-1].workers_cpu > sampler.readings[0].workers_cpu


def test_use_is_without_the_first_step_and_the_peak_is_of_all_steps(
    tmp_path: Path, buckets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = []
    monkeypatch.setattr(memory, "forget_highest_resident", lambda: forgotten.append(1))
    monkeypatch.setattr(memory, "highest_resident", iter((30, 90, 50)).__next__)
    ranks = Ranks(0, 2, 0, 2)
    with StepRecorder(tmp_path, "cpu", {}, ranks, MEASURE) as recorder:
        for step, _ in enumerate(recorder.watch([_dataset(buckets)[0]] * 3), 1):
            recorder.on_step(step)
        recorder.sampler.stop()
        times = [at for span in recorder.spans for at in span]
        assert recorder.sampler.readings[0].at >= times[1]
        # As busy as one of two ranks can be; far more than that before the first step's end.
        seconds = [(at - times[1]) * cores() / 2 for at in times]
        seconds[0] -= 99.0
        readings = zip(times, seconds, strict=True)
        recorder.sampler.readings = [Reading(at, spent, 0.0, None) for at, spent in readings]
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["use"]["cpu"] == pytest.approx(1.0)
    assert facts["peak_memory_bytes"] == 90 and len(forgotten) >= 3


@pytest.mark.parametrize("spans", [[], [(0.0, 1.0)]])
def test_use_of_nothing_is_not_measured(spans: list[tuple[float, float]]) -> None:
    assert Sampler().use(spans, 4) == dict.fromkeys(("cpu", "workers_cpu", "gpu"))


def test_the_sampler_reads_while_it_runs_and_stops() -> None:
    sampler = Sampler(interval=0.01)
    sampler.start()
    sampler.start()
    while len(sampler.readings) < 4:
        time.sleep(0.01)
    sampler.stop()
    count = len(sampler.readings)
    sampler.stop()
    assert len(sampler.readings) == count
    times = [reading.at for reading in sampler.readings]
    assert (
        times == sorted(times)
        and sampler.readings[-1].trainer_cpu >= sampler.readings[0].trainer_cpu
    )
    assert cores() > 0


UUIDS = [f"GPU-e{number}000000-0000-0000-0000-000000000000" for number in range(6)]


class StandInNvml:
    """The driver's library on a machine with six GPUs; GPU n is busy for n tenths of the time."""

    NVMLError_DriverNotLoaded = RuntimeError

    @staticmethod
    def nvmlInit() -> None:
        pass

    @staticmethod
    def nvmlDeviceGetHandleByIndex(number: int) -> int:
        return number

    @staticmethod
    def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=10 * handle)


@pytest.mark.parametrize(
    ("visible", "read"),
    [
        (None, [0, 1, 2]),
        ("5,1,3", [5, 1, 3]),
        ("GPU-e5,GPU-e1,GPU-e4", [5, 1, 4]),
    ],
)
def test_each_rank_reads_its_own_gpu(
    tmp_path: Path, buckets: Path, monkeypatch, visible: str | None, read: list[int]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", StandInNvml)
    monkeypatch.setattr(torch.cuda, "pynvml", StandInNvml, raising=False)
    monkeypatch.setattr(torch.cuda, "_HAS_PYNVML", True)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: UUIDS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for rank, number in enumerate(read):
        # The second of two nodes: its GPUs are counted from 0 again.
        ranks = Ranks(3 + rank, 6, rank, 3)
        recorder = StepRecorder(tmp_path, "cuda", {}, ranks, MEASURE)
        recorder.sampler.read()
        assert recorder.sampler.readings[0].gpu == number / 10
        assert recorder.device.index == rank


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_without_counters_is_not_measured() -> None:
    sampler = Sampler(0)
    sampler.read()
    assert sampler.readings[0].gpu is None
