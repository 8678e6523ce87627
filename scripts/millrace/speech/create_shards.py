"""Cut segments into WebDataset shards, with an index of where every segment lies.

The segments of one partition (--manifest), or of a country (--manifest-dir and --country). Shards
that are good already are kept; a run after a crash goes on where the last one ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from millrace.common import cli
from millrace.speech.country.csv_manifest import CsvManifest
from millrace.speech.names import AUDIO_FORMATS
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.build import Outcome, build
from millrace.speech.shards.part import Part, read_part
from millrace.speech.shards.plan import ShardOptions, plan_partition


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--manifest",
        help="manifest part of one partition (parquet); or --manifest-dir with --country",
    )
    add(
        "--manifest-dir",
        help="folder of <country>_manifest.csv, whose statuses are brought up to date, and"
        " <country>_splits.csv: all of --country",
    )
    add("--country", help="country that is taken from --manifest-dir")
    videos = "trial: that many recordings of --country, those in shards first (default: all)"
    add("--max-videos", type=cli.positive_int, help=videos)
    add("--output-dir", required=True, help="folder for <country>/<split>[-<subset>]/*.tar")
    index = "output of --manifest: status and place of every row (default: below --output-dir)"
    add("--index", help=index)
    add(
        "--max-shard-size-gb",
        type=cli.positive_float,
        default=1.0,
        help="10^9 bytes (default %(default)s)",
    )
    add(
        "--max-cer",
        type=_cer,
        default=0.3,
        help="(default %(default)s); from 1 on, unknown ones pass",
    )
    add(
        "--audio-format",
        choices=AUDIO_FORMATS,
        default="flac",
        help="(default %(default)s)",
    )
    add("--sampling-rate", type=cli.positive_int, default=16000, help="Hz (default %(default)s)")
    return parser


def _cer(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a finite number from 0 on, not {text}")
    return value


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    by_hand = bool(args.manifest_dir and args.country)
    if bool(args.manifest) == by_hand or bool(args.manifest_dir) != bool(args.country):
        make_parser().error("give --manifest, or --manifest-dir with --country")
    if by_hand and args.index:
        make_parser().error("--index is of one --manifest")
    if args.max_videos and not by_hand:
        make_parser().error("--max-videos is of one --country")
    options = ShardOptions(
        args.sampling_rate, args.audio_format, args.max_cer, args.max_shard_size_gb
    )
    if args.manifest:
        _cut(read_part(args.manifest), options, args)
        return
    manifest = CsvManifest.find(args.manifest_dir, args.country)
    if args.max_videos:
        parts = manifest.parts_of_recordings(args.output_dir, args.max_videos)
    else:
        parts = manifest.parts(args.output_dir)
    for part in parts:
        _cut(part, options, args, manifest.note)
    cli.log.info("%s", manifest.line())


def _cut(
    part: Part,
    options: ShardOptions,
    args: argparse.Namespace,
    note: Callable[[Iterable[Outcome]], None] = lambda outcomes: None,
) -> None:
    """Bring the shards of a partition, and what is written of them, in step with its rows."""
    plan = plan_partition(part.partition, part.rows, options)
    built = build(plan, args.output_dir, note)
    index = Path(args.output_dir, "partitions", str(part.partition), "index.parquet")
    shard_index.write_table(args.index or index, built.rows)
    cli.log.info("%s: %s", part.partition, built.line())


if __name__ == "__main__":
    raise SystemExit(main())
