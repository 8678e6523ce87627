"""Sources at real size without media: aligned recordings by country, tars with JSONL manifests.

Alignments hold records as real ones do, in one of a few texts; audio files and tars are sparse, of
plausible sizes.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

from millrace.speech.corpus.languages import LANGUAGES
from tests.corpora import WORDS

COUNTRIES = sorted({code: name for name, code in LANGUAGES.items()}.values())
ALIGNED, AUDIO = "Alignment/alignment_output", "downloaded_audio/mp4_converted"
SEGMENTS = 20  # of a recording, on average: 0.07 h
ROWS = 13_528  # of a tar, on average: 75.2 million in 5,559


def segments(count: int, rng: random.Random) -> list[dict]:
    """Segments of 4 to 19 s with two texts each, as an alignment of a parliament's session has
    them."""
    made, end = [], 0.0
    for word in range(0, 20 * count, 20):
        start = round(end + rng.uniform(0.05, 2), 3)
        end = round(start + rng.uniform(4, 19), 3)
        human = " ".join(rng.choices(WORDS, k=int(2.2 * (end - start))))
        segment = {"start": start, "end": end, "start_idx": word, "end_idx": word + 20}
        segment |= {"asr_text": human.replace("the", "a"), "human_text": human}
        made.append(segment | {"cer": round(rng.random() * 0.4, 4)})
    return made


def make_countries(root: Path, countries: int, recordings: int) -> None:
    """Countries with so many recordings, with one transcript each."""
    rng = random.Random(0)
    # The texts take most of the time, so recordings share a few; the name in front of them differs.
    counts = [rng.randint(SEGMENTS // 2, SEGMENTS * 3 // 2) for _ in range(64)]
    bodies = [json.dumps(segments(count, rng)) for count in counts]
    for country in COUNTRIES[:countries]:
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


def make_tars(folder: Path, tars: int, rows: int) -> None:
    """Tars of about 2 GB, and manifests of `rows` rows of each: train, dev and test."""
    rng = random.Random(0)
    (folder / "tars").mkdir(parents=True)
    (folder / "manifests").mkdir()
    for number in range(tars):
        size = ROWS * 146_000 + 512 * rng.randrange(10_000)
        sparse(os.path.join(folder, "tars", f"audio_{number}.tar"), size)
    write_rows(folder / "manifests/train.jsonl", range(tars), rows)
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
    path.write_text("".join(text.replace("%d", str(tar)) for tar in tars))


def write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as handle:
        handle.write(content)


def sparse(path: str, size: int) -> None:
    with open(path, "wb", buffering=0) as handle:
        handle.truncate(size)
