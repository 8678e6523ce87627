"""Train a speech recogniser on bucket parquets, alone or under torchrun, from its last checkpoint on.

Writes metrics.jsonl, TensorBoard events, checkpoints and, at the end, the model and metrics.json into
--output_dir.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

from millrace.asr.training.options import LOADERS, TrainOptions
from millrace.common import atomic, cli
from millrace.common.training import ranks
from millrace.common.training.settings import LoopSettings


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    parser.add_argument("--bucket_dir", required=True, help="folder of bucket_config.json, or that file")
    parser.add_argument(
        "--bucket_config", default="", help="calibrated_bs.json; without: --batch_seconds for all"
    )
    parser.add_argument("--output_dir", help="folder of the run (default: that of --metrics)")
    parser.add_argument("--metrics", help="output, written last: metrics.json (default: in --output_dir)")
    parser.add_argument(
        "--model", default="ctc", help="name of a model, or a folder that holds one (default: ctc)"
    )
    parser.add_argument("--model_path", default="", help="the same as --model, in its older spelling")
    parser.add_argument(
        "--model_options", default={}, type=cli.json_object, help="JSON object of the model's options"
    )
    parser.add_argument(
        "--batch_seconds", type=cli.positive_float, default=240.0, help="padded seconds of a batch"
    )
    parser.add_argument(
        "--window",
        type=cli.positive_int,
        default=TrainOptions.window,
        help="rows sorted by duration at a time",
    )
    parser.add_argument(
        "--num_workers", type=cli.count, default=2, help="reading and decoding processes of each rank"
    )
    parser.add_argument(
        "--prefetch_factor", type=cli.positive_int, default=4, help="batches ahead of each worker"
    )
    parser.add_argument(
        "--max_open_tars", type=cli.positive_int, default=64, help="open tars of each process"
    )
    parser.add_argument(
        "--max_bad_fraction", type=float, default=0.01, help="share of unusable samples allowed"
    )
    parser.add_argument(
        "--eval_samples", type=cli.positive_int, default=1000, help="rows of dev and test, at most"
    )
    parser.add_argument("--loader", choices=LOADERS, default="bucketed", help="others only to compare with")
    parser.add_argument(
        "--profile_steps", type=cli.count, default=0, help="profile so many steps instead of measuring all"
    )
    parser.add_argument("--threads", type=cli.positive_int, default=1, help="threads of torch in each rank")
    LoopSettings.add_arguments(parser)
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    folder = Path(args.output_dir or Path(args.metrics or "metrics.json").parent)
    ranks.end_with_launcher(signal.SIGKILL)
    import torch

    from millrace.asr.training import run as training_run

    torch.set_num_threads(args.threads)
    buckets = Path(args.bucket_dir)
    chosen = {name: getattr(args, name) for name in TrainOptions.__dataclass_fields__}
    chosen |= {"bucket_dir": str(buckets.parent if buckets.is_file() else buckets)}
    chosen |= {"model": args.model_path or args.model}
    summary = training_run.run(
        TrainOptions(**chosen), LoopSettings.from_args(args), folder, args.profile_steps
    )
    if summary:
        atomic.write_json(args.metrics or folder / "metrics.json", summary)
        cli.log.info("%s: %s", folder, json.dumps(summary["last_evaluation"]))


if __name__ == "__main__":
    raise SystemExit(main())
