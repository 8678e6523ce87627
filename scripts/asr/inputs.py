"""Which files the rules of the ASR lane ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripts.asr import sources

PARTITIONS = "results/asr/partitions"
BUCKETS = "results/asr/buckets/bucket_config.json"


class AsrInputs:
    """Input functions and parameters of the lane's rules, over the partitions of this parse.

    `speech_shards` gives the speech lane's merged index, or nothing where it has no corpus.
    """

    def __init__(self, section: dict, found: sources.Sources, speech_shards: Callable[[], list[str]]) -> None:
        self.section, self.found, self.speech_shards = section, found, speech_shards

    @staticmethod
    def settings(section: dict) -> sources.Settings:
        """What of the lane's config decides on partitions."""
        return sources.Settings(**{name: section[name] for name in sources.Settings.__dataclass_fields__})

    @property
    def from_speech(self) -> bool:
        return self.section["source"] == "speech"

    def indices(self, wildcards: Any = None) -> list[str]:
        """The tar index of every partition; none where the speech lane has written offsets already."""
        return [] if self.from_speech else [f"results/asr/tar_index/{name}.parquet" for name in self.found.partitions]

    def manifests(self, wildcards: Any = None) -> list[str]:
        """Where the samples come from."""
        return self.speech_shards() if self.from_speech else list(self.found.manifests.values())

    def tar_root(self, wildcards: Any = None) -> str:
        """Where relative paths of tars start."""
        return "results/speech/shards" if self.from_speech else self.section["tar_root"]

    def tar_template(self, wildcards: Any = None) -> str:
        """The name of a tar by its shard_id. A function, as Snakemake would take the braces for wildcards."""
        return self.section["tar_template"]

    def edges(self, wildcards: Any = None) -> str:
        """The edges of the buckets as the step takes them."""
        edges = self.section["edges"]
        return edges if isinstance(edges, str) else " ".join(f"{edge:g}" for edge in edges)

    def data(self, wildcards: Any = None) -> list[str]:
        """The bucket parquets' config, when there are samples."""
        return [BUCKETS] if self.manifests() else []

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds."""
        return self.data()
