"""Cut the segments of one partition into WebDataset shards, with an index of where every segment lies.

Shards that are good already are kept; a run after a crash goes on where the last one ended.
"""

from __future__ import annotations

import argparse

from millrace.common import cli
from millrace.speech.audio.cut import AUDIO_FORMATS
from millrace.speech.shards import build as shards
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.part import read_part
from millrace.speech.shards.plan import ShardOptions, plan_partition


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--manifest", required=True, help="manifest part of one partition (parquet)")
    add("--output-dir", required=True, help="folder for <country>/<split>[-<subset>]/*.tar")
    add("--index", required=True, help="output: where each segment lies (parquet)")
    add("--statuses", required=True, help="output: status of every manifest row (parquet)")
    add("--max-shard-size-gb", type=cli.positive_float, default=1.0, help="10^9 bytes (default %(default)s)")
    add("--max-cer", type=_cer, default=0.3, help="(default %(default)s); from 1 on, unknown ones pass")
    add("--audio-format", choices=sorted(AUDIO_FORMATS), default="flac", help="(default %(default)s)")
    add("--sampling-rate", type=cli.positive_int, default=16000, help="Hz (default %(default)s)")
    add("--retry-errors", action="store_true", help="build shards again that hold segments in error")
    return parser


def _cer(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a finite number from 0 on, not {text}")
    return value


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    options = ShardOptions(args.sampling_rate, args.audio_format, args.max_cer, args.max_shard_size_gb)
    partition, rows = read_part(args.manifest)
    built = shards.build(plan_partition(partition, rows, options), args.output_dir, args.retry_errors)
    shard_index.write_table(args.index, built.index)
    shard_index.write_statuses(args.statuses, built.statuses)
    cli.log.info("%s: %s", partition, built.line())


if __name__ == "__main__":
    raise SystemExit(main())
