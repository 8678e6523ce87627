"""The lane's steps run one after the other in this process, on a small corpus, without Snakemake."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow.sources import Sources, sync
from millrace.speech import create_shards, generate_manifest, merge_manifest, merge_shards, sources

FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}


class Chain:
    """Paths as in the rules, under `folder`; the corpus is `folder`/countries."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest_dir, self.shards_dir = folder, folder / "manifest", folder / "shards"
        self.root = folder / "countries"

    def sync(self) -> Sources:
        settings = sources.Settings(str(self.root), str(self.folder / "a.jsonl"), FRACTIONS, 100.0, 0.01)
        return sync(sources.collect, settings, self.folder / "partitions")

    def part(self, partition: str) -> Path:
        return self.manifest_dir / "partitions" / partition

    def generate(self, partition: str, *arguments: str) -> int:
        out = self.part(partition)
        return generate_manifest.main(
            ["--partition", str(self.folder / f"partitions/{partition}.json")]
            + ["--manifest", str(out / "manifest.parquet")]
            + ["--recordings", str(out / "recordings.json"), "--rejects", str(out / "rejects.jsonl")]
            + ["--ledger", str(out / "ledger.json"), *arguments]
        )

    def create(self, partition: str, *arguments: str) -> int:
        out = self.shards_dir / "partitions" / partition
        return create_shards.main(
            [
                "--manifest",
                str(self.part(partition) / "manifest.parquet"),
                "--output-dir",
                str(self.shards_dir),
            ]
            + ["--index", str(out / "index.parquet"), "--statuses", str(out / "statuses.parquet"), *arguments]
        )

    def country_file(self, country: str) -> str:
        return str(self.folder / f"partitions/countries/{country}.json")

    def merge_manifest(self, country: str) -> int:
        return merge_manifest.main(
            ["--country", self.country_file(country), "--manifest-dir", str(self.manifest_dir)]
            + ["--manifest", str(self.manifest_dir / f"{country}_manifest.csv")]
            + ["--splits", str(self.manifest_dir / f"{country}_splits.csv")]
        )

    def merge_shards(self, country: str, *arguments: str) -> int:
        out = self.shards_dir
        nemo = [str(out / f"{country}_{split}_nemo.jsonl") for split in ("train", "validation", "test")]
        return merge_shards.main(
            ["--country", self.country_file(country)]
            + ["--manifest-dir", str(self.manifest_dir), "--shards-dir", str(out)]
            + [
                "--manifest",
                str(out / f"{country}_manifest.csv"),
                "--index",
                str(out / f"{country}_index.parquet"),
            ]
            + [
                "--rejects",
                str(out / f"{country}_rejects.csv"),
                "--ledger",
                str(out / f"{country}_ledger.json"),
            ]
            + ["--nemo", *nemo, "--error-list", str(self.folder / "errors.csv"), *arguments]
        )

    def run(self, country: str) -> dict:
        """All steps of a country; its ledger."""
        for partition in self.sync().partitions[country]:
            assert self.generate(partition) == 0 and self.create(partition) == 0
        assert self.merge_manifest(country) == 0 and self.merge_shards(country) == 0
        return jsonl.read(self.shards_dir / f"{country}_ledger.json")
