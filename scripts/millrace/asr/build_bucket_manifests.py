"""Build bucket parquets of manifests whose samples lie in tars.

Input: parquet or JSONL manifests with the tar indices, or the speech lane's index.parquet, which
knows the offsets. Output: train/<bucket>.parquet, dev.parquet, test.parquet, tars.parquet,
rejects.jsonl, ledger.json, and, written last, bucket_config.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from millrace.asr.buckets import build as buckets
from millrace.asr.buckets.addresses import TarIndices, index_files, sweep
from millrace.asr.buckets.config import bucket_lines, output_folder
from millrace.asr.buckets.edges import edges_of
from millrace.asr.manifests import manifest as manifests
from millrace.common import cli, settings
from millrace.common.leaks import leakage

# Where the workflow keeps the speech lane's index, and the indices of tars.
SPEECH = "results/speech"
TAR_INDEX = "results/asr/tar_index"


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    files: dict[str, Any] = {"type": Path, "nargs": "+", "default": []}
    places = "train, dev and test manifests, a folder of them, or the speech index.parquet"
    places += f" (default, if no other is named: {SPEECH}/index.parquet)"
    add("--manifests", **files, help=places)
    for split in ("train", "dev", "test"):
        add(f"--{split}", **files, help=f"{split} manifests of any name")
    indices = f"tar indices, or folders of them (default: {TAR_INDEX})"
    add("--tar-index", type=Path, nargs="*", default=[], help=indices)
    sweep = "folder of the workflow's indices: delete those not given as --tar-index"
    add("--sweep", type=Path, help=sweep)
    root = "where relative tar paths start (default: the working folder)"
    add("--tar-root", default="", help=root)
    template = "JSONL: the tar of a row with shard_id only (default %(default)s)"
    add("--tar-template", default=manifests.TAR_TEMPLATE, help=template)
    path_map = "JSON object: prefixes of tar paths, and what they are on this machine"
    add("--path-map", type=cli.json_object, default={}, help=path_map)
    transcript = "of the speech index, to train on (default %(default)s)"
    add("--speech-transcript", choices=["human", "asr"], default="human", help=transcript)
    output = "folder of the buckets, or bucket_config.json in it (default: %(default)s)"
    add("--output", type=Path, default=Path("results/asr/buckets"), help=output)
    edges = "seconds, or `default`, 0 3 5 7 10 15 20 30 (default: default)"
    add("--edges", nargs="+", default=["default"], help=edges)
    settings.add_arguments(parser, buckets.BucketChoices)
    errors = "share of rows in error that is allowed (default %(default)s)"
    add("--max-error-fraction", type=float, default=0.1, help=errors)
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    index = Path(SPEECH, "index.parquet")
    if not (args.manifests or args.train or args.dev or args.test) and index.exists():
        args.manifests = [index]
        args.tar_root = args.tar_root or f"{SPEECH}/shards"
    named = {
        "train": args.train,
        "dev": args.dev,
        "test": args.test,
    }
    how = (args.tar_root, args.tar_template, f"{args.speech_transcript}_transcript", args.path_map)
    splits = manifests.scanned(args.manifests, named, *how)
    given = args.tar_index or list(filter(Path.is_dir, [Path(TAR_INDEX)]))
    indices = None
    if not splits[0].has_offsets:
        indices = TarIndices(index_files(given))
    edges = edges_of(args.edges)
    choices = settings.from_args(buckets.BucketChoices, args, edges=edges)
    folder = output_folder(args.output)
    with cli.Progress(
        sum(manifest.rows for manifest in splits), "rows", "manifests read"
    ) as progress:
        ledgers = buckets.build(splits, indices, folder, choices, progress.advance)
    for ledger in ledgers:
        cli.log.info("%s", ledger.line())
        for line in leakage.lines(ledger):
            cli.log.info("%s", line)
    buckets.check_errors(ledgers, args.max_error_fraction, folder)
    for line in bucket_lines(folder):
        cli.log.info("%s", line)
    for path in sweep(args.sweep, index_files(given)) if args.sweep else ():
        cli.log.info("removed %s, of a partition that is no more", path)


if __name__ == "__main__":
    raise SystemExit(main())
