"""Which files the rules of the speech lane ask for, and what is wrong between keys of its
config."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from millrace.common import jsonl
from millrace.common.hub import repository
from millrace.common.workflow.lanes import Stage
from millrace.common.workflow.lost import Listed, half_made
from millrace.common.workflow.sources import Sources
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.names import ShardFile

PARTITIONS = "results/speech/partitions"
GONE = f"{PARTITIONS}/gone/groups.json"
HELD_OUT = f"{PARTITIONS}/held_out/all.json"
RECEIPT = "results/speech/hub/receipt.json"
DIFF = "results/speech/hub/diff.txt"
_SHARD_LIST = "results/speech/shards/{country}_{split}_shards.txt"


def problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong between keys of the config's section."""
    total = sum(section["split_fractions"].values())
    if not math.isclose(total, 1, abs_tol=1e-6):
        yield f"split_fractions: the values must sum to 1, not {round(total, 6)}"
    shortest = section["min_duration"]
    longest = section["max_duration"]
    if shortest >= longest:
        yield f"min_duration: {shortest} is not below max_duration, which is {longest}"


class SpeechInputs:
    """Input functions and parameters of the rules, over the partitions of this parse; `hub`:
    speech.hub."""

    def __init__(self, sources: Sources, hub: dict[str, Any]) -> None:
        self.sources = sources
        self.hub = {**hub, "repo": hub["repo"] or "local/speech"}

    @property
    def partitions(self) -> dict[str, list[str]]:
        """Ids by country, as they stand in paths; none before the demo is fetched. Raises
        SourcesMissing."""
        return self.sources.required().partitions

    def gone(self, wildcards: Any = None) -> list[str]:
        """The list of countries that were built and are no more, if there have been any."""
        if os.path.exists(GONE):
            return [GONE]
        return []

    def manifest_files(self, wildcards: Any) -> list[str]:
        """What the manifest steps of a country's partitions wrote."""
        return [
            f"results/speech/manifest/partitions/{partition}/{name}"
            for partition in self.partitions.get(wildcards.country, [])
            for name in ("manifest.parquet", "recordings.json", "rejects.jsonl", "ledger.json")
        ]

    def shard_files(self, wildcards: Any) -> list[str]:
        """What the shard steps of a country's partitions wrote."""
        return [_index_of(partition) for partition in self.partitions.get(wildcards.country, [])]

    def held_out_indices(self, wildcards: Any) -> list[str]:
        """What copies in a country are compared with: validation and test of all countries."""
        if not self.partitions:
            return []
        names = jsonl.read(HELD_OUT)["partitions"]
        return [_index_of(name) for name in names]

    def country_indices(self, wildcards: Any = None) -> list[str]:
        """The index of every country."""
        return [f"results/speech/shards/{country}_index.parquet" for country in self.partitions]

    def country_ledgers(self, wildcards: Any) -> list[str]:
        """The ledger of every country."""
        return [f"results/speech/shards/{country}_ledger.json" for country in self.partitions]

    def manifests(self, wildcards: Any = None) -> list[str]:
        """The two CSVs of every country, before any shard is made."""
        tables = [
            f"{country}_{table}" for country in self.partitions for table in ("manifest", "splits")
        ]
        return [f"results/speech/manifest/{table}.csv" for table in tables]

    @property
    def stages(self) -> dict[str, Stage]:
        """What a target makes that is not all of the lane."""
        of_manifest = {"countries", "min_duration", "max_duration", "normalise_text"}
        of_shards = {
            "max_cer",
            "max_error_fraction",
            "max_shard_size_gb",
            "audio_format",
            "sampling_rate",
            "copies",
        }
        return {
            "manifest": Stage(self.manifests, of_manifest),
            "shards": Stage(self.shards, of_manifest | of_shards),
        }

    @property
    def listed(self) -> Listed:
        """The tars of all countries, the sidecars that prove them whole, and the tables beside."""
        return Listed(
            self._listed_files,
            self._made_with,
            before=["manifest"],
            stale=lambda: half_made(self.partitions, _index_of),
        )

    def _listed_files(self) -> Iterator[str]:
        yield from self._tars()
        yield from self._tables

    @cached_property  # asked for each lost file
    def _tables(self) -> dict[str, str]:
        """What a merge writes beside the index of its country, which stands for it."""
        lists = [f"{split}_shards.txt" for split in SPLITS]
        indices = filter(os.path.exists, self.country_indices())
        return {
            index.removesuffix("index.parquet") + table: index
            for index in indices
            for table in ("manifest.csv", "rejects.csv", "ledger.json", *lists)
        }

    def _tars(self) -> Iterator[str]:
        for country in self.partitions:
            for split in SPLITS:
                path = _SHARD_LIST.format(country=country, split=split)
                names = []
                if os.path.exists(path):
                    names = Path(path).read_text().splitlines()
                for tar in (Path("results/speech/shards", name) for name in names):
                    yield str(tar)
                    yield str(tar.with_name(f".{tar.stem}.index.parquet"))

    def _made_with(self, path: str) -> str | None:
        """The index that the step which makes a listed file writes last; None if tars were cut
        since they were listed."""
        if path in self._tables:
            return self._tables[path]
        file = ShardFile.parse(os.path.basename(path))
        if not file or str(file.partition) not in self.partitions.get(file.partition.country, ()):
            return None
        index = _index_of(file.partition)
        listed = _SHARD_LIST.format(country=file.partition.country, split=file.partition.split)
        is_cut = os.path.exists(index) and os.path.getmtime(index) <= os.path.getmtime(listed)
        return index if is_cut else None

    def shards(self, wildcards: Any = None) -> list[str]:
        """The merged index, when there is a corpus, and those of the countries: of a failed merge
        Snakemake deletes what lay there before, and would not miss it while the merged index is
        there."""
        if self.partitions:
            return ["results/speech/index.parquet", *self.country_indices()]
        return []

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds."""
        report = ["results/speech/report/summary.html"] if self.partitions else []
        published = self.receipt() if self.hub["enabled"] else []
        return [*self.manifests(), *self.shards(), *report, *published]

    def receipt(self, wildcards: Any = None) -> list[str]:
        """What publishing leaves, when there is a corpus."""
        return [RECEIPT] if self.partitions else []

    def hub_diff(self, wildcards: Any = None) -> list[str]:
        """The comparison with the Hub; `Lanes` deletes it after the run, as the Hub may change."""
        return [DIFF] if self.partitions else []

    def hub_flags(self, wildcards: Any) -> str:
        """Which repository on which Hub; for the comparison that nothing is to be sent."""
        flags = repository.flags(self.hub, "results/speech/hub/server", "max_delete_fraction")
        return flags + (" --diff" if DIFF.endswith(wildcards.publication) else "")


def _index_of(partition: object) -> str:
    """What the shard step of a partition writes last."""
    return f"results/speech/shards/partitions/{partition}/index.parquet"
