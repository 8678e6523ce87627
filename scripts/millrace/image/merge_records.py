"""Write the index of a split's record files: lengths, classes, rejects and ledger; delete what a
split of another name, or partitions that are gone, have left.

Where images were rejected, the few files whose lengths would differ by more than one are written
again.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.common import cli, jsonl
from millrace.common.leaks import leakage
from millrace.image.records.deal import FilePlan
from millrace.image.records.folder import VALIDATION

if TYPE_CHECKING:  # which brings Pillow along
    from millrace.image.records.conversion import Conversion


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--split", type=Path, required=True, help="JSON file: the split's classes and partitions")
    add("--partitions-dir", type=Path, required=True, help="folder of the partition files")
    add(
        "--index",
        type=Path,
        required=True,
        help="records.json to write, beside the split's record files",
    )
    held_out = "the same of a split whose images this one must not hold"
    add("--held-out", type=Path, nargs="?", help=held_out)
    add("--on-leak", choices=leakage.WORDS, default=leakage.REJECT, help=leakage.HELP)
    add("--max-error-fraction", type=float, default=0.1, help="share of damaged images allowed")
    add(
        "--threads",
        type=cli.positive_int,
        default=1,
        help="images at a time, where files are written again",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    from millrace.image.records.convert import finish

    records = args.index.parent.parent
    conversion = _conversion(args.split, args.partitions_dir, records)
    held_out = None
    if args.held_out:
        held_out = _conversion(args.held_out, args.partitions_dir, records)
    finish(conversion, held_out, args.on_leak, args.max_error_fraction, args.threads)
    _remove_reports(records, conversion.name, conversion.split["partitions"])
    if conversion.name in VALIDATION:
        _remove_renamed(records, conversion.name)


def _remove_reports(records: Path, split: str, kept: Collection[str]) -> None:
    """Remove the reports of a split's partitions, but for those of the ids `kept`."""
    for path in (records / "partitions").glob(f"{split}-*.json"):
        if path.stem not in kept:
            path.unlink()


def _remove_renamed(records: Path, split: str) -> None:
    """Remove the records of a validation folder that is called otherwise by now: training refuses
    both."""
    from millrace.image.records import prints

    for name in VALIDATION:
        folder = records / name
        # Images may lie in a folder of that name, which has no prints.
        if name != split and prints.are_in(folder):
            _remove_reports(records, name, kept=())
            shutil.rmtree(folder)


def _conversion(split_file: Path, partitions: Path, records: Path) -> Conversion:
    """A split with its partitions and its folder."""
    from millrace.image.records.conversion import Conversion

    split = jsonl.read(split_file)
    contents = [jsonl.read(partitions / f"{name}.json") for name in split["partitions"]]
    plans = [FilePlan.from_dict(plan) for content in contents for plan in content["files"]]
    return Conversion(plans, split, records / split["split"])


if __name__ == "__main__":
    raise SystemExit(main())
