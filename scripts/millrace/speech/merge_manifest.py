"""Gather the manifest and the splits of a country from its partitions, as two CSVs."""

from __future__ import annotations

import argparse

from millrace.common import cli, jsonl
from millrace.speech.country import tables


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--country", required=True, help="country file of the partitions (JSON)")
    add("--manifest-dir", required=True, help="folder that holds partitions/<id>/manifest.parquet")
    add("--manifest", required=True, help="output: <country>_manifest.csv, every row still pending")
    add("--splits", required=True, help="output: <country>_splits.csv")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    country = jsonl.read(args.country)
    parts = [tables.PartitionFiles(name, args.manifest_dir) for name in country["partitions"]]
    rows = (row for part in parts for row in part.rows())
    segments = tables.write_csv(args.manifest, tables.MANIFEST_COLUMNS, rows)

    recordings = []
    for part in parts:
        recordings += jsonl.read(part.recordings)
    tables.write_splits(args.splits, recordings)
    counts = segments, len(recordings)
    cli.log.info("%s: %d segments of %d recordings", country["country"], *counts)


if __name__ == "__main__":
    raise SystemExit(main())
