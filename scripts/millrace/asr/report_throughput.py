"""Show training throughput as a page: the baseline against Millrace, phases, buckets, criteria."""

from __future__ import annotations

import argparse

from millrace.asr.throughput import criteria, page
from millrace.asr.throughput.comparison import Comparison
from millrace.common import atomic, cli

ROLES = {
    "bench": "the run of our pipeline",
    "baseline": "that of the baseline: tarfile, random batches, decoding in the trainer",
    "check": "a short run over all buckets",
    "profile": "a run under the profiler",
}


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    for role, meaning in ROLES.items():
        add(
            f"--{role}",
            required=True,
            metavar="METRICS",
            help=f"metrics.json, in its folder: {meaning}",
        )
    add("--buckets", required=True, help="bucket_config.json of what was trained on")
    add("--summary", required=True, help="output: tables as one page (HTML)")
    add(
        "--result",
        required=True,
        help="output: all figures (JSON)",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    runs = {role: getattr(args, role) for role in ROLES}
    comparison = Comparison.read(args.buckets, **runs)
    judged = criteria.criteria(comparison)
    atomic.write_json(args.result, criteria.result(comparison, judged))
    atomic.write_text(args.summary, page.render(comparison, judged))
    for criterion in judged:
        cli.log.info(
            "%s: %s (%s; %s)", criterion.status, criterion.name, criterion.figure, criterion.bar
        )


if __name__ == "__main__":
    raise SystemExit(main())
