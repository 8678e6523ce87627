"""Evaluate a checkpoint on whole tracks: MAP, MR1 and ARP (%).

    python -m millrace.music.evaluate_model redux=bpwr-10 \\
        checkpoint=logs/dvi-h5/checkpoint_best.ckpt

Options: partition, redux (of shingles' distances; default: that of the loss), maxlen (s of a
track), hop (s from one shingle to the next). Other key=value are keys of the
configuration that lies beside the checkpoint, such as path.index; conf=FILE is another one. Figures
are computed in float32. Under torchrun the ranks share the tracks and the queries.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import atomic, cli
from millrace.music.training import conf as configuration


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="key=value", help="as above")
    add("--output", help="figures (JSON) to write")
    add("--threads", type=cli.positive_int, default=1, help="threads of torch in each rank")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    options, overrides = configuration.split_options(args.overrides)
    conf = configuration.read(
        overrides, str(Path(options["checkpoint"]).with_name("configuration.yaml"))
    )
    import torch

    from millrace.music.training import run

    torch.set_num_threads(args.threads)
    if result := run.evaluate(conf, options):
        figures = result["figures"]
        shown = ", ".join(f"{name} {figures[f'm_{name}']:.4f}" for name in ("MAP", "MR1", "ARP"))
        counts = f"{result['queries']} queries, {result['candidates']} candidates"
        cli.log.info("%s: %s (%s, %s)", result["partition"], shown, counts, result["redux"])
        if args.output:
            atomic.write_json(args.output, result)


if __name__ == "__main__":
    raise SystemExit(main())
