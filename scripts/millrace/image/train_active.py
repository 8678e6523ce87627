"""Train a ResNet on record files: epoch n from those that the producer made during epoch n - 1.

The flags are those of PyTorch's ImageNet example. Writes metrics.jsonl, TensorBoard events, the
last and the best checkpoint and, at the end, report.html and metrics.json into --output-dir. The
same command goes on from the last checkpoint. On SIGTERM it finishes its step, saves, ends its
producer, and exits with code 75, on which Slurm can requeue it.
"""

from __future__ import annotations

import argparse
import signal
from dataclasses import asdict
from pathlib import Path

from millrace.common import atomic, cli, settings
from millrace.common.leaks import leakage
from millrace.common.training import ranks
from millrace.image.producer.sentry import Times, Trainer
from millrace.image.training import options
from millrace.image.training.options import PRODUCERS, TrainOptions


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("data", help="folder of train/ and val/, as create_records has made it")
    add("--local-scratch-dir", help="folder of the produced epochs (default: the same)")
    options.add_arguments(parser)
    add("--output-dir", help="folder of the run (default: that of --metrics, or named as --arch)")
    add("--metrics", help="output, written last: metrics.json (default: in --output-dir)")
    add("--report", type=Path, help="page of the run (default: report.html in --output-dir)")
    add("--threads", type=cli.positive_int, default=1, help="threads of torch in each rank")
    group = parser.add_argument_group("producer")
    add = group.add_argument
    add(
        "--producer",
        choices=PRODUCERS,
        default="none",
        help="child: start it; none: somebody else does",
    )
    add("--shuffle-pool", default="10", help="of a child: files shuffled together, or all")
    add("--allowed-ahead", type=cli.count, default=1, help="of a child: epochs made ahead")
    settings.add_arguments(group, Times)
    return parser


@cli.step(make_parser, cli.hyphenated)
def main(args: argparse.Namespace) -> None:
    chosen = settings.from_args(TrainOptions, args)
    times = settings.from_args(Times, args)
    settings.check(times, "train_active")
    folder = Path(args.output_dir or (Path(args.metrics).parent if args.metrics else args.arch))
    ranks.end_with_launcher(signal.SIGKILL)
    import torch

    from millrace.image.training import run as training_run

    torch.set_num_threads(args.threads)
    scratch = args.local_scratch_dir or args.data
    producer: list[str] = []
    if args.producer == "child":
        given = {"raw_data_dir": args.data, "local_scratch_dir": scratch}
        for name in ("seed", "shuffle_pool", "allowed_ahead", *asdict(times)):
            given[name] = getattr(args, name)
        producer = [f"--{name}={value}" for name, value in given.items()]
    side = Trainer(scratch, times)
    summary = training_run.run(chosen, Path(args.data), side, folder, producer)
    if summary:
        from millrace.image.training import report

        leaks = leakage.lines_of(Path(args.data, "train/ledger.json"))
        page = report.training_page(folder, summary, leaks)
        atomic.write_text(args.report or folder / "report.html", page)
        atomic.write_json(args.metrics or folder / "metrics.json", summary)
        cli.log.info("%s: %d epochs trained; metrics.json is there", folder, summary["epochs"])


if __name__ == "__main__":
    raise SystemExit(main())
