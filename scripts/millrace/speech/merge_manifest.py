"""Gather the manifest and the splits of a country from its partitions, as two CSVs."""

from __future__ import annotations

import argparse
from collections import defaultdict

from millrace.common import cli, jsonl
from millrace.speech.country import tables


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--country", required=True, help="country file of the partitions (JSON)")
    add("--manifest-dir", required=True, help="folder that holds partitions/<id>/manifest.parquet")
    add("--manifest", required=True, help="output: <country>_manifest.csv, every row still pending")
    add("--splits", required=True, help="output: <country>_splits.csv")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    country = jsonl.read(args.country)
    parts = [tables.PartitionFiles(name, args.manifest_dir) for name in country["partitions"]]
    rows = (row for part in parts for row in part.rows())
    segments = tables.write_csv(args.manifest, tables.MANIFEST_COLUMNS, rows)
    recordings = [recording for part in parts for recording in jsonl.read(part.recordings)]
    recordings.sort(key=lambda row: (row["video_id"], row["source_audio_path"]))
    tables.write_csv(args.splits, tables.SPLITS_COLUMNS, recordings)
    hours: dict[str, float] = defaultdict(float)
    for recording in recordings:
        hours[recording["split"]] += recording["duration_hours"] or 0.0
    total = sum(hours.values()) or 1.0
    shares = [f"{split} {h:.2f} h ({100 * h / total:.1f} %)" for split, h in sorted(hours.items())]
    cli.log.info("%s: %d segments; %s", country["country"], segments, ", ".join(shares) or "no recordings")


if __name__ == "__main__":
    raise SystemExit(main())
