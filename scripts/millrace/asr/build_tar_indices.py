"""Find where every member of a partition of tars lies, reading their headers only.

A partition is a JSON file, {"id": "a-name", "tars": [{"path": "a.tar"}, {"path": "b.tar"}]}; the
workflow writes them to results/asr/partitions/, with size and mtime_ns of every tar. Tars that are
damaged, cut or missing do not stop the others: the report lists each with what was readable and
why.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from millrace.asr.tars import json_index
from millrace.asr.tars.index import write_index
from millrace.asr.tars.partition import ScanLog, read_partition, scan_all
from millrace.common import atomic, cli
from millrace.common.errors import MillraceError
from millrace.common.workflow import placements

# Where the workflow keeps partitions and their indices.
PARTITIONS = "results/asr/partitions"
INDICES = "results/asr/tar_index"


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    partition = f"JSON file with id and tars of the partition (default: all in {PARTITIONS})"
    add("--partition", help=partition)
    output = f"index (parquet) to write (default: {INDICES}/<partition>.parquet)"
    add("--output", help=output)
    report = "report (JSON) to write: every tar with status and reason (default: beside the index)"
    add("--report", help=report)
    threads = "tars scanned at once (default %(default)s: all cores)"
    add("--threads", type=cli.positive_int, default=os.cpu_count() or 1, help=threads)
    beside = "also write <tar>.index.json beside each tar, as the original script does"
    add("--json", action="store_true", help=beside)
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    if (args.output or args.report) and not args.partition:
        raise MillraceError("--output and --report are of one partition", remedy="Give --partition")
    if args.partition:
        paths = [args.partition]
    else:
        paths = sorted(Path(PARTITIONS).glob("*.json"))
    if not paths:
        remedy = (
            "Give --partition, or set asr.manifest_dir and run snakemake asr_data, which writes"
            " them"
        )
        raise MillraceError("no partition of tars is there", PARTITIONS, remedy)
    for path in paths:
        output = Path(args.output or f"{INDICES}/{Path(path).stem}.parquet")
        _build(args, path, output, args.report or output.with_suffix(".json"))


def _build(
    args: argparse.Namespace, path: str | Path, output: Path, report_path: str | Path
) -> None:
    placements.keep_draft(Path(path).parent)
    partition = read_partition(path)
    log = ScanLog(partition)
    scans = log.watch(scan_all(partition.tars, args.threads))
    if args.json:
        scans = json_index.written(scans)
    records = write_index(output, scans)
    report = log.report(records)
    # ASCII JSON: a path that is not UTF-8 is kept as surrogates.
    atomic.write_text(report_path, json.dumps(report, indent=2, sort_keys=True) + "\n")
    statuses = [f"{count} {status}" for status, count in report["statuses"].items()]
    cli.log.info("%s", ", ".join(statuses) or "no tars")


if __name__ == "__main__":
    raise SystemExit(main())
