"""Write what goes onto the Hub beside the shards: the card, README.md, and the manifest."""

from __future__ import annotations

import argparse

from millrace.common import atomic, cli, jsonl
from millrace.speech.hub import card, published


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--index", required=True, help="index of all segments in shards (parquet)")
    add("--shards-dir", required=True, help="folder that holds the tars with their sidecars")
    add("--repo", required=True, help="namespace/name on the Hub, for the examples")
    add("--licence", default="", help="the Hub's name of a licence, such as cc-by-4.0")
    add("--card", required=True, help="output: README.md")
    add("--manifest", required=True, help="output: path, digest and sizes of every shard (JSONL)")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    shards = published.shards(args.index)
    jsonl.write_lines(args.manifest, published.rows(shards, args.shards_dir))
    atomic.write_text(args.card, card.render(shards, args.repo, args.licence))
    cli.log.info("%d shards, %d samples", len(shards), shards["samples"].sum())


if __name__ == "__main__":
    raise SystemExit(main())
