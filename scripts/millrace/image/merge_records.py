"""Write the index of a split's record files: lengths, classes, rejects and ledger.

Where images were rejected, the few files whose lengths would differ by more than one are written
again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli, jsonl
from millrace.image.records.deal import FilePlan


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--split", type=Path, required=True, help="JSON file: the split's classes and partitions")
    add("--partitions-dir", type=Path, required=True, help="folder of the partition files")
    add(
        "--index",
        type=Path,
        required=True,
        help="records.json to write, beside the split's record files",
    )
    add("--max-error-fraction", type=float, default=0.1, help="share of damaged images allowed")
    add(
        "--threads",
        type=cli.positive_int,
        default=1,
        help="images at a time, where files are written again",
    )
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    from millrace.image.records.convert import finish

    split = jsonl.read(args.split)
    contents = [jsonl.read(args.partitions_dir / f"{name}.json") for name in split["partitions"]]
    plans = [FilePlan.from_dict(plan) for content in contents for plan in content["files"]]
    finish(plans, split, args.index.parent, args.max_error_fraction, args.threads)
    for path in (args.index.parent.parent / "partitions").glob(f"{split['split']}-*.json"):
        if path.stem not in split["partitions"]:
            path.unlink()


if __name__ == "__main__":
    raise SystemExit(main())
