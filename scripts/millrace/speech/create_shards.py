"""Cut the segments of one partition into WebDataset shards, with an index of where every segment lies.

Shards that are good already are kept; a run after a crash goes on where the last one ended.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.common.errors import MillraceError
from millrace.speech.columns import PENDING
from millrace.speech.names import AUDIO_FORMATS
from millrace.speech.shards import build as shards
from millrace.speech.shards import index as shard_index
from millrace.speech.shards.part import of_country, read_part
from millrace.speech.shards.plan import ShardOptions, plan_partition


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--manifest", help="manifest part of one partition (parquet); or --manifest-dir with --country")
    add("--manifest-dir", help="folder that holds partitions/<id>/manifest.parquet: all of --country")
    add("--country", help="country whose partitions are taken from --manifest-dir")
    videos = "trial: segments of that many recordings of --country only (default: all)"
    add("--max-videos", type=cli.positive_int, help=videos)
    add("--output-dir", required=True, help="folder for <country>/<split>[-<subset>]/*.tar")
    beside = "(default: in partitions/<id> of --output-dir)"
    add("--index", help=f"output: where each segment lies (parquet) {beside}")
    add("--statuses", help=f"output: status of every manifest row (parquet) {beside}")
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
    args = (parser := make_parser()).parse_args(argv)
    if bool(args.manifest) == bool(args.manifest_dir or args.country):
        parser.error("give --manifest, or --manifest-dir with --country")
    if args.manifest_dir and (args.index or args.statuses):
        parser.error("--index and --statuses are of one --manifest")
    options = ShardOptions(args.sampling_rate, args.audio_format, args.max_cer, args.max_shard_size_gb)
    parts = [args.manifest] if args.manifest else of_country(args.manifest_dir or "", args.country or "")
    videos: list[str] = []
    for part in parts:
        partition, rows = read_part(part)
        folder = Path(args.output_dir, "partitions", str(partition))
        index, statuses = args.index or folder / "index.parquet", args.statuses or folder / "statuses.parquet"
        if args.max_videos:
            names = dict.fromkeys(row["video_id"] for row in rows if row["status"] == PENDING)
            videos += [*names][: args.max_videos - len(videos)]
            if Path(index).exists():
                remedy = "Name another --output-dir for a trial"
                raise MillraceError("--max-videos would take segments from these shards", str(folder), remedy)
            rows = [row for row in rows if row["video_id"] in videos]
        built = shards.build(plan_partition(partition, rows, options), args.output_dir, args.retry_errors)
        shard_index.write_table(index, built.index)
        shard_index.write_statuses(statuses, built.statuses)
        cli.log.info("%s: %s", partition, built.line())


if __name__ == "__main__":
    raise SystemExit(main())
