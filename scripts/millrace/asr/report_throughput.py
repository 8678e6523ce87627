"""Show training throughput as a page: the baseline against Millrace, phases, buckets, criteria."""

from __future__ import annotations

import argparse

from millrace.asr.throughput import comparison, criteria, page
from millrace.common import atomic, cli

ROLES = {
    "bench": "runs of our pipeline, repeats of each other",
    "baseline": "runs of the baseline: tarfile, random batches, decoding in the trainer",
    "check": "short runs over all buckets",
    "profile": "runs under the profiler",
}


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    for role, meaning in ROLES.items():
        runs = f"folders or metrics.json: {meaning}"
        add(
            f"--{role}",
            nargs="*",
            default=[],
            metavar="RUN",
            help=runs,
        )
    add("--buckets", help="bucket_config.json of the buckets that were trained on")
    reference = "name and figures of another system, as asr.throughput.reference (JSON)"
    add(
        "--reference",
        type=cli.json_object,
        default={},
        help=reference,
    )
    add("--summary", required=True, help="output: tables and figure as one page (HTML)")
    add(
        "--result",
        required=True,
        help="output: all figures (JSON)",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    throughput = comparison.Throughput(
        {role: getattr(args, role) for role in ROLES}, args.buckets, args.reference
    )
    judged = criteria.criteria(throughput)
    atomic.write_json(args.result, criteria.result(throughput, judged))
    atomic.write_text(args.summary, page.render(throughput, judged))
    for criterion in judged:
        cli.log.info(
            "%s: %s (%s; %s)", criterion.status, criterion.name, criterion.figure, criterion.bar
        )


if __name__ == "__main__":
    raise SystemExit(main())
