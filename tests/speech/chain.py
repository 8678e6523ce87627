"""The lane's steps run one after the other in this process, on a small corpus, without
Snakemake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow import placements
from millrace.common.workflow.sources import Sources, sync
from millrace.speech import create_shards, generate_manifest, merge_manifest, merge_shards, sources

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SETTINGS = {"split_fractions": FRACTIONS, "train_subset_hours": 100.0, "partition_hours": 0.01}


def flags(folder: Path, *files: str, **named: str) -> list[str]:
    """Options for files or folders below `folder`; `files` are for options of the same name."""
    named |= {file.partition(".")[0]: file for file in files}
    pairs = [(f"--{name.replace('_', '-')}", str(folder / file)) for name, file in named.items()]
    return [text for pair in pairs for text in pair]


class Chain:
    """Paths as in the rules, under `folder`; the corpus is `folder`/countries."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest_dir, self.shards_dir = (
            folder,
            folder / "manifest",
            folder / "shards",
        )
        self.root, self.assignment = folder / "countries", folder / "assignment.jsonl"

    def dry(self, **options: object) -> Sources:
        """What a dry run syncs."""
        return self._synced(**options)

    def placements(self) -> dict[str, str]:
        """The split of every recording, by name."""
        return {row["item"]: row["split"] for _, row, _ in jsonl.lines(self.assignment)}

    def sync(self, **options: object) -> Sources:
        """What a real run syncs, whose jobs have begun."""
        synced = self._synced(**options)
        placements.keep_draft(self.folder / "partitions")
        return synced

    def _synced(self, **options: object) -> Sources:
        settings = sources.Settings(str(self.root), str(self.assignment), **(SETTINGS | options))
        return sync(sources.collect, settings, self.folder / "partitions")

    def aligned(self, country: str, video_id: str, transcript: str = "t1") -> Path:
        """Where an alignment file lies."""
        return (
            self.root / country / f"Alignment/alignment_output/{video_id}_{transcript}_aligned.json"
        )

    def part(self, partition: str) -> Path:
        return self.manifest_dir / "partitions" / partition

    def generate(self, partition: str, *arguments: str) -> int:
        inputs = flags(self.folder / "partitions", partition=f"{partition}.json")
        files = ("manifest.parquet", "recordings.json", "rejects.jsonl", "ledger.json")
        return generate_manifest.main([*inputs, *flags(self.part(partition), *files), *arguments])

    def create(self, partition: str) -> int:
        files = flags(self.part(partition), "manifest.parquet") + flags(
            self.shards_dir, output_dir=""
        )
        index = flags(self.shards_dir / "partitions" / partition, "index.parquet")
        return create_shards.main(files + index)

    def merge_manifest(self, country: str) -> int:
        inputs = flags(
            self.folder, country=f"partitions/countries/{country}.json", manifest_dir="manifest"
        )
        outputs = {name: f"{country}_{name}.csv" for name in ("manifest", "splits")}
        return merge_manifest.main([*inputs, *flags(self.manifest_dir, **outputs)])

    def merge_shards(self, country: str, *arguments: str) -> int:
        inputs = flags(
            self.folder, country=f"partitions/countries/{country}.json", error_list="errors.csv"
        )
        inputs += flags(self.folder, held_out="partitions/held_out/all.json")
        inputs += flags(self.folder, manifest_dir="manifest", shards_dir="shards")
        suffixes = {"manifest": "csv", "index": "parquet", "rejects": "csv", "ledger": "json"}
        outputs = {name: f"{country}_{name}.{suffix}" for name, suffix in suffixes.items()}
        outputs = flags(self.shards_dir, **outputs)
        lists = [f"{self.shards_dir}/{country}_{split}_shards.txt" for split in FRACTIONS]
        return merge_shards.main([*inputs, *outputs, "--shard-lists", *lists, *arguments])

    def cut(self, **options: object) -> None:
        """Sync, and make the manifest and the shards of each partition."""
        for names in self.sync(**options).partitions.values():
            for partition in names:
                assert self.generate(partition) == 0 and self.create(partition) == 0

    def run(self, country: str, **options: object) -> dict:
        """All steps of a country, whose copies are looked for in all; its ledger."""
        self.cut(**options)
        assert self.merge_manifest(country) == 0 and self.merge_shards(country) == 0
        return jsonl.read(self.shards_dir / f"{country}_ledger.json")


def edit(path: Path, change: Callable[[dict], object]) -> None:
    """Have `change` mend the JSON in a file."""
    value = jsonl.read(path)
    change(value)
    path.write_text(json.dumps(value))
