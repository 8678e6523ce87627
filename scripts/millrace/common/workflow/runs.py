"""What the lanes that train share: how the ranks of a run are started, a GPU for each, and when the
audit of its loader holds it back or makes it pending."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millrace.common.errors import MillraceError
from millrace.common.processes import TRAINING_ENVIRONMENT
from millrace.common.workflow import snakemake_state
from millrace.common.workflow.sources import Sources
from millrace.common.workflow.status import mtime

METRICS = "results/{lane}/runs/{run}/metrics.json"
FINDINGS = "results/audit/{lane}/{run}/findings.json"
PAGE = "results/audit/{lane}/{run}/findings.html"
ACCEPTED = "results/audit/{lane}/{run}/accepted.json"


class Audited(NamedTuple):
    """The loader of a run: module:factory with its arguments, the files that say what it reads, and
    how many ranks and epochs it has. Beside the factory stand <factory>_validation and
    <factory>_model."""

    loader: str
    arguments: dict[str, Any]
    files: list[str]
    ranks: int = 1
    epochs: int = 2


class RunInputs:
    """Input functions and parameters of the rules of a lane that trains, over the partitions of
    this parse.

    A lane brings `run_arguments`, `audited` and `audited_runs`.
    """

    lane = step = ""  # the step that trains

    def __init__(
        self,
        section: dict,
        sources: Sources,
        gpus: int | None = None,
        is_local: bool = False,
        ancient: Callable[[str], str] = str,
    ) -> None:
        """`gpus`: those of this machine for its jobs, None if they are unknown or jobs run
        elsewhere; `is_local`: jobs run on this machine; `ancient` marks a file whose time does not
        count."""
        self.section = section
        self.sources = sources
        self._here = gpus
        self._is_local = is_local
        self._ancient = ancient
        # What is set before training's Python starts.
        self.environment = " ".join(
            f"{name}={value}" for name, value in TRAINING_ENVIRONMENT.items()
        )

    def run_arguments(self, wildcards: Any) -> str:
        """The flags of a run."""
        raise NotImplementedError

    def audited(self, run: str) -> Audited:
        """The loader of a run."""
        raise NotImplementedError

    def audited_runs(self) -> list[str]:
        """The runs of the config that are or will be trained."""
        raise NotImplementedError

    def metrics(self, run: str) -> str:
        """What a run writes last."""
        return METRICS.format(lane=self.lane, run=run)

    @property
    def runs_by_name(self) -> Mapping[str, Mapping[str, Any]]:
        """What the config says of each run."""
        return self.section["runs"]

    def of_run(self, run: str) -> Mapping[str, Any]:
        """What the config says of a run. Raises MillraceError if there is none of this name."""
        if run not in (runs := self.runs_by_name):
            remedy = f"{self.lane}.runs has {', '.join(runs) or 'no run'}"
            raise MillraceError(f"there is no run {run!r}", remedy=remedy)
        return runs[run]

    def ranks(self, run: str = "") -> int:
        """Processes of a run on each machine."""
        return self.section["ranks"]

    def device(self, run: str = "") -> str:
        """What a run is to train on."""
        return self.section["runs"].get(run, {}).get("device", "auto")

    def gpus(self, wildcards: Any = None) -> int:
        """GPUs of a run on a machine: one a rank, unless it trains on the CPU or this machine has
        none."""
        run = getattr(wildcards, "run", "")
        if self.on_cpu(self.device(run)):
            return 0
        return self.ranks(run)

    def on_cpu(self, device: str) -> bool:
        """Whether that device is the CPU, as far as it is known."""
        return device == "cpu" or (device == "auto" and self._here == 0)

    def launcher(self, wildcards: Any) -> str:
        """What starts the ranks of a run: on this machine, or on nodes of its job."""
        return self.launch(self.ranks(wildcards.run), f"{self.step}/{wildcards.run}")

    def launch(self, ranks: int, logs: str) -> str:
        """What starts so many ranks on each machine, with a folder for their logs."""
        nodes = self.section.get("nodes", 1)
        logs = shlex.quote(f"logs/{self.lane}/{logs}")
        if nodes * ranks == 1:
            return "-m"
        place = "--standalone" if nodes == 1 else f"--nodes {nodes}"
        return (
            f"-m millrace.common.training.launch {place} --nproc-per-node {ranks} --log-dir"
            f" {logs} -m"
        )

    def gate(self, wildcards: Any) -> list[str]:
        """What is there once the audit of a run's loader lets it start; nothing for runs out of the
        config.

        Its time does not count (`ancient`) while the metrics are as they would be made now: of
        these files, none of them newer, by this command. So an audit that runs again makes no
        finished run pending; but a run with other settings or data is, though Snakemake looks no
        further below a job that is pending.
        """
        run = wildcards.run
        if run not in self.section["runs"]:
            return []
        accepted = ACCEPTED.format(lane=self.lane, run=run)
        is_made = self._is_made(wildcards, self.metrics(run), accepted)
        return [self._ancient(accepted) if is_made else accepted]

    def _is_made(self, wildcards: Any, metrics: str, accepted: str) -> bool:
        """Whether the metrics are as they would be made now."""
        files = self.audited(wildcards.run).files
        made = mtime(metrics)
        if not made or any(mtime(file) > made for file in files):
            return False
        record = snakemake_state.record(metrics)
        if record.inputs - {accepted} != set(files):
            return False
        parts = (self.run_arguments(wildcards), self.launcher(wildcards))
        return all(f" {part} " in f"{record.command} " for part in parts)


def flags(chosen: Mapping[str, Any]) -> str:
    """Command-line flags; values are quoted for the shell, objects written as JSON."""
    parts = []
    for name, value in sorted(chosen.items()):
        if isinstance(value, dict):
            text = json.dumps(value)
        else:
            text = str(value)
        parts.append(f"--{name.replace('_', '-')} {shlex.quote(text)}")
    return " ".join(parts)
