"""Show the corpus to people: hours, segments, rejects and distributions as a page and two
figures."""

from __future__ import annotations

import argparse

from millrace.common import atomic, cli
from millrace.common.report import figures
from millrace.speech.report import corpus as corpus_report
from millrace.speech.report import figures as corpus_figures
from millrace.speech.report import page as corpus_page


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--index", required=True, help="index of all segments in shards (parquet)")
    add("--ledger", required=True, help="ledgers of all countries (JSON)")
    add("--summary", required=True, help="output: tables and figures as one page (HTML)")
    add("--hours", required=True, help="output: hours per country and split (SVG)")
    add("--distributions", required=True, help="output: duration, CER and WER (SVG)")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    corpus = corpus_report.read(args.index, args.ledger)
    svgs = {
        "hours": corpus_figures.hours(corpus),
        "distributions": corpus_figures.distributions(corpus.rates),
    }
    for name, svg in svgs.items():
        figures.save_svg(getattr(args, name), svg)
    atomic.write_text(args.summary, corpus_page.render(corpus, svgs))
    total = corpus.ledger("segment")
    hours = figures.human_hours(corpus.hours.to_numpy().sum())
    counts = (total.rows_out, total.rows_in, len(corpus.countries))
    cli.log.info("%s in %d of %d segments found, %d countries", hours, *counts)


if __name__ == "__main__":
    raise SystemExit(main())
