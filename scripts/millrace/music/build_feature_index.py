"""Find the tracks in files of features: where each lies, its hop and type, and whether it can be
used.

Of one partition of the workflow: --partition, --output, --report. Of whole folders, as the
original script: --jsonl, --h5-root, --mm-root, --out. The index is a file of Millrace, whatever its
name.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from millrace.common import atomic, cli, settings
from millrace.common.errors import MillraceError
from millrace.common.leaks import leakage
from millrace.common.ledger import Ledger
from millrace.music.features import partition as partitions
from millrace.music.features.merging import Choices, Places, apply_records, lines, merge_all
from millrace.music.features.metadata import place_records, read_metadata
from millrace.music.features.roots import SPLITS, Root, split_files
from millrace.music.features.track import Contract, write_tracks


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--partition", help="partition file of the workflow, instead of --jsonl and the roots")
    add("--output", help="table of the partition's tracks (parquet) to write")
    add("--report", help="report (JSON) to write: ledger, what was refused and why")
    add("--jsonl", help="JSONL whose records may point to features")
    add("--h5-root", help="folder of HDF5 files")
    add("--mm-root", help="folder of .mm files")
    add("--splits", help=f"folder of {', '.join(SPLITS)}.json, for their coverage")
    add(
        "--out",
        type=Path,
        default=Path("cache/discogs_h5_index.pt"),
        help="index to write",
    )
    add("--prefer", choices=["h5", "mm"], default="h5", help="what is read if a recording has both")
    settings.add_arguments(parser, Contract)
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    contract = settings.from_args(Contract, args)
    settings.check(contract, "features")
    if args.partition and args.output and args.report:
        _build_partition(args, contract)
    elif args.partition or not (args.h5_root or args.mm_root):
        remedy = "Give --partition, --output and --report; or --h5-root or --mm-root, with --jsonl"
        raise MillraceError("no features to look for", remedy=f"{remedy} and --out")
    else:
        _build_index(args, contract)


def _build_partition(args: argparse.Namespace, contract: Contract) -> None:
    """The table and the report of a partition of the workflow."""
    partition = partitions.read_partition(args.partition)
    tracks = list(partitions.build(partition, contract))
    said = partitions.report("build_feature_index", partition.id, tracks)
    cli.log.info("%s", Ledger.from_dict(said["ledger"]).line())
    cli.log.info("%s", partitions.hop_note(tracks, contract) or "all tracks state their hop")
    atomic.write_json(args.report, said)
    write_tracks(args.output, tracks)


def _build_index(args: argparse.Namespace, contract: Contract) -> None:
    """The index of whole folders, as the original script's."""
    metadata = read_metadata(args.jsonl or "")
    if metadata.note:
        cli.log.warning("%s", metadata.note)
    roots = {"h5": args.h5_root, "mm": args.mm_root}
    roots = {kind: path for kind, path in roots.items() if path}
    folders = {kind: Root(path) for kind, path in roots.items()}
    pointing, wrong = place_records(metadata.records.values(), folders)
    problems = metadata.problems + wrong
    for row in problems[:5]:
        cli.log.warning("%s: %s: %s", args.jsonl, row["reason"], row["problem"])

    tracks = partitions.build_folders(folders, pointing, contract)
    apply_records(tracks, metadata, contract)
    splits = split_files(args.splits) if args.splits else {}
    if args.splits and not splits:
        remedy = "Name the files train.json, valid.json and test.json (or val, verify)"
        raise MillraceError("holds no split", args.splits, remedy)
    # The index is that of any splits: the training refuses leaks, or what its data.on_leak says.
    choices = Choices(args.prefer, leakage.KEEP)
    result = merge_all(args.out, tracks, Places(roots, splits), contract, problems, choices)
    for line in lines(result):
        cli.log.info("%s", line)
    cli.log.info("%d tracks, %.1f h: %s", result["tracks"], result["hours"], os.fspath(args.out))


if __name__ == "__main__":
    raise SystemExit(main())
