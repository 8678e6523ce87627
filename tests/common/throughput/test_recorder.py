"""What is recorded of every step equals what was trained on, and the machine's counters are really
read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.throughput.measure import BucketMeasure
from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.machine import memory, use
from millrace.common.machine.use import Sampler, cores
from millrace.common.stopping import Requeue
from millrace.common.throughput.recorder import StepRecorder
from millrace.common.throughput.run import StepLine
from millrace.common.training import loop
from millrace.common.training.settings import LoopSettings
from tests.asr.audio_tars import ListedPlan, corpus
from tests.asr.small_task import SmallTask
from tests.refusals import refused

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
    recorder = StepRecorder(folder, "cpu", {"loader": "bucketed"}, MEASURE)
    task = SmallTask(lambda _, start: recorder.watch(dataset[step] for step in range(start, 6)), 6)
    task.evaluate = evaluate or task.evaluate
    with recorder:
        loop.train(task, LoopSettings(**choices), folder, on_step=recorder.on_step)
    return recorder


def _steps(recorder: StepRecorder, buckets: Path) -> Iterator[int]:
    """Three steps of the first batch; the number of each when it is done."""
    for step, _ in enumerate(recorder.watch([_dataset(buckets)[0]] * 3), 1):
        recorder.on_step(step)
        yield step


def _lines(folder: Path) -> list[StepLine]:
    return [row for _, row, _ in jsonl.lines(folder / "steps.jsonl")]


def test_a_line_a_step_with_its_bucket_batch_and_padding(tmp_path: Path, buckets: Path) -> None:
    recorder = _run(tmp_path, buckets)
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
        assert line["seconds"] > 0
        assert line["peak_memory_bytes"] > 10_000_000
    assert lines[3]["buckets"].keys() == {"b_0_3", "b_3_5"}
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["failed"] is None and facts["loader"] == "bucketed"
    assert facts["machine"]["device"] == "cpu" and facts["gpu_use"] is None
    assert recorder.facts["loader"] == "bucketed" and not _is_open(tmp_path / "steps.jsonl")
    name = f"model name\t: {facts['machine']['cpu']}\n"
    assert name in Path("/proc/cpuinfo").read_text()


def _is_open(path: Path) -> bool:
    return str(path) in [file.path for file in psutil.Process().open_files()]


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


def test_evaluations_and_what_lies_between_epochs_are_no_part_of_a_step(
    tmp_path: Path, buckets: Path
) -> None:
    def evaluate(*_: object) -> dict[str, float]:
        time.sleep(0.3)
        return {"loss": 1.0}

    _run(tmp_path, buckets, evaluate, eval_steps=1)
    seconds = [line["seconds"] for line in _lines(tmp_path)]
    assert len(seconds) == 6 and max(seconds[1:]) < 0.3

    with StepRecorder(tmp_path / "epochs", "cpu", {}, MEASURE) as recorder:
        for epoch in (1, 2):
            for _ in recorder.watch([_dataset(buckets)[0]]):
                recorder.on_step(epoch)
            time.sleep(0.3)
    assert [line["seconds"] < 0.3 for line in _lines(tmp_path / "epochs")] == [True, True]


def _too_large() -> BaseException:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    return error.value


def _said_by_the_loop() -> BaseException:
    with pytest.raises(MillraceError) as error:
        raise MillraceError("cpu is out of memory at step 3") from _too_large()
    return error.value


@pytest.mark.parametrize(
    "error, reason",
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
    recorder = StepRecorder(tmp_path, "cpu", {"folder": tmp_path}, MEASURE)
    with pytest.raises(type(error)), recorder:
        for step in _steps(recorder, buckets):
            if step == 2:
                raise error
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["folder"] == str(tmp_path) and facts["failed"] == reason
    assert len(_lines(tmp_path)) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device_hides_no_error(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path, "cuda", {}, MEASURE)
    with refused("0 GPUs"), recorder:
        loop.train(SmallTask(lambda *_: [], 1), LoopSettings(device="cuda"), tmp_path)
    assert "0 GPUs" in jsonl.read(tmp_path / "throughput.json")["failed"]


@pytest.mark.parametrize("quota, least", [("50000 100000", 0.5), ("max 100000", 1.0)])
def test_the_cores_of_a_container_are_its_quota(monkeypatch, quota, least) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: quota)
    assert cores() == (least if least < 1 else len(psutil.Process().cpu_affinity()))


def test_the_peak_of_each_step_is_its_own(
    tmp_path: Path, buckets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = []
    monkeypatch.setattr(memory, "forget_highest_resident", lambda: forgotten.append(1))
    monkeypatch.setattr(memory, "highest_resident", iter((30, 90, 50)).__next__)
    with StepRecorder(tmp_path, "cpu", {}, MEASURE) as recorder:
        assert list(_steps(recorder, buckets)) == [1, 2, 3]
    assert [line["peak_memory_bytes"] for line in _lines(tmp_path)] == [30, 90, 50]
    assert len(forgotten) >= 3


def test_the_sampler_reads_while_it_runs_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = itertools.chain([20, 60], itertools.repeat(40))
    monkeypatch.setattr(torch.cuda, "utilization", lambda gpu: next(uses))
    monkeypatch.setattr(use, "_LOOK_SECONDS", 0.01)
    sampler = Sampler()
    sampler.start()
    sampler.start()
    while len(sampler.readings) < 4:
        time.sleep(0.01)
    sampler.stop()
    count = len(sampler.readings)
    sampler.stop()
    assert len(sampler.readings) == count and sampler.readings[:3] == [0.2, 0.6, 0.4]
    assert sampler.mean == pytest.approx(0.4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_without_counters_is_not_measured() -> None:
    sampler = Sampler()
    assert not sampler.read() and sampler.mean is None
