"""Which files the rules of the music lane ask for."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.training import ranks
from millrace.common.workflow.audited import Audited, gate
from millrace.common.workflow.sources import Sources
from millrace.music.features.roots import split_files

PARTITIONS = "results/music/partitions"
MERGE = f"{PARTITIONS}/merge/all.json"
INDEX = "results/music/index/features.index"
COVERAGE = "results/music/index/coverage.json"
REPORT = "results/music/report/training.html"
METRICS = "results/music/runs/{run}/metrics.json"
SAMPLE = "results/music/verification/sample.json"
# What its loader does not depend on.
_NOT_OF_LOADER = (
    "jobname",
    "conf",
    "fabric.",
    "training.optim.",
    "training.monitor.",
    "training.numepochs",
    "training.save",
)


class MusicInputs:
    """Input functions and parameters of the lane's rules, over the partitions of this parse."""

    def __init__(self, section: dict, sources: Sources, ancient: Callable[[str], str] = str) -> None:
        """`ancient` marks a file whose time does not count."""
        self.section, self.sources, self.runs = section, sources, section["runs"]
        self._ancient = ancient
        self.conf = [section["conf"]] if section["conf"] else []
        # What is set before training's Python starts.
        self.environment = " ".join(f"{name}={value}" for name, value in ranks.ENVIRONMENT.items())

    @property
    def partitions(self) -> list[str]:
        """Ids of partitions; none before the demo is fetched. Raises SourcesMissing."""
        return self.sources.required().partitions.get("features", [])

    def tables(self, wildcards: Any = None) -> list[str]:
        """What the jobs of all partitions write."""
        return [f"results/music/features/{name}.parquet" for name in self.partitions]

    def merge(self, wildcards: Any = None) -> list[str]:
        """What the merge reads beside the tables, when there are features."""
        return [MERGE] if self.partitions else []

    def index(self, wildcards: Any = None) -> list[str]:
        """The merged index and its coverage, when there are features."""
        return [INDEX, COVERAGE] if self.partitions else []

    def verification(self, wildcards: Any = None) -> list[str]:
        """A sample of tracks with their statistics and picture, when there are features."""
        return [SAMPLE] if self.partitions else []

    def contract(self, wildcards: Any = None) -> str:
        """The flags of what the model takes."""
        values = self.section["contract"]
        flags = [f"--{name} {values[name]:g}" for name in ("hop", "pool", "bins")]
        return " ".join([*flags, *(["--resample"] if values["resample"] else [])])

    def evaluations(self, wildcards: Any = None) -> list[str]:
        """What the runs of the config come to on the test split, when there are features and splits."""
        present = self.section["splits"] and self.partitions
        return [f"results/music/runs/{run}/test.json" for run in self.runs if present]

    def overrides(self, wildcards: Any) -> str:
        """key=value of a run's configuration: the features of the index, and in what the run differs."""
        return " ".join(shlex.quote(f"{key}={value}") for key, value in self._chosen(wildcards.run).items())

    def _chosen(self, run: str) -> dict[str, Any]:
        if run not in self.runs:
            remedy = f"music.runs has {', '.join(self.runs) or 'no run'}"
            raise MillraceError(f"there is no run {run!r}", remedy=remedy)
        files = split_files(self.section["splits"])
        chosen = {"jobname": run, **{f"path.splits.{name}": file for name, file in files.items()}}
        chosen |= {"path.index": INDEX, "conf": self.section["conf"]}
        chosen |= {f"data.{name}": self.section[name] for name in ("prefer", "on_leak")}
        return chosen | {"data.resample": self.section["contract"]["resample"], **self.runs[run]}

    def audited(self, run: str) -> Audited:
        """The loader of a run of the config."""
        chosen = {
            key: value for key, value in self._chosen(run).items() if not key.startswith(_NOT_OF_LOADER)
        }
        arguments = {"conf": self.section["conf"], "keys": chosen}
        ranks = int(self.runs[run].get("fabric.ngpus", 1))
        return Audited("millrace.music.training.task:audited", arguments, [INDEX, *self.conf], ranks)

    def audited_runs(self) -> list[str]:
        """The runs of the config, when there are features and splits."""
        return [run for run in self.runs if self.section["splits"] and self.partitions]

    def gate(self, wildcards: Any) -> list[str]:
        """What lets a run start."""
        run, texts = wildcards.run, (self.overrides(wildcards), self.launcher(wildcards))
        return gate("music", run, METRICS.format(run=run), self.audited(run), texts, self._ancient)

    def ranks(self, wildcards: Any) -> int:
        """Processes of a run on this machine: its fabric.ngpus."""
        return int(self.runs.get(wildcards.run, {}).get("fabric.ngpus", 1))

    def gpus(self, wildcards: Any) -> int:
        """One a rank, unless the run is to train on the CPU."""
        device = self.runs.get(wildcards.run, {}).get("fabric.accelerator", "cuda")
        return self.ranks(wildcards) if device == "cuda" else 0

    def threads(self, wildcards: Any) -> int:
        """Each rank's own, and its workers."""
        workers = self.runs.get(wildcards.run, {}).get("data.nworkers", 16)
        return self.ranks(wildcards) * (1 + workers)

    def launcher(self, wildcards: Any) -> str:
        """What starts the ranks of a run."""
        if self.ranks(wildcards) == 1:
            return "-m"
        return f"-m millrace.common.training.launch --standalone --nproc-per-node {self.ranks(wildcards)} -m"

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds."""
        report = [REPORT] if self.partitions else []
        return [*self.index(), *self.verification(), *self.evaluations(), *report]
