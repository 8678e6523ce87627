"""Make sources at real size without media: aligned recordings by country, tars with JSONL
manifests.

    python -m tests.scale.sources --countries 22 --recordings 10000 FOLDER
    python -m tests.scale.sources --tars 5559 --rows 3 FOLDER

Alignments hold records as real ones do (--segments of each, in one of a few texts); audio files and
tars are sparse, of plausible sizes. Folders: FOLDER/countries, FOLDER/tars, FOLDER/manifests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from millrace.speech.corpus.languages import LANGUAGES
from tests.corpora import WORDS

COUNTRIES = sorted({code: name for name, code in LANGUAGES.items()}.values())
ALIGNED, AUDIO = "Alignment/alignment_output", "downloaded_audio/mp4_converted"
ROWS = 13_528  # of a tar, on average: 75.2 million in 5,559


def segments(count: int, rng: random.Random) -> list[dict]:
    """Segments of 4 to 19 s with two texts each, as an alignment of a parliament's session has
    them."""
    made, end, word = [], 0.0, 0
    for _ in range(count):
        start = round(end + rng.uniform(0.05, 2), 3)
        end = round(start + rng.uniform(4, 19), 3)
        human = " ".join(rng.choices(WORDS, k=int(2.2 * (end - start))))
        times = {
            "start": start,
            "end": end,
            "asr_text": human.replace("the", "a"),
            "human_text": human,
        }
        made.append(
            times | {"cer": round(rng.random() * 0.4, 4), "start_idx": word, "end_idx": word + 20}
        )
        word += 20
    return made


def make_countries(
    root: Path, countries: int, recordings: int, each: int = 20, seed: int = 0
) -> None:
    """Countries with so many recordings, of `each` segments (0.07 h) on average, with one
    transcript each."""
    rng = random.Random(seed)
    # The texts take most of the time, so recordings share a few; the name in front of them differs.
    bodies = [
        json.dumps(segments(rng.randint(each // 2, each * 3 // 2), rng), ensure_ascii=False)
        for _ in range(64)
    ]
    for country in [*COUNTRIES, *(f"country_{number}" for number in range(countries))][:countries]:
        for folder in (ALIGNED, AUDIO):
            (root / country / folder).mkdir(parents=True)
        for number in range(recordings):
            add_recording(root, country, f"session-{number:05d}", rng.choice(bodies), rng)


def add_recording(root: Path, country: str, name: str, body: str, rng: random.Random) -> None:
    """A recording whose alignment has these segments."""
    text = f'{{"audio_file": "{AUDIO}/{name}.opus", "segments": {body}}}'
    write(os.path.join(root, country, ALIGNED, f"{name}_t1_aligned.json"), text.encode())
    sparse(
        os.path.join(root, country, AUDIO, f"{name}.opus"), int(len(body) * rng.uniform(200, 2000))
    )


def make_tars(folder: Path, tars: int, rows: int = ROWS, pieces: int = 1, seed: int = 0) -> None:
    """Tars of about 2 GB, and manifests of `rows` rows of each: train in `pieces` files, dev and
    test."""
    rng = random.Random(seed)
    (folder / "tars").mkdir(parents=True)
    (folder / "manifests").mkdir()
    for number in range(tars):
        sparse(
            os.path.join(folder, "tars", f"audio_{number}.tar"),
            ROWS * 146_000 + 512 * rng.randrange(10_000),
        )
    bounds = [piece * tars // pieces for piece in range(pieces + 1)]
    names = (
        [f"train-{n:05d}-of-{pieces:05d}.jsonl" for n in range(pieces)]
        if pieces > 1
        else ["train.jsonl"]
    )
    for name, (first, last) in zip(names, pairwise(bounds), strict=True):
        write_rows(folder / "manifests" / name, range(first, last), rows)
    for name in ("dev", "test"):
        write_rows(folder / f"manifests/{name}.jsonl", [0], min(rows, 100))


def write_rows(path: Path, tars: Sequence[int], rows: int) -> None:
    """A manifest as NeMo's: `rows` lines of each tar."""
    text = "".join(
        f'{{"audio_filepath": "clip_%d_{row:05d}.flac", "duration": {1 + row * 7 % 1900 / 100}, '
        f'"text": "{" ".join(WORDS[row % 7 : 5 + row % 11])}", "lang": "en", '
        '"tar_path": "../tars/audio_%d.tar"}\n'
        for row in range(rows)
    )
    with open(path, "w", encoding="utf-8") as handle:
        for tar in tars:
            handle.write(
                text % ((tar,) * text.count("%d")) if rows < 100 else text.replace("%d", str(tar))
            )


def write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as handle:
        handle.write(content)


def sparse(path: str, size: int) -> None:
    with open(path, "wb", buffering=0) as handle:
        handle.truncate(size)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--countries", type=int, default=0)
    parser.add_argument(
        "--recordings", type=int, default=10_000, help="of each country (default %(default)s)"
    )
    parser.add_argument(
        "--segments", type=int, default=20, help="of a recording, on average (default %(default)s)"
    )
    parser.add_argument("--tars", type=int, default=0)
    parser.add_argument(
        "--rows",
        type=int,
        default=3,
        help="of each tar; 13528 make 75.2 million (default %(default)s)",
    )
    parser.add_argument(
        "--pieces", type=int, default=1, help="files of train's manifest (default %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.countries:
        make_countries(args.folder / "countries", args.countries, args.recordings, args.segments)
    if args.tars:
        make_tars(args.folder, args.tars, args.rows, args.pieces)


if __name__ == "__main__":
    main()
