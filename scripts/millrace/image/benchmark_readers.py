"""Measure ways of reading images: an image folder, record files whole or by record.

`--only h5` does what the original h5_test.py does, `--only image_folder` what image_folder_test.py
does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import atomic, cli


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--raw-data-dir", type=Path, help="image folder")
    add("--records", type=Path, nargs="*", default=[], help="folders of train/ with record files")
    add("--only", choices=("h5", "image_folder"), default="", help="measure these readers only")
    add(
        "--workers",
        type=cli.count,
        nargs="+",
        default=[0, 1, 2],
        help="reading processes, each is measured",
    )
    add("--images", type=cli.count, default=2000, help="images of a pass at most; 0: all")
    add("--seed", type=cli.count, default=42, help="of random orders")
    add(
        "--output",
        type=Path,
        required=True,
        help="page to write; a JSON file of the same name beside it",
    )
    return parser


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    from millrace.image.training import readers, report

    rows = []
    text = "{reader}, {workers} workers, {state}: {images_per_second:.0f} images/s"
    cold = (args.workers[0], True)
    states = [*((count, False) for count in args.workers), cold]
    which = (args.raw_data_dir, args.records, args.only, args.images, args.seed)
    for name, reader in readers.readers(*which):
        for workers, is_cold in states:
            row = readers.measure(name, reader, workers, is_cold)
            cli.log.info("%s", text.format(**row))
            rows.append(row)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_json(args.output.with_suffix(".json"), {"readers": rows})
    atomic.write_text(args.output, report.readers_page(rows))


if __name__ == "__main__":
    raise SystemExit(main())
