"""Show what the runs are worth as a page: error rates, learning curves, the worst clips to hear."""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.asr.buckets.config import BucketConfig, leak_lines
from millrace.asr.evaluation import page
from millrace.asr.evaluation.runs import Run, worst_clips
from millrace.common import atomic, cli
from millrace.common.errors import MillraceError


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--runs",
        nargs="*",
        metavar="METRICS",
        help="metrics.json of each run, in its folder",
    )
    add(
        "--buckets",
        required=True,
        help="bucket_config.json of the data: the clips' audio",
    )
    add(
        "--summary",
        required=True,
        help="output: tables, figures and clips as one page (HTML)",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    if not args.runs:
        raise MillraceError(
            "there is no run to report", "asr.runs", "Give asr.runs a run, or --runs a metrics.json"
        )
    runs = [Run(path) for path in args.runs]
    clips = worst_clips(runs, BucketConfig.read(args.buckets))
    atomic.write_text(args.summary, page.render(runs, clips, leak_lines(Path(args.buckets))))
    cli.log.info(
        "%s: %d runs, %d clips to hear",
        args.summary,
        len(runs),
        sum(bool(clip.audio) for clip in clips),
    )


if __name__ == "__main__":
    raise SystemExit(main())
