"""Gather a country's shards: final CSV, index, rejects, ledger, lists of shards;
leave out copies of held-out sound; sweep stale files.

Fails when segments are missing from the balance, or when more are in error than allowed. Partition
after partition is read, so that memory does not grow with the country.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from millrace.common import atomic, cli, jsonl
from millrace.common.leaks.leakage import BY_SOUND, NOT_AT_ALL
from millrace.speech.columns import INDEX_SCHEMA
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import copies, repeats, segments, tables
from millrace.speech.country import ledger as country_ledger
from millrace.speech.names import safe_name
from millrace.speech.shards import sweep


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--country",
        required=True,
        help="country file of the partitions (JSON)",
    )
    add(
        "--held-out", required=True, help="partitions of validation and test, all countries' (JSON)"
    )
    add("--manifest-dir", required=True, help="folder that holds partitions/<id>/manifest.parquet")
    add(
        "--shards-dir",
        required=True,
        help="folder that holds the tars and partitions/<id>/index.parquet",
    )
    add(
        "--copies",
        choices=(BY_SOUND, NOT_AT_ALL),
        default=BY_SOUND,
        help="whether copies of held-out sound are left out (default %(default)s)",
    )
    add(
        "--max-error-fraction",
        type=float,
        default=0.1,
        help="share of errors allowed (default %(default)s)",
    )
    add("--manifest", required=True, help="output: <country>_manifest.csv with final statuses")
    add("--index", required=True, help="output: index of the country's segments (parquet)")
    add("--rejects", required=True, help="output: what was rejected, and why (CSV)")
    add("--ledger", required=True, help="output: counts (JSON)")
    add(
        "--shard-lists",
        required=True,
        nargs=3,
        metavar="TXT",
        help=f"outputs: the tars of {SPLITS}, one a line",
    )
    add("--error-list", required=True, help="where the rejects go when there are too many")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    country = jsonl.read(args.country)
    folders = args.manifest_dir, args.shards_dir
    parts = [tables.PartitionFiles(name, *folders) for name in country["partitions"]]
    found: list[copies.Copy] = []
    if args.copies == BY_SOUND:
        held_out = copies.held_out(args.held_out, args.shards_dir)
        found = copies.find([part.index for part in parts], held_out)
    segments.leave_out(parts, found)
    shards, rows_out = segments.shards_of(parts)

    balance = country_ledger.Balance(country, parts)
    tables.write_csv(args.error_list, tables.REJECT_COLUMNS, balance.rejects())
    balance.check(rows_out)
    balance.check_errors(args.max_error_fraction, args.error_list)

    rows = (row for part in parts for row in part.final_rows())
    tables.write_csv(args.manifest, tables.MANIFEST_COLUMNS, rows)
    with atomic.replacing(args.rejects) as partial:
        shutil.copyfile(args.error_list, partial)
    for split, path in zip(SPLITS, args.shard_lists, strict=True):
        atomic.write_text(path, "".join(f"{shard}\n" for shard in shards[split]))
    gone = sweep.sweep_country(
        Path(args.shards_dir),
        Path(args.manifest_dir),
        safe_name(country["country"]),
        set(country["partitions"]),
    )
    for path in gone:
        cli.log.info("removed %s: its recordings are gone", path)
    pairs = repeats.pairs(found)
    atomic.write_json(args.ledger, balance.as_dict() | {"left_out_copies": pairs})
    tables.write_index(args.index, (part.shard_rows(INDEX_SCHEMA.names) for part in parts))

    total = balance.segments
    message = "%s: %d segments found = %d in shards + %d rejected"
    cli.log.info(message, country["country"], total.rows_in, total.rows_out, total.rows_rejected)
    for pair in pairs:
        cli.log.warning("%s", repeats.line(pair))


if __name__ == "__main__":
    raise SystemExit(main())
