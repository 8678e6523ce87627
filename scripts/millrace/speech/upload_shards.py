"""Publish the shards on a Hub: what differs from the repository is sent, and one commit makes it visible.

Run it again after any error: it looks at what is there, and what was sent is not sent again.
"""

from __future__ import annotations

import argparse
from functools import partial

from millrace.common import atomic, cli
from millrace.common.hub import repository
from millrace.common.hub.plan import Plan
from millrace.common.hub.publish import difference, publish
from millrace.speech.hub import manifest


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--card", required=True, help="README.md of the repository")
    add("--manifest", required=True, help="what write_card wrote of every shard (JSONL)")
    add("--shards-dir", required=True, help="folder that holds the tars")
    repository.add_flags(parser)
    add(
        "--max-delete-fraction", type=float, default=0.5, help="most of data/ to delete (default %(default)s)"
    )
    add("--allow-delete", action="store_true", help="delete as much as there is to delete")
    add("--diff", action="store_true", help="print what would change, and send nothing")
    add(
        "--result",
        required=True,
        help="output: commit, SHA-256 and size of every file (JSON); or the difference",
    )
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    files = manifest.files(args.manifest, args.card, args.shards_dir)
    most = 1.0 if args.allow_delete else args.max_delete_fraction
    remedy = "If that is right: raise speech.hub.max_delete_fraction, or run this step with --allow-delete"
    with repository.connected(args, "dataset") as hub:
        if args.diff:
            text = difference(hub, files, args.endpoint)
            atomic.write_text(args.result, text)
            return print(text, end="", flush=True)
        publish(hub, files, partial(Plan.check_deletes, most=most, remedy=remedy))
    atomic.write_json(args.result, hub.receipt(files))
    cli.log.info("%s: %d files at commit %s", args.repo, len(files), hub.head)


if __name__ == "__main__":
    raise SystemExit(main())
