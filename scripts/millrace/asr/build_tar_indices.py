"""Find where every member of a partition of tars lies, reading their headers only.

Tars that are damaged, cut or missing do not stop the others: the report lists each with what was readable and
why.
"""

from __future__ import annotations

import argparse
import json
import os

from millrace.asr.tars.index import write_index
from millrace.asr.tars.partition import ScanLog, TarPartition, manifest_tars, read_partition, scan_all
from millrace.asr.tars.scan import CHAINS
from millrace.common import atomic, cli
from millrace.common.errors import MillraceError


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--partition", help="JSON file with the id and the tars of the partition")
    source.add_argument("--tars", nargs="+", help="tars, by hand")
    source.add_argument("--manifest-dir", help="folder with manifests: all tars which they name")
    parser.add_argument("--output", required=True, help="index (parquet) to write")
    parser.add_argument(
        "--report", required=True, help="report (JSON) to write: every tar with status and reason"
    )
    parser.add_argument(
        "--threads", type=cli.positive_int, default=os.cpu_count() or 1, help="tars scanned at once"
    )
    parser.add_argument(
        "--chains", type=cli.positive_int, default=CHAINS, help="chains of headers at once in one tar"
    )
    parser.add_argument(
        "--max-failed",
        type=float,
        default=1.0,
        help="fail above this share of tars without any index (default 1: never)",
    )
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    if args.partition:
        partition = read_partition(args.partition)
    else:
        partition = TarPartition(
            "by-hand", list(dict.fromkeys(args.tars or manifest_tars(args.manifest_dir)))
        )
    log = ScanLog(partition)
    records = write_index(args.output, log.watch(scan_all(partition.tars, args.threads, args.chains)))
    report = log.report(records)
    # ASCII JSON: a path that is not UTF-8 is kept as surrogates.
    atomic.write_text(args.report, json.dumps(report, indent=2, sort_keys=True) + "\n")
    failed = [record for record in records if record.failed]
    cli.log.info(
        "%s", ", ".join(f"{count} {status}" for status, count in report["statuses"].items()) or "no tars"
    )
    if len(failed) > args.max_failed * len(records):
        raise MillraceError(
            f"{len(failed)} of {len(records)} tars could not be indexed, first {failed[0].path}: {failed[0].reason}",
            where=f"partition {partition.id}",
            remedy=f"See {args.report} for all of them; mend or remove them, then run snakemake asr_data",
        )


if __name__ == "__main__":
    raise SystemExit(main())
