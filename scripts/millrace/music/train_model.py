"""Train a version matcher (CLEWS) on precomputed CQT features, alone or as one of several ranks.

    python -m millrace.music.train_model jobname=dvi-h5 conf=dvi-h5.yaml \\
        fabric.nnodes=1 fabric.ngpus=2

With fabric.ngpus above 1 it starts its ranks on this node, unless a launcher or torchrun has
started them; several tasks of srun are refused. Keys of the configuration and their defaults:
docs/configuration.md. Writes configuration.yaml, metrics.jsonl, TensorBoard events, checkpoints
and, at the end, metrics.json into <path.logs>/<jobname>; the same command goes on from the last
checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from millrace.common import atomic, cli
from millrace.common.errors import MillraceError
from millrace.common.training import launch, ranks
from millrace.music.training import conf as configuration


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="keys of the configuration, such as fabric.ngpus=2",
    )
    add("--metrics", help="metrics.json, written last, in the run's folder")
    add("--threads", type=cli.positive_int, default=1, help="threads of torch in each rank")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> int | None:
    conf = configuration.read(args.overrides)
    if not (args.metrics or conf["jobname"]):
        raise MillraceError("the run has no name", remedy="Write jobname=NAME")
    metrics = Path(args.metrics or Path(conf["path.logs"], conf["jobname"], "metrics.json"))
    folder = metrics.parent
    count = conf["fabric.ngpus"]
    if count > 1 and conf["fabric.nnodes"] == 1 and "RANK" not in os.environ:
        words = ["--standalone", "--nproc-per-node", str(count), "-m", "millrace.music.train_model"]
        return launch.main([*words, *args.typed])
    ranks.end_with_launcher(signal.SIGKILL)
    import torch

    from millrace.music.training import run

    torch.set_num_threads(args.threads)
    if summary := run.run(conf, folder):
        atomic.write_json(metrics, summary)
        cli.log.info("%s: %d epochs done; metrics.json is there", folder, summary["epochs"])
    return None


if __name__ == "__main__":
    raise SystemExit(main())
