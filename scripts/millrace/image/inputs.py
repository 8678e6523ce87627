"""Which files the rules of the image lane ask for, and how many threads a run has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from millrace.common import jsonl
from millrace.common.settings import of_loader
from millrace.common.workflow.lanes import Stage
from millrace.common.workflow.lost import Listed, half_made
from millrace.common.workflow.runs import Audited, RunInputs, flags
from millrace.image.training.options import TrainOptions

PARTITIONS = "results/image/partitions"
INDEX = "results/image/records/{split}/records.json"


class ImageInputs(RunInputs):
    """Input functions and parameters of the lane's rules."""

    lane = "image"
    step = "train_active"

    @property
    def partitions(self) -> dict[str, list[str]]:
        """Ids by split; none before the demo is fetched. Raises SourcesMissing."""
        return self.sources.required().partitions

    def reports(self, wildcards: Any) -> list[str]:
        """What the conversion of a split's partitions wrote last."""
        splits = [wildcards.split, *self._held_out(wildcards.split)]
        names = [name for split in splits for name in self.partitions.get(split, [])]
        return [_report_of(name) for name in names]

    def held_out(self, wildcards: Any) -> list[str]:
        """The files of splits whose images this one must not hold."""
        return [f"{PARTITIONS}/splits/{split}.json" for split in self._held_out(wildcards.split)]

    def _held_out(self, split: str) -> list[str]:
        return [name for name in self.partitions if split == "train" != name]

    def on_leak(self, wildcards: Any) -> str:
        """The flag that says what becomes of leaks; none for a split that is held out itself."""
        if not self.held_out(wildcards):
            return ""
        return f"--on-leak {self.section['on_leak']}"

    def records(self, wildcards: Any = None) -> list[str]:
        """The index of every split."""
        return [INDEX.format(split=split) for split in self.partitions]

    @property
    def stages(self) -> dict[str, Stage]:
        """What a target makes that is not all of the lane."""
        return {"records": Stage(self.records, ("raw_data_dir", "records", "on_leak"))}

    @property
    def listed(self) -> Listed:
        """The record files of all splits."""
        return Listed(
            self._record_files,
            self._made_with,
            stale=lambda: half_made(self.partitions, _report_of),
        )

    def _record_files(self) -> Iterator[str]:
        for index in self.records():
            # A damaged one is named by the step that reads it.
            content = jsonl.read_or({}, index)
            folder = os.path.dirname(index)
            for file in content.get("files", ()):
                yield f"{folder}/{file['name']}"

    def _made_with(self, path: str) -> str | None:
        """What the conversion that writes a record file reports last."""
        return self._reports.get(os.path.basename(path))

    @cached_property
    def _reports(self) -> dict[str, str]:
        """By the names of record files."""
        reports = {}
        for blocks in self.partitions.values():
            for block in blocks:
                content = jsonl.read(f"{PARTITIONS}/{block}.json")
                for plan in content["files"]:
                    reports[plan["name"]] = _report_of(block)
        return reports

    def runs(self, wildcards: Any = None) -> list[str]:
        """The metrics of all runs of the config; none before the demo is fetched."""
        return [self.metrics(run) for run in self.audited_runs()]

    def readers(self, wildcards: Any = None) -> list[str]:
        """What was measured of readers; nothing before the demo is fetched."""
        return ["results/image/report/readers.json"] if self.partitions else []

    def run_arguments(self, wildcards: Any) -> str:
        """The flags of train_active for a run."""
        chosen = {
            "seed": self.section["seed"],
            "producer": "child",
            **self.of_run(wildcards.run),
        }
        return flags(chosen)

    def audited(self, run: str) -> Audited:
        """The loader of a run of the config, in epoch 0: training makes the others."""
        own = self.of_run(run)
        chosen = {
            "records": "results/image/records",
            "seed": self.section["seed"],
        }
        for name in sorted(of_loader(TrainOptions) & own.keys()):
            chosen[name] = own[name]
        place = "millrace.image.training.task:audited"
        return Audited(place, chosen, self.records(), self.section["ranks"], epochs=1)

    def audited_runs(self) -> list[str]:
        """The runs of the config; none before the demo is fetched."""
        return [run for run in self.section["runs"] if self.partitions]

    def threads(self, wildcards: Any) -> int:
        """The ranks' own, their workers, and the producer's."""
        own = self.section["runs"].get(wildcards.run, {})
        return self.ranks() * own.get("threads", 1) + own.get("workers", TrainOptions.workers) + 1

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds."""
        return [*self.records(), *self.runs()]


def _report_of(block: str) -> str:
    """What the conversion of a partition writes last."""
    return f"results/image/records/partitions/{block}.json"
