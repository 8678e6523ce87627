"""A training run in its folder: which flags may change before it goes on, its side of the sentry,
the producer as its child."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.stopping import REQUEUE_EXIT_CODE, STOP_SIGNALS
from millrace.common.training import devices, loop, run_folder
from millrace.common.training.ranks import Ranks
from millrace.image.producer.sentry import Trainer
from millrace.image.training.options import TrainOptions
from millrace.image.training.task import ImageTask

# What may change without making it another run.
_FREE = {
    "epochs",
    "workers",
    "print_freq",
    "save_steps",
    "mixed_batches",
    "device",
    "log_ids",
    "timeout_seconds",
}
_END_SECONDS = 60.0  # for the producer to end in order
# Codes of a producer that a stop signal ended before it could listen.
_UNHEARD = [-number for number in STOP_SIGNALS]


@devices.leaving_together()
def run(
    options: TrainOptions,
    root: Path,
    side: Trainer,
    folder: Path,
    producer: Sequence[str] = (),
) -> dict[str, Any]:
    """Train in `folder`, from where the same run was left; the summary for metrics.json, on rank 0
    only.

    `side`, of the folder of the produced epochs, is entered on rank 0. `producer`: the flags of a
    producer to start as a child.
    """
    ranks = Ranks.from_environment()
    own_side = side if ranks.is_main else None
    task = ImageTask(options, root, side.folder, own_side)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(task))
        if ranks.is_main:
            stack.enter_context(run_folder.held(folder))
            _claim(folder, options, task)
            stack.enter_context(side)
            if producer:
                task.check = stack.enter_context(producing(producer))
        result = loop.train(task, options.loop_settings(), folder)
        if not ranks.is_main:
            return {}
        task.finish()
    return {
        **result.summary(),
        "arch": options.arch,
        "records": len(task.train),
        "best": max(result.evaluations.values(), key=lambda figures: figures["acc1"]),
        "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
    }


def _claim(folder: Path, options: TrainOptions, task: ImageTask) -> None:
    """Note what the run is trained with. Raises MillraceError for a folder that is none of a
    run."""
    chosen = {**asdict(options), "data": task.state_dict()["data"]}
    noted = {name: chosen[name] for name in sorted(chosen) if name not in _FREE}
    run_folder.claim(folder, noted)


@contextlib.contextmanager
def producing(flags: Sequence[str]) -> Iterator[Callable[[], None]]:
    """Run a producer while training; gives what raises MillraceError if it has failed."""
    command = [sys.executable, "-m", "millrace.image.create_epochs", *flags, "--end-with-parent"]
    process = subprocess.Popen(command)

    def check() -> None:
        # Whoever stopped it with a signal stops this side too.
        if process.poll() not in (None, 0, REQUEUE_EXIT_CODE, *_UNHEARD):
            problem = f"the producer (pid {process.pid}) has ended with {process.returncode}"
            raise MillraceError(problem, remedy="See its lines above; the same command goes on")

    try:
        yield check
        process.wait(_END_SECONDS)  # all is trained, so all is made
        check()
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(_END_SECONDS)
        process.kill()
        process.wait()
