"""Build bucket parquets of manifests whose samples lie in tars.

Input: parquet or JSONL manifests with the tar indices, or the speech lane's index.parquet, which knows the
offsets. Output: train/<bucket>.parquet, dev.parquet, test.parquet, tars.parquet, rejects.jsonl, ledger.json,
and, written last, bucket_config.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.asr.buckets import build as buckets
from millrace.asr.buckets import edges as bucket_edges
from millrace.asr.buckets.join import TarIndices, index_files, sweep
from millrace.asr.manifests.manifest import named_manifests, sorted_files
from millrace.common import cli


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    manifests = (
        "train, dev and test manifests (.parquet or .jsonl), a folder of them, or the speech index.parquet"
    )
    parser.add_argument("--manifests", type=Path, nargs="+", default=[], help=manifests)
    for split in ("train", "dev", "test"):
        parser.add_argument(
            f"--{split}", type=Path, nargs="+", default=[], help=f"{split} manifests of any name"
        )
    parser.add_argument(
        "--tar-index", type=Path, nargs="*", default=[], help="tar indices, or folders of them"
    )
    parser.add_argument(
        "--sweep", type=Path, help="folder of the workflow's indices: remove those no longer named"
    )
    parser.add_argument("--tar-root", default="", help="where relative tar paths start (default: this one)")
    parser.add_argument(
        "--tar-template", default="audio_{shard_id}.tar", help="JSONL: the tar of a row with shard_id only"
    )
    parser.add_argument(
        "--speech-transcript", choices=["human", "asr"], default="human", help="transcript to train on"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="output: bucket_config.json; the buckets lie beside it"
    )
    parser.add_argument(
        "--edges", nargs="+", default=["seed"], help="seconds, or seed (0 3 5 7 10 15 20 30), or auto"
    )
    parser.add_argument("--num-buckets", type=cli.positive_int, default=7, help="buckets of --edges auto")
    parser.add_argument(
        "--last-edge", type=cli.positive_float, default=30.0, help="last edge of --edges auto, in seconds"
    )
    parser.add_argument(
        "--over-max", choices=["keep", "drop"], default="keep", help="what is longer than the last edge"
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of the order inside a bucket")
    parser.add_argument(
        "--max-error-fraction", type=float, default=0.1, help="share of rows in error that is allowed"
    )
    parser.add_argument("--row-group", type=cli.positive_int, default=1 << 16, help="rows per row group")
    parser.add_argument("--threads", type=cli.positive_int, default=2, help="(default 2)")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    named = sorted_files(args.manifests, {"train": args.train, "dev": args.dev, "test": args.test})
    found = named_manifests(named, args.tar_root, args.tar_template, f"{args.speech_transcript}_transcript")
    index = None if "speech" in named else TarIndices(index_files(args.tar_index))
    edges = {"seed": bucket_edges.SEED_EDGES, "auto": None}.get(args.edges[0], args.edges)
    choices = buckets.BucketChoices(
        edges=bucket_edges.checked_edges(edges) if edges else None,
        auto=args.num_buckets,
        last_edge=args.last_edge,
        keep_over_max=args.over_max == "keep",
        seed=args.seed,
        threads=args.threads,
        row_group=args.row_group,
    )
    with cli.Progress(sum(manifest.rows for manifest in found), "rows", "manifests read") as progress:
        ledgers = buckets.build(found, index, args.output.parent, choices, progress.advance)
    for ledger in ledgers:
        cli.log.info("%s", ledger.line())
    buckets.check_errors(ledgers, args.max_error_fraction, args.output.parent)
    for path in sweep(args.sweep, index_files(args.tar_index)) if args.sweep else ():
        cli.log.info("removed %s, of a partition that is no more", path)


if __name__ == "__main__":
    raise SystemExit(main())
