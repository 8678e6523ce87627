"""Which files the rules of the image lane ask for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.training import ranks
from millrace.common.workflow.audited import Audited, gate
from millrace.common.workflow.sources import Sources

PARTITIONS = "results/image/partitions"
INDEX, METRICS = "results/image/records/{split}/records.json", "results/image/runs/{run}/metrics.json"

# What of a run's settings its loader depends on.
_OF_LOADER = {"workers", "batch_size", "image_size", "augment", "mixed_batches", "max_bad_fraction"}


class ImageInputs:
    """Input functions and parameters of the lane's rules, over the partitions of this parse."""

    def __init__(
        self, section: dict, sources: Sources, gpus: int | None = 0, ancient: Callable[[str], str] = str
    ) -> None:
        """`gpus`: those of this machine; None if they are unknown, as jobs run elsewhere. `ancient` marks a
        file whose time does not count."""
        self.section, self.sources, self._here, self._ancient = section, sources, gpus, ancient

    @property
    def partitions(self) -> dict[str, list[str]]:
        """Ids by split; none before the demo is fetched. Raises SourcesMissing."""
        return self.sources.required().partitions

    def reports(self, wildcards: Any) -> list[str]:
        """What the conversion of a split's partitions wrote last."""
        names = self.partitions.get(wildcards.split, [])
        return [f"results/image/records/partitions/{name}.json" for name in names]

    def records(self, wildcards: Any = None) -> list[str]:
        """The index of every split."""
        return [INDEX.format(split=split) for split in self.partitions]

    def runs(self, wildcards: Any = None) -> list[str]:
        """The metrics of all runs of the config; none before the demo is fetched."""
        return [METRICS.format(run=run) for run in self.section["runs"] if self.partitions]

    def readers(self, wildcards: Any = None) -> list[str]:
        """The page of measured readers; nothing before the demo is fetched."""
        return ["results/image/report/readers.html"] if self.partitions else []

    def run_arguments(self, wildcards: Any, names: Collection[str] = ()) -> str:
        """The flags of train_active for a run, or those of them that are named."""
        runs = self.section["runs"]
        if wildcards.run not in runs:
            remedy = f"image.runs has {', '.join(runs)}"
            raise MillraceError(f"there is no run {wildcards.run!r}", remedy=remedy)
        chosen = {"seed": self.section["seed"], "producer": "child", **runs[wildcards.run]}
        flags = {f"--{key.replace('_', '-')} {chosen[key]}" for key in chosen if key in names or not names}
        return " ".join(sorted(flags))

    def audited(self, run: str) -> Audited:
        """The loader of a run of the config, in epoch 0: training makes the others."""
        own = self.section["runs"].get(run, {})
        chosen = {"records": "results/image/records", "seed": self.section["seed"]}
        chosen |= {name: own[name] for name in sorted(_OF_LOADER & own.keys())}
        place = "millrace.image.training.task:audited"
        return Audited(place, chosen, self.records(), self.section["ranks"], epochs=1)

    def audited_runs(self) -> list[str]:
        """The runs of the config; none before the demo is fetched."""
        return [run for run in self.section["runs"] if self.partitions]

    def gate(self, wildcards: Any) -> list[str]:
        """What lets a run start."""
        run, texts = wildcards.run, (self.run_arguments(wildcards), self.launcher(wildcards))
        return gate("image", run, METRICS.format(run=run), self.audited(run), texts, self._ancient)

    def producer_arguments(self, wildcards: Any) -> str:
        """The flags of create_epochs for a run."""
        return self.run_arguments(wildcards, ("allowed_ahead", "seed", "shuffle_pool"))

    def environment(self, wildcards: Any = None) -> str:
        """What is set before training's Python starts."""
        return " ".join(f"{name}={value}" for name, value in ranks.ENVIRONMENT.items())

    def launcher(self, wildcards: Any) -> str:
        """What starts the ranks of a run."""
        if self.section["ranks"] == 1:
            return "-m"
        count, logs = self.section["ranks"], shlex.quote(f"logs/image/train_active/{wildcards.run}")
        return f"-m millrace.common.training.launch --standalone --nproc-per-node {count} --log-dir {logs} -m"

    def gpus(self, wildcards: Any) -> int:
        """One for each rank, unless the run is to train on the CPU, or this machine has none."""
        device = self.section["runs"].get(wildcards.run, {}).get("device", "auto")
        return 0 if device == "cpu" or (device == "auto" and self._here == 0) else self.section["ranks"]

    def threads(self, wildcards: Any) -> int:
        """The ranks' own, their workers, and the producer's."""
        workers = self.section["runs"].get(wildcards.run, {}).get("workers", 4)
        return self.section["ranks"] + workers + 1

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds."""
        return [*self.records(), *self.runs()]
