"""Read a track of a split whole, and print its facts and values.

python -m millrace.music.verify_h5_sample --conf config/dvi-h5.yaml --split train --index 0
"""

from __future__ import annotations

import argparse

from millrace.common import cli
from millrace.common.errors import MillraceError
from millrace.music.features import verification
from millrace.music.features.index import FeatureIndex
from millrace.music.features.roots import split_name
from millrace.music.training import conf


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--conf", required=True, help="training configuration (YAML): its path has index, splits")
    add("--split", default="train", help="train, valid or test")
    add("--index", type=cli.count, default=0, help="number of a recording in the split, from 0")
    add("--verbose", action="store_true", help="print also where its values lie")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    settings = conf.read([], args.conf)
    split = split_name(args.split)
    key = f"path.splits.{split}"
    for name in ("path.index", key):
        if not settings[name]:
            raise MillraceError(f"{name} is not set", args.conf, "Set it in the configuration")

    index = FeatureIndex(settings["path.index"], settings.roots)
    number = verification.number_of(index, settings[key], split, args.index)
    facts = verification.facts(index, number, settings.model.shingling_len)
    for name, value in facts.items():
        if args.verbose or name not in verification.PLACE:
            print(f"{name:12} {value}")


if __name__ == "__main__":
    raise SystemExit(main())
