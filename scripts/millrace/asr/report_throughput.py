"""Show training throughput as a page: the naive pipeline against ours, phases, buckets, criteria."""

from __future__ import annotations

import argparse

from millrace.asr.throughput import comparison, criteria
from millrace.asr.throughput import figures as throughput_figures
from millrace.asr.throughput import page as throughput_page
from millrace.common import atomic, cli
from millrace.common.report import figures

ROLES = {
    "bench": "runs of our pipeline, repeats of each other",
    "baseline": "runs of the naive pipeline",
    "ideal": "runs with batches replayed from memory",
    "check": "short runs over all buckets",
    "profile": "runs under the profiler",
}


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    for role, meaning in ROLES.items():
        parser.add_argument(
            f"--{role}", nargs="*", default=[], metavar="RUN", help=f"folders or metrics.json: {meaning}"
        )
    parser.add_argument("--buckets", help="bucket_config.json of the buckets that were trained on")
    parser.add_argument("--summary", required=True, help="output: tables and figures as one page (HTML)")
    parser.add_argument("--comparison", required=True, help="output: old against new (SVG)")
    parser.add_argument("--phases", required=True, help="output: time by phase (SVG)")
    parser.add_argument(
        "--buckets-figure", required=True, help="output: step time, batch and memory by bucket (SVG)"
    )
    parser.add_argument("--result", required=True, help="output: all figures (JSON)")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    found = comparison.Throughput.read({role: getattr(args, role) for role in ROLES}, args.buckets)
    judged = criteria.criteria(found)
    svgs = {
        "comparison": throughput_figures.comparison(found),
        "phases": throughput_figures.phases(found),
        "buckets": throughput_figures.buckets(found),
    }
    for name, path in (
        ("comparison", args.comparison),
        ("phases", args.phases),
        ("buckets", args.buckets_figure),
    ):
        figures.save_svg(path, svgs[name])
    atomic.write_json(args.result, criteria.result(found, judged))
    atomic.write_text(args.summary, throughput_page.render(found, judged, svgs))
    for criterion in judged:
        cli.log.info("%s: %s (%s; %s)", criterion.status, criterion.name, criterion.figure, criterion.bar)


if __name__ == "__main__":
    raise SystemExit(main())
