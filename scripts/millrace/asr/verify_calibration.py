"""Train on all calibrated buckets, shuffled, on all ranks, and check that every batch fits.

What calibrate_bucket_bs leaves open: buckets in turn, budgets that give shorter clips more rows, several
ranks. GB are 2**30 bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.common.training.settings import PRECISIONS


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    parser.add_argument("--bucket-config", type=Path, required=True, help="bucket_config.json")
    parser.add_argument("--calibrated", type=Path, required=True, help="calibrated_bs.json")
    parser.add_argument(
        "--output", type=Path, required=True, help="output: peak and steps of every rank (JSON)"
    )
    parser.add_argument(
        "--model", default="ctc", help="name of a model, or a folder that holds one (default: ctc)"
    )
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
    parser.add_argument("--soak_steps", type=cli.positive_int, default=200, help="steps (default: 200)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="(default: auto)")
    parser.add_argument("--num_workers", type=cli.count, default=0, help="loader processes of each rank")
    parser.add_argument(
        "--max_bad_fraction", type=float, default=0.01, help="share of unusable samples allowed"
    )
    parser.add_argument("--seed", type=int, default=42, help="seed of model and shuffles")
    return parser


@cli.step
def main(argv: list[str] | None = None) -> None:
    args = vars(make_parser().parse_args(argv))
    from millrace.asr.calibration import verify as verification
    from millrace.asr.calibration.bucket import Choices

    calibrated, output = args.pop("calibrated"), args.pop("output")
    verification.verify(Choices(**args), calibrated, output)


if __name__ == "__main__":
    raise SystemExit(main())
