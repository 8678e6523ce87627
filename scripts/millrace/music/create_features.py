"""Make CQT features of your own audio: mono at 16 kHz, 84 bins from 32.70 Hz, a frame every 0.02 s.

Ids are the names of the files without their endings. Damaged audio is rejected and listed. The same
command again makes only those chunks whose recordings have changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from millrace.common import atomic, cli, jsonl
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from millrace.music.audio import chunks


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add("--audio-root", required=True, help="folder of recordings, at any depth")
    add("--h5-root", type=Path, required=True, help="folder that gets the HDF5 chunks")
    add("--per-chunk", type=cli.positive_int, default=100, help="recordings in a chunk")
    add("--threads", type=cli.positive_int, default=2, help="chunks made at a time")
    add("--rejects", required=True, help="output: recordings without features, and why (JSONL)")
    add("--ledger", required=True, help="output: counts (JSON)")
    add("--jsonl", required=True, help="output, written last: an id a line, with its chunk and key")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    root = Path(args.audio_root)
    remedy = "Set music.audio_root (--audio-root)"
    if not (args.audio_root and root.is_dir()):
        raise MillraceError("no folder of recordings", args.audio_root, remedy)
    files, rejects = chunks.audio_files(root)
    if not files:
        raise MillraceError(
            f"no recording ends in {', '.join(chunks.ENDINGS)}", args.audio_root, remedy
        )
    ledger = Ledger("create_features", "audio", "recording", rows_in=len(files) + len(rejects))
    records: list[dict] = []
    for made, refused in chunks.create_chunks(
        root, files, args.h5_root, args.per_chunk, args.threads
    ):
        records += made
        rejects += refused
    ledger.rows_out = len(records)
    ledger.rejected.update(reject["reason"] for reject in rejects)
    jsonl.write_lines(args.rejects, rejects)
    atomic.write_json(args.ledger, ledger.as_dict())
    cli.log.info("%s", ledger.line())
    if not records:
        raise MillraceError("no recording has features", args.audio_root, f"See {args.rejects}")
    jsonl.write_lines(args.jsonl, records)


if __name__ == "__main__":
    raise SystemExit(main())
