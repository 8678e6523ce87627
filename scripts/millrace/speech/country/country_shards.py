"""The shards of a whole country without the workflow: from a manifest CSV to tars, an index and a new
manifest CSV."""

from __future__ import annotations

from pathlib import Path

from millrace.common import cli
from millrace.common.errors import MillraceError
from millrace.speech.country import shard_inputs, tables
from millrace.speech.shards import build as shards
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.plan import ShardOptions, plan_partition


def create(
    country: str,
    manifest_dir: str,
    output_dir: str,
    options: ShardOptions,
    max_videos: int | None = None,
    retry_errors: bool = False,
) -> None:
    """Make the shards of <country>_manifest.csv: test, then validation, then train by subset.

    Writes <country>_manifest.csv with the statuses, and index.parquet of all shards in `output_dir`. The
    input is never written to: MillraceError where `output_dir` is the folder it lies in.
    """
    target = Path(output_dir) / f"{country}_manifest.csv"
    if target.resolve() == (Path(manifest_dir) / target.name).resolve():
        raise MillraceError(
            "--output-dir holds the manifest that is read", where=str(target), remedy="Give another folder"
        )
    rows = shard_inputs.read_country(manifest_dir, country)
    positions = shard_inputs.pending_positions(rows, max_videos)
    groups = shard_inputs.group(rows, positions, country)
    # All plans come first: a limit that cannot be held is known before any work.
    plans = [plan_partition(partition, [rows[p] for p in members], options) for partition, members in groups]
    for plan, (partition, members) in zip(plans, groups, strict=True):
        built = shards.build(plan, output_dir, retry_errors)
        for position, (_, status, message) in zip(members, built.statuses, strict=True):
            rows[position] |= {"status": status, "error_message": message}
        cli.log.info("%s: %s", partition, built.line())
    shard_index.write_table(Path(output_dir) / "index.parquet", shard_index.gather(Path(output_dir)))
    tables.write_manifest_csv(target, rows)
    cli.log.info("%s: %d of %d segments worked on; see %s", country, len(positions), len(rows), target)
