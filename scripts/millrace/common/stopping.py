"""Orderly stops: the signals that ask for one, the exit code that asks for a requeue, Slurm's
requeue."""

from __future__ import annotations

import os
import signal
import subprocess

from millrace.common.cli import log

# sysexits.h EX_TEMPFAIL: "try again later". Slurm requeues on it with `RequeueExit=75` in
# slurm.conf, or a batch script does: `[ $? -eq 75 ] && scontrol requeue $SLURM_JOB_ID`. For
# torchrun see launch.py.
REQUEUE_EXIT_CODE = 75
# Slurm's notice that the time is up (`sbatch --signal=URG@300`) reaches every process of a job's
# steps. All but the ranks ignore this signal: Snakemake, the shell and the loaders' workers live on
# while they save.
TIME_IS_UP = signal.SIGURG
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, TIME_IS_UP)


class Requeue(SystemExit):
    """The run was asked to stop and has saved: exit with REQUEUE_EXIT_CODE; the same command goes
    on."""

    def __init__(self) -> None:
        super().__init__(REQUEUE_EXIT_CODE)


def requeue_slurm_job() -> None:
    """Have Slurm start this job again, under its id, so that whoever waits for the job waits on."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True)
        log.info(
            "saved before the time limit; Slurm starts job %s again, which goes on from here", job
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()
        log.warning(
            "saved, but Slurm does not requeue job %s (%s): start the same command again", job, why
        )


class StopSignals:
    """While active, SIGTERM, SIGUSR1 and SIGURG set `requested` instead of ending the process.

    `time_is_up`: one of them was Slurm's notice before the time limit.
    """

    def __init__(self) -> None:
        self._asked = self.time_is_up = False
        self._parent = os.getppid()

    def _note(self, number: int, frame: object) -> None:
        if not self._asked:
            log.info("%s: finishing the step, then saving", signal.Signals(number).name)
        self._asked = True
        self.time_is_up = self.time_is_up or number == TIME_IS_UP

    @property
    def requested(self) -> bool:
        """Whether to stop: a signal has come, or torchrun is dead and another run may begin
        here."""
        if not self._asked and "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent:
            log.warning("the launcher is dead: finishing the step, then saving")
            self._asked = True
        return self._asked

    def leave(self, is_main: bool) -> None:
        """Raise Requeue: all is saved. Near the time limit Slurm starts the job again."""
        if is_main and self.time_is_up:
            requeue_slurm_job()
        raise Requeue

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
