"""Publish the model of a run on a Hub, with a card that says what it was trained on and how well it does."""

from __future__ import annotations

import argparse
import subprocess
from importlib import metadata
from pathlib import Path

from millrace.asr.hub import card
from millrace.common import atomic, cli, jsonl
from millrace.common.hub import repository
from millrace.common.hub.plan import File
from millrace.common.hub.publish import publish


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--metrics", required=True, help="metrics.json of the run, beside its model")
    add("--bucket-config", required=True, help="bucket_config.json of its data")
    repository.add_flags(parser)
    add("--licence", default="", help="the Hub's name of a licence, such as apache-2.0")
    add("--card", required=True, help="output: README.md of the repository")
    add("--receipt", required=True, help="output: the commit, and SHA-256 and size of every file (JSON)")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    metrics, folder = jsonl.read(args.metrics), Path(args.metrics).parent
    files = card.files(folder / "model")
    buckets, run = jsonl.read(args.bucket_config), jsonl.read(folder / "run.json")["run"]
    config = jsonl.read(folder / "model/config.json")
    languages = card.languages(Path(args.bucket_config), buckets)
    text = card.render(args.repo, args.licence, _commit(), metrics, buckets, run, config, languages)
    atomic.write_text(args.card, text)
    files.append(File.of("README.md", text.encode()))
    with repository.connected(args, "model") as hub:
        publish(hub, files)
    atomic.write_json(args.receipt, repository.receipt(hub, files))
    cli.log.info("%s: %d files at commit %s", args.repo, len(files), hub.head)


def _commit() -> str:
    """The commit of this clone; of an installed package its version."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    try:
        return f"version {metadata.version('millrace')}"
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
