"""Make a manifest: segments checked, with error rates; what was rejected.

Of one partition (--partition), as the workflow keeps it in step with the corpus in
results/speech/partitions; or of a country (--country), without the workflow:
<country>_manifest.csv, <country>_splits.csv and <country>_rejects.csv. Splits that are drawn stay.
A manifest that is there is not written over.
"""

from __future__ import annotations

import argparse

import pyarrow.parquet as pq

from millrace.common import atomic, cli, jsonl
from millrace.common.workflow import placements
from millrace.speech import sources
from millrace.speech.country import by_hand
from millrace.speech.manifest import build as manifest
from millrace.speech.manifest.segments import Limits

# Splits that are drawn stand in the splits CSV, where they may be changed.
_FRACTIONS = {"train": 0.9, "validation": 0.05, "test": 0.05}
_OUTPUTS = {
    "manifest": "segments (parquet)",
    "recordings": "recordings with their split and hours (JSON)",
    "rejects": "what was rejected, and why (JSONL)",
    "ledger": "counts (JSON)",
}


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--partition", help="partition file (JSON); or --country")
    add("--country", help="folder of --countries-root")
    add("--countries-root", help="folder of the countries (default: countries)")
    roots = "folders that audio of --country may lie in, beside --countries-root"
    add("--audio-roots", nargs="+", default=[], metavar="FOLDER", help=roots)
    add(
        "--manifest-dir",
        default="manifests",
        help="output of --country: folder (default %(default)s)",
    )
    add(
        "--min-duration", type=cli.positive_float, default=3.0, help="seconds (default %(default)s)"
    )
    add(
        "--max-duration",
        type=cli.positive_float,
        default=20.0,
        help="seconds (default %(default)s)",
    )
    add(
        "--normalise-text",
        type=lambda text: {"True": True, "False": False}.get(text, text),
        choices=(True, False),
        default=True,
        help="for the error rates computed here (default True)",
    )
    for name, what in _OUTPUTS.items():
        add(f"--{name}", help=f"output of --partition: {what}")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    limits = Limits(args.min_duration, args.max_duration, args.normalise_text)
    outputs = [getattr(args, name) for name in _OUTPUTS]
    is_partition = bool(args.partition)
    if is_partition == bool(args.country) or is_partition != all(outputs):
        make_parser().error("give --partition with its four outputs, or --country")
    if args.country:
        settings = sources.Settings(
            args.countries_root or "countries",
            "",
            _FRACTIONS,
            train_subset_hours=500,
            partition_hours=1e6,
            audio_roots=args.audio_roots,
        )
        generated = by_hand.generate(
            args.country, sources.collect, settings, args.manifest_dir, limits
        )
        cli.log.info("%s", generated.line())
        for warning in generated.warnings:
            cli.log.warning("%s", warning)
        return

    partition = placements.read_partition(args.partition)
    result = manifest.generate(partition, limits)
    with atomic.replacing(args.manifest) as partial:
        pq.write_table(result.table(), partial, compression="zstd")
    atomic.write_json(args.recordings, result.recordings)
    jsonl.write_lines(args.rejects, result.rejects)
    atomic.write_json(args.ledger, result.ledger.as_dict())
    cli.log.info("%s", manifest.line(partition["partition"], result.ledger))
    for reject in result.rejects:
        if reject["segment"] is None:
            cli.log.warning("%s is left out: %s", reject["file"], reject["detail"])
    for recording in result.recordings:
        for warning in recording["warnings"]:
            cli.log.warning("%s: %s", recording["source_audio_path"], warning)


if __name__ == "__main__":
    raise SystemExit(main())
