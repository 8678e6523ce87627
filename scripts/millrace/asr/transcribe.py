"""Write down what is said in files of audio, with a trained model.

Any audio that the lane decodes; long files are cut at pauses. A file that cannot be read gets a
line with its error, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict

from millrace.common import cli, jsonl
from millrace.common.errors import MillraceError


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="audio: FLAC, WAV, MP3, Ogg, M4A, WebM and more",
    )
    add(
        "--model",
        required=True,
        metavar="FOLDER",
        help="a run's model/, or a model of transformers",
    )
    add(
        "--output",
        help="output: a JSON line for each file (default: file and text on standard output)",
    )
    languages = "for models that take one (Qwen3-ASR, Whisper), such as en; without it they find it"
    add(
        "--language",
        default="",
        help=languages,
    )
    add(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="where the model runs",
    )
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    with contextlib.suppress(FileNotFoundError, TypeError), open(args.output, "rb") as earlier:
        if earlier.read(1) not in (b"", b"{"):  # `--output *.wav`
            problem = "--output is there, and is no transcript of earlier"
            raise MillraceError(problem, args.output, "Name a new file for the output")
    from millrace.asr.transcription.transcriber import Transcriber

    transcriber = Transcriber(args.model, args.language, device=args.device)
    lines = []
    failed = []
    for transcript in transcriber.transcripts(args.files):
        lines.append(asdict(transcript))
        if transcript.error:
            failed.append(transcript.file)
            cli.log.warning("%s: %s", transcript.file, transcript.error)
        elif not args.output:
            print(f"{transcript.file}\t{transcript.text}", flush=True)
    if args.output:
        jsonl.write_lines(args.output, lines)
    seconds = sum(line["seconds"] for line in lines)
    cli.log.info("%d of %d files, %.1f s of audio", len(lines) - len(failed), len(lines), seconds)
    if failed:
        problem = f"{len(failed)} of {len(lines)} files have no text"
        raise MillraceError(
            problem, failed[0], "The warnings above say why; leave them out or convert them"
        )


if __name__ == "__main__":
    raise SystemExit(main())
