"""The manifest of a country as the step that makes shards takes it: parts of the workflow, or the
CSVs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millrace.common.errors import MillraceError
from millrace.speech.columns import PENDING
from millrace.speech.country.csv_manifest import CsvManifest
from millrace.speech.shards import part as shard_part
from millrace.speech.shards.build import Outcome
from millrace.speech.shards.index import made_keys
from millrace.speech.shards.part import Part


@dataclass(frozen=True)
class Parts:
    """Manifest parts of the workflow, which stay as they are: statuses stand beside the shards."""

    paths: list[str]

    def parts(self, output_dir: str) -> Iterator[Part]:
        """Partition after partition."""
        return map(shard_part.read_part, self.paths)

    def note(self, outcomes: Iterable[Outcome]) -> None:
        """Nothing is noted of rows."""

    def line(self) -> str:
        """No line for the log."""
        return ""


Manifest = Parts | CsvManifest


def of_country(manifest_dir: str, country: str) -> Manifest:
    """The manifest of a country in a folder. Raises MillraceError if there is none."""
    if manifest_dir and country:
        if paths := shard_part.of_country(manifest_dir, country):
            return Parts(paths)
        if manifest := CsvManifest.find(manifest_dir, country):
            return manifest
    problem = (
        f"no partitions/*/manifest.parquet, and no <country>_manifest.csv, of country {country!r}"
    )
    remedy = (
        "Give --manifest-dir and --country, or --manifest; snakemake speech_manifest writes the"
        " former, and python -m millrace.speech.generate_manifest --country the latter"
    )
    raise MillraceError(problem, manifest_dir or "--manifest-dir", remedy)


def of_recordings(manifest: Manifest, output_dir: str, count: int) -> Iterator[Part]:
    """The rows of `count` recordings, for a trial: those with segments in shards already, then the
    first that are pending. So a trial that is repeated adds nothing, and a larger one only adds.
    """
    made: set[str] = set()
    pending: dict[str, int] = {}
    for part in manifest.parts(output_dir):
        keys = made_keys(part.partition, output_dir)
        made |= {row["video_id"] for row in part.rows if row["key"] in keys}
        for row in part.rows:
            if row["status"] == PENDING:
                pending.setdefault(row["video_id"], row.get(shard_part.NUMBER, len(pending)))

    others = sorted(pending.keys() - made, key=lambda video: pending[video])
    videos = made | {*others[: max(0, count - len(made))]}
    for part in manifest.parts(output_dir):
        yield Part(part.partition, [row for row in part.rows if row["video_id"] in videos])
