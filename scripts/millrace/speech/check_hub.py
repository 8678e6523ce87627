"""Print what publishing would add, change and delete on the Hub; nothing is sent."""

from __future__ import annotations

import argparse

from millrace.common import atomic, cli
from millrace.common.hub import plan, repository
from millrace.speech.hub import manifest


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--card", required=True, help="README.md of the repository")
    add("--manifest", required=True, help="what write_card wrote of every shard (JSONL)")
    add("--shards-dir", required=True, help="folder that holds the tars")
    repository.add_flags(parser)
    add("--diff", required=True, help="output: what is printed (text)")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    files = manifest.files(args.manifest, args.card, args.shards_dir)
    with repository.connected(args, "dataset") as hub, repository.explained(args.repo):
        is_there = hub.look()
        difference = plan.make(files, hub.tree() if is_there else [])
    state = f"at commit {hub.head}" if is_there else "which does not exist yet"
    text = "\n".join([f"{args.repo} on {args.endpoint}, {state}:", *difference.lines()])
    atomic.write_text(args.diff, f"{text}\n")
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
