"""Make the manifest of one partition: segments checked, with error rates; what was rejected.

Input is a partition file as the workflow keeps it in step with the corpus (results/speech/partitions/).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow.parquet as pq

from millrace.common import atomic, cli, jsonl
from millrace.common.workflow import placements
from millrace.speech.manifest import build as manifest
from millrace.speech.manifest.segments import Limits


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    add = parser.add_argument
    add("--partition", required=True, help="partition file (JSON)")
    add("--min-duration", type=cli.positive_float, default=3.0, help="seconds (default %(default)s)")
    add("--max-duration", type=cli.positive_float, default=20.0, help="seconds (default %(default)s)")
    flag = {"type": lambda text: {"True": True, "False": False}.get(text, text), "choices": (True, False)}
    add("--normalise-text", **flag, default=True, help="for the error rates computed here (default True)")
    add("--manifest", required=True, help="output: segments (parquet)")
    add("--recordings", required=True, help="output: recordings with their split and hours (JSON)")
    add("--rejects", required=True, help="output: what was rejected, and why (JSONL)")
    add("--ledger", required=True, help="output: counts (JSON)")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    partition = placements.read_partition(args.partition)
    limits = Limits(args.min_duration, args.max_duration, args.normalise_text)
    result = manifest.generate(partition, limits)
    with atomic.replacing(args.manifest) as partial:
        pq.write_table(result.table(), partial, compression="zstd")
    # For the next parse (millrace.speech.sources): a new output would make all partitions pending.
    atomic.write_bytes(Path(args.manifest).with_name("alignments.json"), jsonl.canonical(result.read))
    damaged = Path(args.manifest).with_name("damaged.json")
    atomic.write_json(damaged, result.damaged) if result.damaged else damaged.unlink(missing_ok=True)
    atomic.write_json(args.recordings, result.recordings)
    jsonl.write_lines(args.rejects, result.rejects)
    ledger = result.ledger
    atomic.write_json(args.ledger, ledger.as_dict())
    counts = ledger.rows_in, ledger.rows_out, ledger.rows_rejected
    reasons = f" ({ledger.reasons()})" if ledger.rows_rejected else ""
    message = "%s: %d segments found, %d in the manifest, %d rejected%s"
    cli.log.info(message, partition["partition"], *counts, reasons)
    for recording in result.recordings:
        for warning in recording["warnings"]:
            cli.log.warning("%s: %s", recording["source_audio_path"], warning)


if __name__ == "__main__":
    raise SystemExit(main())
