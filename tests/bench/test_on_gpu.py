"""What only a CUDA device can show, on small models: `make gpu` runs it first.

Without a device all of it is skipped. Nothing here resets a device or changes its settings.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from millrace.asr import train_model as train_asr
from millrace.asr.calibration import trial
from millrace.asr.loading.collate import Batch
from millrace.asr.models import registry
from millrace.asr.planning.loader import open_loader
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.asr.transcription.transcriber import Transcriber
from millrace.common import jsonl
from millrace.common.machine.use import Sampler
from millrace.common.training.devices import kind_of
from millrace.common.training.loop import train
from millrace.common.training.meters import Clock
from millrace.common.training.settings import LoopSettings
from millrace.image import train_active as train_images
from millrace.music import train_model as train_music
from tests.asr import calibration_corpus as calibration
from tests.asr.models import tiny
from tests.common.training.test_loop import losses
from tests.common.training.test_ranks import launched
from tests.common.training.tiny_task import TinyTask, run
from tests.image.record_sets import write_set
from tests.music.versions import corpus as music_corpus
from tests.music.versions import overrides
from tests.refusals import refused

pytestmark = pytest.mark.gpu
MODELS = ["ctc", "qwen3-asr-tiny", "whisper", "wav2vec2"]
TEXTS = [f"number {number} said" for number in range(24)]
ON_GPU = {"device": "cuda", "precision": "32-true", "tf32": "none"}


@pytest.fixture(scope="module")
def buckets(tmp_path_factory) -> Path:
    """Clips that are long enough for their transcripts, as CTC needs."""
    clips = {"b_0_3": (12, 0.8, 2.9), "b_3_5": (12, 3.1, 4.9)}
    return calibration.write(tmp_path_factory.mktemp("on_gpu"), clips).parent


def model_of(name: str, folder: Path) -> str:
    """A model of this name, or a folder with a small one of transformers of this type."""
    return str(tiny.write(folder, name, TEXTS)) if name in ("whisper", "wav2vec2") else name


def measured(gb: float, limit_gb: float = 8.0) -> dict:
    """The facts of a CudaMeter, in a process of its own, of an allocation of that size."""
    code = f"""
import json, torch
from millrace.common.machine.memory import CudaMeter, is_out_of_memory
meter = CudaMeter({limit_gb})
meter.begin()
answers = []
for size in ({gb}, 0.25):
    try:
        held = torch.empty(int(size * 2**30), dtype=torch.uint8, device="cuda")
        answers.append("held")
    except RuntimeError as error:
        answers.append("oom" if is_out_of_memory(error) else repr(error))
        error.__traceback__ = None
    held = None
print(json.dumps({{"answers": answers, **meter.facts()}}))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=trial.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_meter_finds_an_allocation_of_known_size():
    small, large = measured(0.5), measured(2.5)
    assert small["answers"] == large["answers"] == ["held", "held"]
    assert large["allocated_gb"] - small["allocated_gb"] == pytest.approx(2.0, abs=0.01)
    assert large["step_peak_gb"] - small["step_peak_gb"] == pytest.approx(2.0, abs=0.1)
    assert small["fixed_gb"] < small["step_peak_gb"] and small["retries"] == 0


def test_memory_above_the_limit_is_an_answer_and_leaks_nothing():
    facts = measured(9.0)
    assert facts["answers"] == ["oom", "held"]
    assert facts["step_peak_gb"] < 8.0


def test_a_trial_that_is_too_large_says_so_and_the_next_one_is_as_large_as_before(tmp_path):
    config = calibration.write(tmp_path, {"b_0_1": (8, 0.9, 1.0)})

    def ask(rows: int, limit_gb: float) -> dict:
        request = calibration.request(config, "b_0_1", "worst", limit_gb, rows, 2)
        settings = {"device": "cuda", "precision": "32-true"}
        return trial.ask({**request, "settings": settings})

    before = ask(64, 16.0)
    assert not before["oom"] and before["fixed_gb"] < before["step_peak_gb"] < 16
    over = ask(4096, before["step_peak_gb"] + 0.05)
    assert over["oom"] or over["retried"] or over["peak_gb"] > before["step_peak_gb"]
    after = ask(64, 16.0)
    assert after["step_peak_gb"] == pytest.approx(before["step_peak_gb"], rel=0.02)


@pytest.mark.parametrize("model", ["ctc", "qwen3-asr-tiny"])
def test_all_that_goes_to_the_device_is_pinned(buckets, model):
    options = TrainOptions(str(buckets), model=model, num_workers=1, batch_seconds=6.0)
    task = AsrTask(options, "cuda")
    task.build_model()
    try:
        batches = list(task.batches(task.plan(0, 1), 0, 0))
        assert batches
        for batch in batches:
            tensors = [batch.audio, batch.lengths, *batch.prepared["tensors"].values()]
            assert all(tensor.is_pinned() for tensor in tensors)
            moved = task._model.prepare(batch).to("cuda")
            assert all(tensor.is_cuda for tensor in moved.tensors.values())
    finally:
        task.close()


def test_the_clock_of_events_is_that_of_the_wall():
    factor = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    clock, begin = Clock("cuda"), time.perf_counter()
    product = factor
    while time.perf_counter() - begin < 0.5:
        product = (product @ factor) * 1e-2
        torch.cuda.synchronize()
    clock.lap("forward")
    time.sleep(0.3)
    clock.lap("data_wait")
    seconds, wall = clock.restart(), time.perf_counter() - begin
    assert seconds["forward"] == pytest.approx(0.5, abs=0.05)
    assert seconds["data_wait"] == pytest.approx(0.3, abs=0.05)
    assert sum(seconds.values()) == pytest.approx(wall, abs=0.1)


def test_the_losses_are_those_of_the_cpu(tmp_path):
    on_cpu = run(tmp_path / "cpu", {"max_steps": 6}, {"dropout": 0.0})
    on_gpu = run(tmp_path / "gpu", {"max_steps": 6, **ON_GPU}, {"dropout": 0.0})
    assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-3)
    assert next(on_gpu.model.parameters()).is_cuda


def test_mixed_precision_learns_with_weights_in_float32(tmp_path):
    settings = {"device": "cuda", "precision": "bf16-mixed", "epochs": 4, "eval_at_start": 1}
    result = run(tmp_path, settings, {"dropout": 0.0})
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
    steps = sorted(result.evaluations)
    assert result.evaluations[steps[-1]]["mse"] < 0.7 * result.evaluations[0]["mse"]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("model", MODELS)
def test_recognisers_train_in_reduced_precision(buckets, tmp_path, model, precision):
    path = model_of(model, tmp_path / "model")
    run = tmp_path / "run"
    flags = asr_flags(buckets, run, "--model", path, "--precision", precision)
    assert train_asr.main([*flags, "--max-steps", "6", "--log-steps", "1", "--lr", "1e-3"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [row["loss"] for row in rows if row["event"] == "train"]
    assert len(found) == 6 and all(0 < loss < 100 for loss in found)


@pytest.mark.parametrize("model", MODELS)
def test_the_texts_are_those_of_the_cpu(buckets, tmp_path, monkeypatch, model):
    # Convolutions in TF32, cuDNN's default, would round the weights to ten bits.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(1)
    folder = tmp_path / "saved"
    registry.build(model_of(model, tmp_path / "model"), {}, TEXTS).save_pretrained(folder)
    with tarfile.open(buckets.parent / "clips.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    files = sorted(tmp_path.glob("*.flac"))
    on_gpu, on_cpu = (
        [text.text for text in Transcriber(folder, device=device).transcripts(files)]
        for device in ("cuda", "cpu")
    )
    assert len(on_gpu) == 24 and on_gpu == on_cpu


def test_a_worker_that_frees_an_event_of_an_earlier_run_lives(buckets):
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    cycle = [event]
    cycle.append(cycle)
    del event, cycle

    def frees(batch: Batch) -> Batch:
        gc.collect()
        return batch

    loader = open_loader(buckets, seconds=8, workers=1, transform=frees)
    assert sum(len(batch) for batch in loader) == 24
    loader.close()


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    task = {"dropout": 0.3}
    constant = {**ON_GPU, "lr_scheduler_type": "constant", "warmup_ratio": 0.0, "save_steps": 3}
    alone = run(tmp_path / "alone", {**constant, "max_steps": 9}, task)
    run(tmp_path / "resumed", {**constant, "max_steps": 4}, task)
    resumed = run(tmp_path / "resumed", {**constant, "max_steps": 9}, task)
    assert resumed.resumed_step == 4 and resumed.digest == alone.digest
    assert losses(tmp_path / "resumed") == losses(tmp_path / "alone")


class Hungry(TinyTask):
    """Takes more memory than there is, in the third step."""

    def training_step(self, model, batch):
        if self.now == 2:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return super().training_step(model, batch)


def test_out_of_memory_in_a_step_is_one_line(tmp_path):
    task = Hungry()
    settings = LoopSettings(max_steps=5, tensorboard=0, save_steps=1, **ON_GPU)
    with refused("cuda:0 is out of memory at step 3") as raised:
        train(task, settings, tmp_path, task.on_step)
    assert "smaller batches" in str(raised.value)


def test_the_sampler_counts_the_device_that_torch_uses():
    sampler = Sampler()
    sampler.read()
    factor = torch.randn(4096, 4096, device="cuda")
    begin = time.perf_counter()
    while time.perf_counter() - begin < 2.0:
        factor = torch.nn.functional.normalize(factor @ factor)
        torch.cuda.synchronize()
        sampler.read()
    assert max(sampler.readings) > 0.3


def asr_flags(buckets: Path, folder: Path, *more: str) -> list[str]:
    flags = ["--bucket-dir", str(buckets), "--metrics", str(folder / "metrics.json")]
    flags += ["--model", "qwen3-asr-tiny", "--batch-seconds", "8", "--num-workers", "1"]
    return [*flags, "--tensorboard=0", "--save-steps=0", "--device", "cuda", *more]


def test_a_run_is_measured_on_its_gpu(buckets, tmp_path):
    assert train_asr.main(asr_flags(buckets, tmp_path, "--max-steps", "12")) == 0
    facts = jsonl.read(tmp_path / "throughput.json")
    assert facts["machine"]["device"] == torch.cuda.get_device_name()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["peak_memory_bytes"] > 0 for row in rows if row["event"] == "train")


def test_shares_of_a_profile_are_of_one_whole(buckets, tmp_path):
    flags = asr_flags(buckets, tmp_path, "--max-steps", "9", "--profile-steps", "4")
    assert train_asr.main(flags) == 0
    profile = jsonl.read(tmp_path / "profile.json")
    phases = [row for row in profile["phases"] if ": " not in row["phase"]]
    assert 0 < sum(row["host_seconds"] for row in phases) <= 1.001 * profile["seconds"]
    by_phase = {row["phase"]: row["device_seconds"] for row in phases}
    assert by_phase["forward"] > 0 and by_phase["backward"] > 0


def test_images_train(tmp_path):
    write_set(tmp_path / "data", [40, 40])
    write_set(tmp_path / "data", [9], "val")
    command = ["-a", "resnet_small", "-b", "8", "--epochs", "1", "--augment", "none"]
    command += ["--device", "cuda", "--output-dir", str(tmp_path / "run"), str(tmp_path / "data")]
    assert train_images.main(command) == 0
    assert jsonl.read(tmp_path / "run/metrics.json")["optimizer_steps"] == 10


def test_music_trains(tmp_path, monkeypatch):
    music_corpus(tmp_path)
    arguments = overrides(
        tmp_path, "training.numepochs=1", "path.logs=logs", "fabric.accelerator=cuda"
    )
    monkeypatch.chdir(tmp_path)
    assert train_music.main([*arguments, "jobname=gpu"]) == 0
    assert jsonl.read("logs/gpu/metrics.json")["optimizer_steps"] > 0


def test_two_ranks_over_nccl_end_with_equal_weights(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    settings = {"max_steps": 6, "save_steps": 2, **ON_GPU}
    folder = tmp_path / "run"
    ended = launched(2, [{"folder": str(folder), "settings": settings}], tmp_path)
    assert ended.returncode == 0, ended.stderr
    digests = {jsonl.read(folder / f"rank.{rank}.json")["digest"] for rank in range(2)}
    assert len(digests) == 1 and "destroy_process_group" not in ended.stderr


def test_auto_is_the_gpu():
    assert kind_of("auto") == "cuda"
