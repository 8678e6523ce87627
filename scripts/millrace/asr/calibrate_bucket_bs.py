"""Find the largest batch of a bucket that trains within a memory limit, and soak it.

An --output that holds already, because nothing in its key has changed, is kept. `--mode verify_all` soaks the
merged calibrated_bs.json (--calibrated) on all ranks: torchrun --nproc_per_node=8 -m
millrace.asr.calibrate_bucket_bs --mode verify_all --calibrated results/asr/calibration/calibrated_bs.json ...
GB are 2**30 bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.common.training.settings import PRECISIONS


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    parser.add_argument(
        "--mode", choices=["bucket", "verify_all"], default="bucket", help="(default: bucket)"
    )
    parser.add_argument("--bucket", default="", help="bucket to calibrate, such as b_7_10")
    parser.add_argument(
        "--bucket-config", "--bucket_config", type=Path, required=True, help="bucket_config.json"
    )
    parser.add_argument("--calibrated", type=Path, help="verify_all: calibrated_bs.json")
    parser.add_argument(
        "--output", type=Path, required=True, help="output: <bucket>.json, or the verification"
    )
    parser.add_argument(
        "--model", default="ctc", help="name of a model, or a folder that holds one (default: ctc)"
    )
    parser.add_argument("--model_path", default="", help="the same as --model, in its older spelling")
    parser.add_argument(
        "--model_options", default={}, type=cli.json_object, help="JSON object of the model's options"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="32-true", help="number format of the training"
    )
    parser.add_argument(
        "--gradient_checkpointing", type=int, default=0, choices=[0, 1], help="as in training"
    )
    parser.add_argument("--grad_acc", type=cli.positive_int, default=1, help="batches of an optimiser step")
    parser.add_argument(
        "--max_memory_gb", type=float, default=0.0, help="limit of the peak (default: see --headroom)"
    )
    parser.add_argument(
        "--headroom", type=float, default=0.1, help="share of the device left free without a limit"
    )
    parser.add_argument("--start_bs", type=cli.positive_int, default=32, help="batch size of the first trial")
    parser.add_argument(
        "--min_bs", type=cli.positive_int, default=1, help="smallest batch size worth training"
    )
    parser.add_argument("--max_bs", type=cli.positive_int, default=4096, help="largest batch size to try")
    parser.add_argument(
        "--steps", type=cli.positive_int, default=5, help="training steps of a trial, at least 2"
    )
    parser.add_argument(
        "--soak-steps", "--soak_steps", type=int, default=200, help="steps of the soak; 0: none"
    )
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, or a name to estimate for, such as h200"
    )
    parser.add_argument(
        "--world-size", "--world_size", type=cli.positive_int, default=1, help="ranks of the training"
    )
    parser.add_argument("--num_workers", type=cli.count, default=0, help="loader processes of the soak")
    parser.add_argument(
        "--max_bad_fraction", type=float, default=0.01, help="share of unusable samples allowed"
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of model and shuffles")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    from millrace.asr.calibration import bucket as bucket_calibration

    choices = bucket_calibration.Choices.from_flags(vars(args))
    if args.mode == "verify_all":
        from millrace.asr.calibration import verify as verification

        verification.verify(choices, args.calibrated, args.output)
        return
    found, kept = bucket_calibration.calibrate_bucket(choices, args.output)
    if found.get("empty"):
        cli.log.info("%s has no rows", choices.bucket)
        return
    how = "kept" if kept else "measured" if found["measured"] else "estimated"
    cli.log.info(
        "%s (%s): %d rows, limited by %s; peak %.3f GB of %.3f GB",
        found["bucket"],
        how,
        found["batch_size"],
        found["limited_by"],
        found["peak_memory_gb"],
        found["key"]["limit_gb"],
    )


if __name__ == "__main__":
    raise SystemExit(main())
