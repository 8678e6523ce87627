"""Write the demo's image folder: scikit-learn's 1,797 handwritten digits, without a download."""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import atomic, cli


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument(
        "--index", type=Path, required=True, help="JSON file, written last, beside its folder"
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    folder = args.index.with_suffix("")
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        place = folder / ("train" if number % 5 else "val") / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255 / 16).astype("uint8")).save(place / f"{number:04d}.png")
    atomic.write_json(
        args.index, {"images": len(digits.target), "source": "scikit-learn's load_digits"}
    )
    cli.log.info("%d images in %s", len(digits.target), folder)


if __name__ == "__main__":
    raise SystemExit(main())
