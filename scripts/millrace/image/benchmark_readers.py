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
    add("--output", type=Path, help="JSON file to write: images per second of each reader")
    return parser


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    from millrace.image.training import readers

    rows = []
    for name, reader in readers.readers(args.raw_data_dir, args.records, args.only, args.images):
        for workers in args.workers:
            row = readers.measure(name, reader, workers)
            text = "{reader}, {workers} workers: {images_per_second:.0f} images/s"
            cli.log.info("%s", text.format(**row))
            rows.append(row)
    if args.output:
        atomic.write_json(args.output, {"readers": rows})


if __name__ == "__main__":
    raise SystemExit(main())
