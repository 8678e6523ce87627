"""Which files the rules of the music lane ask for."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from millrace.common import jsonl
from millrace.common.errors import counted
from millrace.common.workflow.lanes import Stage
from millrace.common.workflow.lost import Listed
from millrace.common.workflow.runs import Audited, RunInputs
from millrace.music.features.roots import split_files

MERGE = "results/music/partitions/merge/all.json"
MERGED = "results/music/partitions/merge/built/all.json"  # what the index was merged from
TABLE = "results/music/features/{}.parquet"
INDEX = "results/music/index/features.index"
COVERAGE = "results/music/index/coverage.json"
REPORT = "results/music/report/training.html"


class MusicInputs(RunInputs):
    """Input functions and parameters of the lane's rules."""

    lane = "music"
    step = "train_model"

    def conf(self, wildcards: Any = None) -> list[str]:
        """The training configuration that runs share."""
        if self.section["conf"]:
            return [self.section["conf"]]
        return []

    def recordings(self, wildcards: Any = None) -> str:
        """What tells the recordings of audio_root from those of before: their number and a digest
        of names, sizes and times. Snakemake compares it; the step lists them itself."""
        from millrace.music.audio import chunks  # which imports much

        folder = self.section["audio_root"]
        if not os.path.isdir(folder):
            return ""
        root = Path(folder)
        files, rejects = chunks.audio_files(root)
        digest = jsonl.digest([chunks.sources_of(root, files), rejects])
        return f"{counted(len(files), 'recording')}, {digest}"

    @property
    def partitions(self) -> list[str]:
        """Ids of partitions; none before the demo is fetched. Raises SourcesMissing."""
        return self.sources.required().partitions.get("features", [])

    def tables(self, wildcards: Any = None) -> list[str]:
        """What the jobs of all partitions write."""
        return [TABLE.format(name) for name in self.partitions]

    def merge(self, wildcards: Any = None) -> list[str]:
        """What the merge reads beside the tables, when there are features."""
        return [MERGE] if self.partitions else []

    def index(self, wildcards: Any = None) -> list[str]:
        """The merged index and its coverage, when there are features."""
        return [INDEX, COVERAGE] if self.partitions else []

    @property
    def stages(self) -> dict[str, Stage]:
        """What a target makes that is not all of the lane."""
        keys = "h5_root", "mm_root", "contract", "prefer", "on_leak"
        return {"index": Stage(self.index, keys)}

    @property
    def listed(self) -> Listed:
        """The tables that the index was merged from."""
        return Listed(self._merged_tables, str)

    def _merged_tables(self) -> list[str]:
        if not os.path.exists(INDEX):
            return []
        merged = set(jsonl.read_or({}, MERGED).get("partitions", ()))
        return [TABLE.format(name) for name in self.partitions if name in merged]

    @property
    def contract(self) -> str:
        """The flags of what the model takes."""
        values = self.section["contract"]
        return " ".join(f"--{name} {values[name]:g}" for name in ("hop", "pool", "bins"))

    def evaluations(self, wildcards: Any = None) -> list[str]:
        """What the runs of the config come to on the test split, when there are features and
        splits."""
        return [f"results/music/runs/{run}/test.json" for run in self.audited_runs()]

    def runs(self, wildcards: Any = None) -> list[str]:
        """The metrics of the runs, and their evaluations: without the metrics, as after a training
        that failed, the checkpoints may be of other settings than an evaluation of before."""
        return [*map(self.metrics, self.audited_runs()), *self.evaluations()]

    def run_arguments(self, wildcards: Any) -> str:
        """key=value of a run's configuration: the features of the index, and in what the run
        differs."""
        chosen = self._chosen(wildcards.run)
        words = [f"{key}={value}" for key, value in chosen.items()]
        return shlex.join(words)

    def _chosen(self, run: str) -> dict[str, Any]:
        own = self.of_run(run)
        section = self.section
        chosen: dict[str, Any] = {"jobname": run}
        for name, file in split_files(section["splits"]).items():
            chosen[f"path.splits.{name}"] = file
        chosen["path.index"] = INDEX
        chosen["conf"] = section["conf"]
        chosen["data.on_leak"] = section["on_leak"]
        chosen.update(own)
        return chosen

    def audited(self, run: str) -> Audited:
        """The loader of a run of the config."""
        arguments = {"conf": self.section["conf"], "keys": self._chosen(run)}
        files = [INDEX, *self.conf()]
        return Audited("millrace.music.training.task:audited", arguments, files, self.ranks(run))

    def audited_runs(self) -> list[str]:
        """The runs of the config, when there are features and splits."""
        return [run for run in self.section["runs"] if self.section["splits"] and self.partitions]

    def ranks(self, run: str = "") -> int:
        """Processes of a run: its fabric.ngpus."""
        own = self._own(run)
        return int(own.get("fabric.ngpus", 1))

    def device(self, run: str = "") -> str:
        """What a run is to train on."""
        return self._own(run).get("fabric.accelerator", "cuda")

    def threads(self, wildcards: Any) -> int:
        """Each rank's own, and its workers."""
        workers = self._own(wildcards.run).get("data.nworkers", 16)
        return self.ranks(wildcards.run) * (1 + workers)

    def _own(self, run: str) -> dict[str, Any]:
        """The keys of a run of the config; none of a run that it does not name."""
        return self.section["runs"].get(run, {})

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds."""
        report = [REPORT] if self.partitions else []
        return [*self.index(), *self.runs(), *report]
