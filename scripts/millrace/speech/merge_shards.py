"""Gather a country's shards: final CSV, index, rejects, ledger, NeMo manifests; sweep stale files.

Fails when segments are missing from the balance, or when more are in error than allowed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.common import atomic, cli, jsonl
from millrace.speech.columns import INDEX_SCHEMA
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import copies, tables
from millrace.speech.country import ledger as country_ledger
from millrace.speech.names import safe_name
from millrace.speech.shards import sweep


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--country", required=True, help="country file of the partitions (JSON)")
    add("--manifest-dir", required=True, help="folder that holds partitions/<id>/manifest.parquet")
    add("--shards-dir", required=True, help="folder that holds the tars and partitions/<id>/index.parquet")
    add("--max-error-fraction", type=float, default=0.1, help="share of errors allowed (default %(default)s)")
    add("--manifest", required=True, help="output: <country>_manifest.csv with final statuses")
    add("--index", required=True, help="output: index of the country's segments (parquet)")
    add("--rejects", required=True, help="output: what was rejected, and why (CSV)")
    add("--ledger", required=True, help="output: counts (JSON)")
    add("--nemo", required=True, nargs=3, metavar="JSONL", help=f"outputs: NeMo manifests of {SPLITS}")
    add("--error-list", required=True, help="where the rejects go when there are too many")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    country = jsonl.read(args.country)
    names, folders = country["partitions"], (args.manifest_dir, args.shards_dir)
    parts = [tables.PartitionFiles(name, *folders) for name in names]
    index = pa.concat_tables([INDEX_SCHEMA.empty_table(), *(part.shard_rows() for part in parts)])
    repeated = copies.find(lambda names: [index.select(names)])
    index = copies.without(index, repeated)
    for part in parts:
        part.copies = dict(zip(repeated["key"], repeated["detail"], strict=True))
    balance = country_ledger.balance(country, parts, index.num_rows)
    tables.write_csv(args.error_list, tables.REJECT_COLUMNS, balance.rejects)
    names_of_all = (jsonl.read(path)["country"] for path in sorted(Path(args.country).parent.glob("*.json")))
    others = [name for name in names_of_all if name != country["country"]]
    country_ledger.check_errors(balance, args.max_error_fraction, args.error_list, others)
    rows = (row for part in parts for row in part.final_rows())
    tables.write_csv(args.manifest, tables.MANIFEST_COLUMNS, rows)
    tables.write_csv(args.rejects, tables.REJECT_COLUMNS, balance.rejects)
    nemo_rows = index.select(tables.NEMO_COLUMNS).to_pylist()
    tables.write_nemo_manifests(dict(zip(SPLITS, args.nemo, strict=True)), nemo_rows)
    shards_dir, manifest_dir = Path(args.shards_dir), Path(args.manifest_dir)
    for path in sweep.sweep_country(shards_dir, manifest_dir, safe_name(country["country"]), set(names)):
        cli.log.info("removed %s: its recordings are gone", path)
    atomic.write_json(args.ledger, balance.as_dict(country) | {"copies": copies.pairs(repeated)})
    with atomic.replacing(args.index) as partial:
        pq.write_table(index, partial, compression="zstd")
    total = balance.segments
    message = "%s: %d segments found = %d in shards + %d rejected"
    cli.log.info(message, country["country"], total.rows_in, total.rows_out, total.rows_rejected)


if __name__ == "__main__":
    raise SystemExit(main())
