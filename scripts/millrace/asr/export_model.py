"""Write the model of any checkpoint of a run as a folder.

--layout transformers is what transformers and Millrace read, --layout qwen-asr what the qwen-asr
package reads. Nothing of the run is changed; the folder's config.json is written last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import cli
from millrace.common.errors import MillraceError


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "--metrics",
        type=Path,
        required=True,
        help="metrics.json of a run, in its folder",
    )
    checkpoint = "of the run: best, last, or a name such as step-00000500 (default %(default)s)"
    add(
        "--checkpoint",
        default="best",
        help=checkpoint,
    )
    buckets = Path("results/asr/buckets")
    add(
        "--bucket-dir",
        type=Path,
        default=buckets,
        help="folder of the bucket_config.json of the run",
    )
    add(
        "--layout",
        choices=["transformers", "qwen-asr"],
        default="transformers",
        help="(default %(default)s)",
    )
    add(
        "--output",
        type=Path,
        required=True,
        help="output: the model's folder, or config.json in it",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    from millrace.asr.training import run as training_run

    run = args.metrics.parent
    model, name = training_run.load_model(run, args.checkpoint, args.bucket_dir)
    if args.layout not in model.layouts:
        remedy = f"Its layouts are: {', '.join(model.layouts)}"
        raise MillraceError(
            f"there is no layout {args.layout} of {type(model).__name__}", name, remedy
        )
    model.layout = args.layout
    folder = args.output.parent if args.output.name == "config.json" else args.output
    model.save_pretrained(folder)
    cli.log.info("%s: the model of %s, in the layout of %s", folder, name, args.layout)


if __name__ == "__main__":
    raise SystemExit(main())
