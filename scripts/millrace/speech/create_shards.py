"""Cut the segments of recordings into WebDataset shards, with an index of where every segment lies.

For one partition (as the workflow does):  --manifest PART.parquet --index OUT --statuses OUT --output-dir D
For a country, by hand:                    --country germany --manifest-dir M --output-dir D [--max-videos 10]
The second way reads M/<country>_manifest.csv and writes D/<country>_manifest.csv and D/index.parquet.
Shards that are good already are kept; what is run again after a crash goes on where it was.
"""

from __future__ import annotations

import argparse

from millrace.common import cli
from millrace.speech.audio.cut import AUDIO_FORMATS
from millrace.speech.country import country_shards, shard_inputs
from millrace.speech.shards import build as shards
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.plan import ShardOptions, plan_partition


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    parser.add_argument("--output-dir", required=True, help="folder for <country>/<split>[-<subset>]/*.tar")
    parser.add_argument("--manifest", help="manifest part of one partition (parquet)")
    parser.add_argument("--index", help="output with --manifest: where each segment lies (parquet)")
    parser.add_argument("--statuses", help="output with --manifest: status of every manifest row (parquet)")
    parser.add_argument("--country", help="country to work on by hand")
    parser.add_argument("--manifest-dir", help="folder that holds <country>_manifest.csv")
    parser.add_argument("--max-videos", type=cli.positive_int, help="with --country: first N recordings only")
    parser.add_argument(
        "--max-shard-size-gb", type=cli.positive_float, default=1.0, help="10^9 bytes (default 1)"
    )
    parser.add_argument(
        "--max-cer", type=_cer, default=0.3, help="(default 0.3); from 1 on, unknown ones pass"
    )
    parser.add_argument(
        "--audio-format", choices=sorted(AUDIO_FORMATS), default="flac", help="(default flac)"
    )
    parser.add_argument("--sampling-rate", type=cli.positive_int, default=16000, help="Hz (default 16000)")
    parser.add_argument(
        "--retry-errors", action="store_true", help="build shards again that hold segments in error"
    )
    return parser


def _cer(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a finite number from 0 on, not {text}")
    return value


@cli.step
def main(argv: list[str] | None = None) -> None:
    parser = make_parser()
    args = parser.parse_args(argv)
    options = ShardOptions(args.sampling_rate, args.audio_format, args.max_cer, args.max_shard_size_gb)
    if args.manifest and args.index and args.statuses:
        partition, rows = shard_inputs.read_part(args.manifest)
        built = shards.build(plan_partition(partition, rows, options), args.output_dir, args.retry_errors)
        shard_index.write_table(args.index, built.index)
        shard_index.write_statuses(args.statuses, built.statuses)
        cli.log.info("%s: %s", partition, built.line())
    elif args.country and args.manifest_dir and not args.manifest:
        where = args.country, args.manifest_dir, args.output_dir
        country_shards.create(*where, options, args.max_videos, args.retry_errors)
    else:
        parser.error("give --manifest, --index and --statuses, or --country and --manifest-dir")


if __name__ == "__main__":
    raise SystemExit(main())
