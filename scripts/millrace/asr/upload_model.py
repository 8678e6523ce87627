"""Publish the model of a run on a Hub, with a card that says what it was trained on and how well it
does."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from millrace.asr.hub import card
from millrace.common import atomic, cli
from millrace.common.hub import repository
from millrace.common.hub.publish import CARD, File, publish


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    repository.add_flags(parser)
    add(
        "--metrics",
        required=True,
        help="metrics.json of the run, beside its model",
    )
    add(
        "--bucket-config",
        required=True,
        help="bucket_config.json of its data",
    )
    add(
        "--licence",
        default="",
        help="the Hub's name of a licence, such as apache-2.0",
    )
    add(
        "--card",
        required=True,
        help="output: README.md of the repository",
    )
    add(
        "--receipt",
        required=True,
        help="output: commit, SHA-256 and size of every file (JSON)",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    metrics = Path(args.metrics)
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True)
    commit = head.stdout.strip() or "no commit"
    buckets = Path(args.bucket_config)
    text = card.render(args.repo, args.licence, commit, metrics, buckets)
    atomic.write_text(args.card, text)
    files = [*card.files(metrics.parent / "model"), File.of(CARD, text.encode())]
    with repository.connected(args, "model") as hub:
        receipt = publish(hub, files)
    atomic.write_json(args.receipt, receipt)


if __name__ == "__main__":
    raise SystemExit(main())
