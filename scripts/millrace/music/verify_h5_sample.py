"""Read tracks whole and print their facts and statistics; draw their CQT and shingles.

python -m millrace.music.verify_h5_sample --feature-index results/music/index/features.index
--sample 4 python -m millrace.music.verify_h5_sample --feature-index X.index --splits metadata
--split train --index 0
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millrace.common import atomic, cli
from millrace.common.errors import MillraceError
from millrace.music.features import verification
from millrace.music.features.index import FeatureIndex, index_path
from millrace.music.features.roots import SPLITS, split_files, split_name
from millrace.music.features.track import Contract
from millrace.music.training import conf


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--conf", help="training configuration (YAML), whose path says index and splits")
    add("--feature-index", type=Path, help="index to read (default: that of --conf)")
    add("--splits", help="folder of the split files (default: those of --conf)")
    add("--split", default="train", help="split that --index counts in: train, valid or test")
    add("--index", type=cli.count, help="number of a version in the split, from 0")
    add("--id", help="id of a track, instead of --index; --id=-abc where it begins with a dash")
    add(
        "--sample",
        type=cli.positive_int,
        default=4,
        help="so many tracks drawn at random, if none is named",
    )
    add("--seed", type=int, default=43, help="seed of the sample")
    prefer = "what is read if a recording has both (default: data.prefer of --conf, else h5)"
    add("--prefer", choices=["h5", "mm"], help=prefer)
    add("--verbose", action="store_true", help="print also where each fact is from")
    add("--picture", help="picture to write, .png or .svg")
    add("--output", help="facts (JSON) to write; they are then printed on stderr")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    index, contract, files, prefer = _chosen(args)
    if args.id is not None or args.index is not None:
        name = split_name(args.split)
        numbers = [verification.number_of(index, files.get(name, ""), name, args.index, args.id)]
    else:
        rng = np.random.default_rng(args.seed)
        count = min(args.sample, len(index))
        numbers = sorted(rng.choice(len(index), count, replace=False).tolist())

    facts = [verification.facts(index, number, contract, prefer) for number in numbers]
    output = sys.stderr if args.output else sys.stdout
    for track in facts:
        for name, value in track.items():
            if args.verbose or name != "origins":
                print(f"{name:12} {value}", file=output)
        print(file=output)
    if args.picture:
        verification.write_picture(args.picture, index, numbers, contract, prefer)
    if args.output:
        atomic.write_json(args.output, {"tracks": facts})


class _Choice(NamedTuple):
    """What command line and configuration say is read, and as what."""

    features: FeatureIndex
    contract: Contract
    files: Mapping[str, str]  # of the splits
    prefer: str


def _chosen(args: argparse.Namespace) -> _Choice:
    files = split_files(args.splits or "")
    if not args.conf:
        if not args.feature_index:
            raise _no_index("")
        index = FeatureIndex(index_path(args.feature_index))
        return _Choice(index, index.contract, files, args.prefer or "h5")

    settings = conf.read([], args.conf)
    place = args.feature_index or settings["path.index"]
    if not place:
        raise _no_index(args.conf)
    contract = settings.contract()
    index = FeatureIndex(index_path(place), settings.roots, contract.hop)
    files = files or {name: settings[f"path.splits.{name}"] for name in SPLITS}
    return _Choice(index, contract, files, args.prefer or settings["data.prefer"])


def _no_index(where: str) -> MillraceError:
    remedy = "Give --feature-index, or --conf with path.index"
    return MillraceError("no index to read", where, remedy)


if __name__ == "__main__":
    raise SystemExit(main())
