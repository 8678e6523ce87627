"""Merge the calibrations of all buckets into calibrated_bs.json, and fit the memory model."""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.asr.calibration import merge as calibration_merge
from millrace.common import atomic, cli


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument(
        "--bucket-config",
        type=Path,
        required=True,
        help="bucket_config.json",
    )
    calibrations = "<bucket>.json, of every bucket"
    parser.add_argument(
        "--calibrations",
        type=Path,
        nargs="+",
        required=True,
        help=calibrations,
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="output: calibrated_bs.json",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    merged = calibration_merge.merge(args.bucket_config, args.calibrations)
    atomic.write_json(args.output, merged)
    for name, bucket in merged["buckets"].items():
        line = "%s: %d rows; peak %.3f GB"
        cli.log.info(line, name, bucket["batch_size"], bucket["peak_memory_gb"])


if __name__ == "__main__":
    raise SystemExit(main())
