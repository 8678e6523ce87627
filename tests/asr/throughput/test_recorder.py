"""What is recorded of every step equals what was trained on, and the machine's counters are really read."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.throughput.naive import BaselineLoader
from millrace.asr.throughput.recorder import Buckets, StepRecorder
from millrace.asr.throughput.run import Run
from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.common.machine import use as gpu_sampler
from millrace.common.machine.use import Reading, Sampler
from millrace.common.training import loop
from millrace.common.training.ranks import Requeue
from millrace.common.training.settings import LoopSettings
from tests.asr.audio_tars import ListedPlan, corpus
from tests.asr.small_task import SmallTask

STEPS = [
    [[0, 1, 2]],
    [[3, 4]],
    [[12, 13, 14, 15]],
    [[11, 12]],
    [[5]],
    [[20, 21]],
]  # rows 12 to 23: the second bucket


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("recorded"))


def _settings(**choices: int) -> LoopSettings:
    return LoopSettings(
        **{"max_steps": 6, "log_steps": 2, "tensorboard": 0, "save_steps": 0, "device": "cpu", **choices}
    )


def _run(folder: Path, buckets: Path, settings: LoopSettings, steps: list = STEPS) -> StepRecorder:
    dataset = BucketedDataset(RowTable.open(buckets), ListedPlan(steps))
    recorder = StepRecorder(folder, buckets, "cpu", facts={"loader": "bucketed"}, interval=0.05)
    task = SmallTask(
        lambda _, start: recorder.watch(dataset[step] for step in range(start, len(steps))), len(steps)
    )
    with recorder:
        loop.train(task, settings, folder, on_step=recorder.on_step)
    return recorder


def test_a_line_a_step_with_its_bucket_batch_and_padding(tmp_path: Path, buckets: Path) -> None:
    _run(tmp_path, buckets, _settings())
    dataset = BucketedDataset(RowTable.open(buckets), ListedPlan(STEPS))
    lines = [row for _, row, _ in jsonl.lines(tmp_path / "steps.jsonl")]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["bucket"] for line in lines] == ["b_0_3", "b_0_3", "b_3_5", None, "b_0_3", "b_3_5"]
    for step, line in enumerate(lines):
        batch = dataset[step]
        assert line["samples"] == line["planned"] == len(batch)
        assert line["audio_seconds"] == pytest.approx(float(batch.lengths.sum()) / 16_000)
        assert line["padded_audio_seconds"] == pytest.approx(batch.audio.numel() / 16_000)
        assert sum(seconds for _, seconds in line["buckets"].values()) == pytest.approx(line["audio_seconds"])
        assert sum(count for count, _ in line["buckets"].values()) == len(batch)
        assert 0 < line["wait_seconds"] <= line["seconds"]
        assert line["peak_memory_bytes"] > 10_000_000
    assert lines[3]["buckets"].keys() == {"b_0_3", "b_3_5"}
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["completed"] and facts["failed"] is None and facts["loader"] == "bucketed"
    assert facts["peak_memory_bytes"] == max(line["peak_memory_bytes"] for line in lines)
    assert facts["machine"]["device"] == "cpu" and facts["use"]["gpu"] is None


def test_accumulated_batches_are_one_step(tmp_path: Path, buckets: Path) -> None:
    _run(tmp_path, buckets, _settings(max_steps=3, grad_acc=2))
    lines = [row for _, row, _ in jsonl.lines(tmp_path / "steps.jsonl")]
    assert [(line["batches"], line["samples"], line["bucket"]) for line in lines] == [
        (2, 5, "b_0_3"),
        (2, 6, None),
        (2, 3, None),
    ]


def test_epochs_and_a_resume_leave_each_step_once(tmp_path: Path, buckets: Path) -> None:
    _run(tmp_path, buckets, _settings(max_steps=8))
    first = (tmp_path / "steps.jsonl").read_bytes()
    with open(
        tmp_path / "steps.jsonl", "ab"
    ) as handle:  # what a killed run had done after its last checkpoint
        handle.write(b'{"step":9,"samples":1,"seconds":1.0}\n{"step":10,"samp')
    _run(tmp_path, buckets, _settings(max_steps=14))
    lines = [row for _, row, _ in jsonl.lines(tmp_path / "steps.jsonl")]
    assert [line["step"] for line in lines] == list(range(1, 15))
    assert (tmp_path / "steps.jsonl").read_bytes().startswith(first)
    assert [line["samples"] for line in lines] == [len(STEPS[step % 6][0]) for step in range(14)]


def test_evaluations_are_not_part_of_a_step(tmp_path: Path, buckets: Path) -> None:
    dataset = BucketedDataset(RowTable.open(buckets), ListedPlan(STEPS))
    recorder = StepRecorder(tmp_path, buckets, "cpu")
    task = SmallTask(lambda _, start: recorder.watch(dataset[step] for step in range(start, 6)), 6)
    evaluated = []
    task.evaluate = lambda model, fabric: evaluated.append(time.sleep(0.3)) or {"loss": 1.0}
    with recorder:
        loop.train(task, _settings(eval_steps=1), tmp_path, on_step=recorder.on_step)
    assert len(evaluated) == 6
    spans = recorder._spans
    assert all(later[0] - earlier[1] >= 0.3 for earlier, later in pairwise(spans))


def test_a_run_that_fails_says_why(tmp_path: Path, buckets: Path) -> None:
    with pytest.raises(MemoryError), StepRecorder(tmp_path, buckets, "cpu") as recorder:
        for step, _ in enumerate(
            recorder.watch([BucketedDataset(RowTable.open(buckets), ListedPlan(STEPS))[0]] * 3), 1
        ):
            recorder.on_step(step)
            if step == 2:
                raise MemoryError
    facts = jsonl.read(tmp_path / "throughput.json")
    assert (facts["completed"], facts["failed"], facts["steps_recorded"]) == (False, "out of memory", 2)


def test_reasons_for_a_failure(tmp_path: Path, buckets: Path) -> None:
    def failed(error: BaseException) -> str:
        with pytest.raises(type(error)), StepRecorder(tmp_path, buckets, "cpu", facts={"folder": tmp_path}):
            raise error
        facts = jsonl.read(tmp_path / "throughput.json")
        assert facts["folder"] == str(tmp_path)
        return facts["failed"]

    with pytest.raises(RuntimeError) as too_large:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert failed(too_large.value) == "out of memory" == failed(torch.OutOfMemoryError("CUDA"))
    assert failed(Requeue()) == "stopped" == failed(KeyboardInterrupt())
    assert failed(ValueError("one\ntwo")) == "ValueError: one" and failed(ValueError()) == "ValueError"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_hides_no_error(tmp_path: Path, buckets: Path) -> None:
    with pytest.raises(MillraceError, match="0 GPUs"), StepRecorder(tmp_path, buckets, "cuda"):
        loop.train(SmallTask(lambda *_: [], 1), LoopSettings(device="cuda"), tmp_path)
    assert "0 GPUs" in jsonl.read(tmp_path / "throughput.json")["failed"]


def test_other_ranks_write_nothing(tmp_path: Path, buckets: Path) -> None:
    with StepRecorder(tmp_path / "r1", buckets, "cpu", rank=1) as recorder:
        assert list(recorder.watch([1, 2, 3])) == [1, 2, 3]
        recorder.on_step(1)
    assert not (tmp_path / "r1").exists()


def test_the_naive_loader_says_what_it_spends(tmp_path: Path, buckets: Path) -> None:
    table = RowTable.open(buckets)
    recorder = StepRecorder(tmp_path, buckets, "cpu", facts={"loader": "baseline"})
    loader = BaselineLoader(table, 4, seed=1)
    task = SmallTask(lambda _, start: recorder.watch(loader), 6)
    with recorder:
        atomic.write_json(
            tmp_path / "metrics.json", loop.train(task, _settings(), tmp_path, recorder.on_step).summary()
        )
    lines = [row for _, row, _ in jsonl.lines(tmp_path / "steps.jsonl")]
    for line in lines:
        assert 0 < line["decode_seconds"] + line["read_seconds"] <= line["wait_seconds"]
    assert sum(line["decode_seconds"] for line in lines) == pytest.approx(loader.spent["decode"])
    run = Run.read(tmp_path)
    assert run.finished and run.shares["decode"] > 0
    assert sum(run.shares.values()) == pytest.approx(1)
    assert run.held_out_loss() == 0.5 and run.lost_samples == 0


def test_bucket_of_every_row(buckets: Path) -> None:
    found = Buckets(buckets)
    rows = torch.arange(24).numpy()
    sums = found.sums(rows, rows + 0.5)
    assert sums == {"b_0_3": (12, sum(range(12)) + 6.0), "b_3_5": (12, sum(range(12, 24)) + 6.0)}
    assert Buckets(buckets / "bucket_config.json").names == found.names == ["b_0_3", "b_3_5"]
    assert found.sums(rows[:0], rows[:0]) == {}


def _burn(seconds: float, ready: multiprocessing.Event, end: multiprocessing.Event) -> None:
    while time.process_time() < seconds:
        pass
    ready.set()
    end.wait()


def test_cpu_time_of_workers_is_theirs_and_not_the_trainers() -> None:
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    trainer, workers = gpu_sampler.cpu_seconds()
    worker = context.Process(target=_burn, args=(0.3, ready, end))
    worker.start()
    try:
        assert ready.wait(60)
        assert worker.pid in list(gpu_sampler.descendants(os.getpid()))
        later = gpu_sampler.cpu_seconds()
        assert later[1] - workers >= 0.25 and later[0] - trainer < 0.25
    finally:
        end.set()
        worker.join()
    assert worker.pid not in list(gpu_sampler.descendants(os.getpid()))


def _readings(*rows: tuple) -> Iterator[Reading]:
    return (Reading(*row) for row in rows)


def test_use_counts_only_readings_within_steps() -> None:
    sampler = Sampler()
    sampler.readings = list(
        _readings(
            (0.0, 0.0, 0.0, 0.1, 5),
            (1.0, 1.0, 2.0, 0.9, 6),
            (2.0, 2.0, 4.0, 0.7, 9),
            (3.0, 2.0, 4.0, 0.0, 99),  # an evaluation
            (4.0, 3.0, 6.0, 0.8, 7),
        )
    )
    use = sampler.use([(0.0, 0.9), (0.95, 2.0), (3.05, 4.5)], cores=4)
    assert use["seconds"] == 3 and use["cpu"] == pytest.approx(0.75)
    assert (use["trainer_cpu"], use["workers_cpu"]) == (pytest.approx(0.25), pytest.approx(0.5))
    assert use["gpu"] == pytest.approx(0.8) and use["gpu_memory_bytes"] == 9


def test_use_of_nothing_is_not_measured() -> None:
    for sampler, spans in ((Sampler(), []), (Sampler(), [(0.0, 1.0)])):
        use = sampler.use(spans, 4)
        assert use["cpu"] is None and use["gpu"] is None and use["seconds"] == 0


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
    assert times == sorted(times) and sampler.readings[-1].trainer_cpu >= sampler.readings[0].trainer_cpu
    assert gpu_sampler.cores() > 0
