"""Train on all calibrated buckets, shuffled, on all ranks, and check that every batch fits.

What calibrate_bucket_bs leaves open: buckets in turn, budgets that give shorter clips more rows,
several ranks. By hand: torchrun --nproc_per_node=8 -m millrace.asr.verify_calibration
--bucket-config results/asr/buckets/bucket_config.json --calibration
results/asr/calibration/calibrated_bs.json --output verification.json. GB are 2**30 bytes.
"""

from __future__ import annotations

import argparse

from millrace.asr.calibration import options
from millrace.common import cli, processes


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    options.add_arguments(parser)
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    processes.take_training_environment()
    from millrace.asr.calibration import steps

    steps.verify(*options.verification(args))


if __name__ == "__main__":
    raise SystemExit(main())
