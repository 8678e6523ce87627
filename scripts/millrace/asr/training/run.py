"""An ASR run in its folder: which settings may change while it goes on, what is trained, tested,
measured or profiled, and which model a checkpoint gives back."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.evaluation import hypotheses, rates
from millrace.asr.models.base import AsrModel
from millrace.asr.planning import budgets
from millrace.asr.throughput.measure import BucketMeasure
from millrace.asr.training import accumulation
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError, own_file
from millrace.common.throughput.profile import StepProfiler
from millrace.common.throughput.recorder import StepRecorder
from millrace.common.training import devices, loop, run_folder
from millrace.common.training.checkpoint import Checkpoints
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings

# What may change without making it another run: its length, speed and logging, and where files lie.
_FREE = {
    "epochs",
    "max_steps",
    "log_steps",
    "save_steps",
    "save_total_limit",
    "eval_steps",
    "eval_at_start",
    "eval_samples",
    "log_ids",
    "tensorboard",
    "device",
    "timeout_seconds",
    "num_workers",
    "bucket_dir",
    "tf32",
    "prefetch_factor",
    "max_open_tars",
    "max_bad_fraction",
    "calibration",
    "eval_file",
}


@devices.leaving_together()
def run(
    options: TrainOptions, settings: LoopSettings, folder: Path, profile_steps: int = 0
) -> dict[str, Any]:
    """Train in `folder`, from where the same run was left; the summary for metrics.json, on rank 0
    only.

    With `profile_steps` that many steps are profiled, else all are measured. A profile and the
    loader `baseline` save no model; any other run does, and rank 0 tests it alone, while the
    other ranks wait.
    """
    ranks = Ranks.from_environment()
    task = AsrTask(options, settings.device)
    # The baseline and a profile are there to be measured.
    task.keeps_weights = options.loader != "baseline" and not profile_steps
    settings = _calibrated(task, devices.resolved(settings), ranks)
    for split in ("dev", "test"):
        task.held_out(split)
    with contextlib.ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(run_folder.held(folder))
            chosen = {
                **asdict(options),
                **asdict(settings),
                **task.state_dict(),
            }
            of_run = {name: chosen[name] for name in sorted(chosen) if name not in _FREE}
            run_folder.claim(folder, of_run)
        stack.enter_context(contextlib.closing(task))
        if not ranks.is_main:
            loop.train(task, settings, folder)
            return {}
        measure = _measure(task, settings, folder, profile_steps)
        task.watch = measure.watch
        stack.enter_context(measure)
        result = loop.train(task, settings, folder, measure.on_step)
        summary = {
            **result.summary(),
            "model": options.model,
            "parameters": result.model.parameter_count,
            "loader": options.loader,
            "ranks": ranks.world_size,
        }
        if task.keeps_weights:
            result.model.save_pretrained(folder / "model")
            summary["test"] = task.test(result.model, settings.precision)
            summary["error_rates"] = _error_rates(task, result.model, settings.precision, folder)
    return summary


def _calibrated(task: AsrTask, settings: LoopSettings, ranks: Ranks) -> LoopSettings:
    """The settings that the calibration decides, if there is one. Raises MillraceError if it was
    made for another training."""
    options = task.options
    if not options.calibration:
        return settings
    settings = accumulation.with_grad_acc(settings, options.calibration, task.bucket_rows)
    budgets.check_calibration(
        options.calibration, options.model, options.model_options, settings, ranks.world_size
    )
    return settings


def _error_rates(
    task: AsrTask, model: AsrModel, precision: str, folder: Path
) -> dict[str, dict[str, Any]]:
    """The rates of dev and test for metrics.json; also logs them, and writes hypotheses.jsonl."""
    edges = BucketConfig.read(task.options.bucket_dir).edges
    by_split = {}
    lines = []
    for split in ("dev", "test"):
        table = task.held_out(split)
        if table is None:
            continue
        if split not in task.transcribed:  # this run was resumed behind its last evaluation
            task.test(model, precision, split)
        parquet, _, _ = table.files[0]
        of_split = hypotheses.of_split(split, Path(parquet), task.transcribed[split])
        by_split[split] = rates.of_split(of_split, edges)
        lines += of_split
        log.info("%s", rates.line_of(split, by_split[split]))
    jsonl.write_lines(folder / hypotheses.FILE, lines)
    return by_split


def _measure(
    task: AsrTask, settings: LoopSettings, folder: Path, profile_steps: int
) -> StepRecorder | StepProfiler:
    options = task.options
    device = devices.kind_of(settings.device)
    if profile_steps:
        return StepProfiler(folder, profile_steps, device)
    of_options = ("loader", "model", "model_options", "batch_seconds", "num_workers")
    of_settings = ("precision", "tf32", "gradient_checkpointing", "max_steps", "grad_acc", "lr")
    facts = {name: getattr(options, name) for name in of_options}
    facts |= {name: getattr(settings, name) for name in of_settings}
    return StepRecorder(folder, device, facts, BucketMeasure(task.bucket_rows))


def load_model(run: Path, name: str, bucket_dir: Path) -> tuple[AsrModel, str]:
    """The model of checkpoint `name` (best, last, step-...) in the folder of a run, and where it
    lay.

    A model that has its vocabulary from the training transcripts takes it from `bucket_dir` again.
    Raises MillraceError if that holds other transcripts now.
    """
    with own_file(note := run / run_folder.NOTE):
        chosen = jsonl.read(note)["run"]
        options = TrainOptions(
            str(bucket_dir), model=chosen["model"], model_options=chosen["model_options"]
        )
    checkpoints = Checkpoints(run / "checkpoints")
    checkpoint = checkpoints.named(name)
    state = checkpoints.load(checkpoint, mapped=True)
    task = AsrTask(options)
    if not Path(options.model).is_dir() and state["task"].get("texts") != task.texts_digest:
        problem = (
            f"the transcripts of {bucket_dir} are not those that this checkpoint was trained on"
        )
        remedy = "Give --bucket-dir of the run's data"
        raise MillraceError(problem, str(checkpoint.folder), remedy)
    model = task.build_model()
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        problem = f"the checkpoint is of another model ({' '.join(str(error).split())[:300]})"
        raise MillraceError(
            problem, str(checkpoint.folder), f"Is {options.model} as it was?"
        ) from error
    return model.eval(), str(checkpoint.folder)
