"""Merge the countries' indices and their ledgers; sweep countries that are gone."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common import atomic, cli, jsonl
from millrace.common.errors import own_file
from millrace.common.ledger import Ledger
from millrace.speech.columns import INDEX_SCHEMA
from millrace.speech.shards import sweep


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--indices", required=True, nargs="+", help="index of each country (parquet)")
    add("--ledgers", required=True, nargs="+", help="ledger of each country (JSON)")
    add(
        "--gone",
        nargs="*",
        default=[],
        help="lists of countries whose files are to be deleted (JSON)",
    )
    add("--shards-dir", default="", help="their tars lie here; with --gone")
    add("--manifest-dir", default="", help="their manifests lie here; with --gone")
    add("--index", required=True, help="output: index of all segments (parquet)")
    add("--ledger", required=True, help="output: ledgers of all countries and their total (JSON)")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    countries = [jsonl.read(path) for path in args.ledgers]
    ledgers = []
    for path, country in zip(args.ledgers, countries, strict=True):
        with own_file(path):
            ledgers.append(Ledger.from_dict(country["segments"]))
    total = Ledger.total("speech_merge_index", "all", ledgers)
    rows = 0
    with (
        atomic.replacing(args.index) as partial,
        pq.ParquetWriter(partial, INDEX_SCHEMA, compression="zstd") as out,
    ):
        for piece in _pieces(args.indices):
            out.write_table(piece.cast(INDEX_SCHEMA))
            rows += piece.num_rows
    total.rows_out = rows
    total.check()
    atomic.write_json(args.ledger, {"total": total.as_dict(), "countries": countries})
    for country in (country for path in args.gone for country in jsonl.read(path)):
        for path in sweep.sweep_gone(Path(args.shards_dir), Path(args.manifest_dir), country):
            cli.log.info("removed %s: its country is gone", path)
    cli.log.info("%d segments of %d countries in the index", rows, len(countries))


def _pieces(indices: Iterable[str]) -> Iterator[pa.Table]:
    for path in indices:
        with own_file(path), pq.ParquetFile(path) as source:
            for group in range(source.num_row_groups):
                yield source.read_row_group(group)


if __name__ == "__main__":
    raise SystemExit(main())
