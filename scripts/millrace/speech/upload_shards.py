"""Publish the shards on a Hub: what differs from the repository is sent, and one commit makes it
visible.

Run it again after any error: it looks at what is there, and what was sent is not sent again.
"""

from __future__ import annotations

import argparse

from millrace.common import atomic, cli
from millrace.common.hub import repository
from millrace.common.hub.publish import difference, publish
from millrace.speech.hub import published


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--card", required=True, help="README.md of the repository")
    add("--manifest", required=True, help="what write_card wrote of every shard (JSONL)")
    add("--shards-dir", required=True, help="folder that holds the tars")
    repository.add_flags(parser)
    add("--max-delete-fraction", type=float, default=0.5, help="of data/ (default %(default)s)")
    add("--allow-delete", action="store_true", help="delete as much as there is to delete")
    add("--diff", action="store_true", help="print what would change, and send nothing")
    add("--result", required=True, help="output: the receipt (JSON), or what would change")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    files = published.files(args.manifest, args.card, args.shards_dir)
    with repository.connected(args, "dataset") as hub:
        if args.diff:
            text = difference(hub, files, args.endpoint)
            atomic.write_text(args.result, text)
            print(text, end="", flush=True)
            return
        receipt = publish(hub, files, 1.0 if args.allow_delete else args.max_delete_fraction)
    atomic.write_json(args.result, receipt)


if __name__ == "__main__":
    raise SystemExit(main())
