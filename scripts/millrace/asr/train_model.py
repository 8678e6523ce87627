"""Train a speech recogniser on bucket parquets, alone or under torchrun, from its last checkpoint
on.

Writes metrics.jsonl, TensorBoard events, checkpoints and, at the end, the model and metrics.json
into --output-dir. On SIGTERM and SIGUSR1 it finishes its step, saves, and exits with code 75, on
which Slurm can requeue it; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from millrace.asr.training import options
from millrace.asr.training.options import TrainOptions
from millrace.common import atomic, cli, processes, settings
from millrace.common.training import ranks
from millrace.common.training.settings import LoopSettings


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--bucket-dir",
        "--bucket_dir",
        required=True,
        help="folder of bucket_config.json, or that file",
    )
    # The original script calls it --bucket_config.
    add(
        "--calibration",
        "--bucket_config",
        help="calibrated_bs.json; without: --batch-seconds for all",
    )
    add("--output-dir", "--output_dir", help="folder of the run (default: that of --metrics)")
    add("--metrics", help="output, written last: metrics.json (default: in --output-dir)")
    options.add_arguments(parser)
    # The original script's spellings of what are options of the model, and a split of the buckets,
    # here.
    add(
        "--language-tag-mode", "--language_tag_mode", help="the same as this key of --model-options"
    )
    eval_file = (
        "dev.parquet of buckets, or the manifest that it was made of (default: the buckets' own)"
    )
    add(
        "--eval-file",
        "--eval_file",
        default="",
        help=eval_file,
    )
    add(
        "--profile",
        type=int,
        choices=[0, 1],
        help="1: profile --profile-steps steps, or 20; 0: none",
    )
    profile_steps = "profile so many steps instead of measuring all"
    add(
        "--profile-steps",
        "--profile_steps",
        type=cli.count,
        default=0,
        help=profile_steps,
    )
    add(
        "--threads",
        type=cli.positive_int,
        default=1,
        help="threads of torch in each rank",
    )
    settings.add_arguments(parser.add_argument_group("training"), LoopSettings)
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    folder = Path(args.output_dir or Path(args.metrics or "metrics.json").parent)
    ranks.end_with_launcher(signal.SIGKILL)
    processes.take_training_environment()
    import torch

    from millrace.asr.training import run as training_run
    from millrace.common.training import seeding

    torch.set_num_threads(args.threads)
    seeding.one_interop_thread()
    if args.language_tag_mode:
        args.model_options = {**args.model_options, "language_tag_mode": args.language_tag_mode}
    profile_steps = 0
    if args.profile != 0:
        profile_steps = args.profile_steps or 20 * (args.profile or 0)
    chosen = settings.from_args(TrainOptions, args)
    summary = training_run.run(
        chosen, settings.from_args(LoopSettings, args), folder, profile_steps
    )
    if summary:
        atomic.write_json(args.metrics or folder / "metrics.json", summary)
        # What is measured only has no model, and is not tested.
        kept = (
            "the model and metrics.json are"
            if "test" in summary
            else "metrics.json, but no model, is"
        )
        cli.log.info("%s: %d steps done; %s there", folder, summary["optimizer_steps"], kept)


if __name__ == "__main__":
    raise SystemExit(main())
