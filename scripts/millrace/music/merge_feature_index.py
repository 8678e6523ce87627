"""Merge the tracks of all partitions into one index, and say what of each split has features.

Beside the index: coverage.json, missing.jsonl, ledger.json, rejects.jsonl, leaks.jsonl. The index
is written last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import atomic, cli, jsonl, settings
from millrace.common.leaks import leakage
from millrace.music.features.merging import (
    Choices,
    Places,
    apply_records,
    lines,
    merge_all,
)
from millrace.music.features.metadata import read_metadata
from millrace.music.features.track import Contract, read_tracks


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--merge", required=True, help="list (JSON) of partitions, roots, splits and JSONL problems"
    )
    add(
        "--tables",
        type=Path,
        required=True,
        help="folder of the partitions' tables; others are deleted",
    )
    settings.add_arguments(parser, Contract)
    add("--prefer", choices=["h5", "mm"], default="h5", help="what is read if a recording has both")
    add("--on-leak", choices=leakage.WORDS, default=leakage.ERROR, help=leakage.HELP)
    add("--coverage", type=Path, required=True, help="coverage of the splits (JSON) to write")
    add("--output", type=Path, required=True, help="index to write")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    content = jsonl.read(args.merge)
    names = content["partitions"]
    for path in sorted(args.tables.iterdir()):
        if path.stem not in names:
            path.unlink()
            cli.log.info("removed %s, of a partition that is no more", path)
    tracks = [track for name in names for track in read_tracks(args.tables / f"{name}.parquet")]
    contract = settings.from_args(Contract, args)
    settings.check(contract, "features")
    places = Places(content["roots"], content["splits"])
    apply_records(tracks, read_metadata(content["jsonl"]), contract)
    choices = Choices(args.prefer, args.on_leak)
    result = merge_all(args.output, tracks, places, contract, content["problems"], choices)
    atomic.write_json(args.coverage, result)
    for line in lines(result):
        cli.log.info("%s", line)


if __name__ == "__main__":
    raise SystemExit(main())
