"""Index tars before they are opened, and say what samples they hold: index "train-*.tar"."""

from __future__ import annotations

import argparse

from millrace.common import cli, extras


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, "millrace.tars")
    parser.add_argument("command", choices=["index"], help="what to do")
    parser.add_argument("paths", nargs="+", help="tars, or patterns in quotes")
    where = "folder of the indices (default: .millrace beside the tars)"
    parser.add_argument("--cache-dir", help=where)
    parser.add_argument("--ids", default="key", help="key, or tar: as ids of open_tars")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    with extras.needed("asr", "millrace.tars"):
        from millrace.tars.index import open_indices, tar_paths
        from millrace.tars.samples import TarSamples

    tars = tar_paths(args.paths)
    samples = TarSamples.of(open_indices(tars, args.cache_dir), args.ids)
    cli.log.info("%d tars, %d samples, fields: %s", len(tars), len(samples), samples.fields)
    for reason, count in samples.skipped.items():
        cli.log.info("in no sample: %d members with a %s", count, reason)


if __name__ == "__main__":
    raise SystemExit(main())
