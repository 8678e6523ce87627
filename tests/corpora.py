"""Corpora made on the spot: small aligned recordings of shaped noise, in the layout of real
ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
WORDS = (
    "the",
    "of",
    "and",
    "house",
    "minister",
    "question",
    "vote",
    "law",
    "member",
    "order",
    "year",
)


def noise(seconds: float, seed: int) -> np.ndarray:
    """Noise with a changing envelope, int16 mono of `seconds`: no two stretches are alike."""
    rng = np.random.default_rng(seed)
    samples = rng.normal(0, 1, round(seconds * RATE)).astype(np.float32)
    knots = np.arange(0, samples.size + RATE, RATE // 4)
    envelope = np.interp(np.arange(samples.size), knots, rng.uniform(0.02, 0.3, knots.size))
    return (samples * envelope * 20000).clip(-32768, 32767).astype(np.int16)


def segments(seconds: float, rng: random.Random) -> list[dict]:
    """Segments of 4 s with a pause of 0.5 s between them, with texts and a CER of 0.05."""
    made = []
    for number in range(int(seconds // 4.5)):
        start = 0.25 + number * 4.5
        asr_text, human_text = (" ".join(rng.choice(WORDS) for _ in range(8)) for _ in range(2))
        texts = {"asr_text": asr_text, "human_text": human_text, "cer": 0.05}
        place = {
            "start": start,
            "end": start + 4,
            "start_idx": number * 8,
            "end_idx": number * 8 + 8,
        }
        made.append(place | texts)
    return made


def write_alignment(root: Path, country: str, name: str, value: object) -> Path:
    """Write one alignment file (`name` without `_aligned.json`); bytes are written as they are."""
    path = root / country / "Alignment" / "alignment_output" / f"{name}_aligned.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def write_audio(root: Path, country: str, name: str, samples: np.ndarray) -> None:
    path = root / country / "downloaded_audio/mp4_converted" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE, format="WAV")


def add_recording(root: Path, country: str, video_id: str, seconds: float) -> None:
    """Add one recording with one transcript."""
    rng = random.Random(f"{country} {video_id} 0")
    write_audio(root, country, f"{video_id}.wav", noise(seconds, rng.randrange(2**31)))
    audio_file = f"downloaded_audio/mp4_converted/{video_id}.opus"
    value = {"audio_file": audio_file, "segments": segments(seconds, rng)}
    write_alignment(root, country, f"{video_id}_t1", value)


def make_corpus(root: Path, countries: dict[str, int], seconds: float = 20.0) -> None:
    """A corpus with so many recordings per country, of `seconds` to twice that."""
    rng = random.Random(0)
    for country, count in countries.items():
        for number in range(count):
            add_recording(root, country, f"rec_{number:04d}", round(seconds * rng.uniform(1, 2), 2))
