"""Corpora made on the spot: aligned recordings of shaped noise, small and quick, in the layout of real
ones."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000
WORDS = [
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
    "people",
    "year",
]


def noise(seconds: float, seed: int, rate: int = RATE) -> np.ndarray:
    """Noise with a changing envelope, int16 mono of `seconds`: no two stretches are alike."""
    rng = np.random.default_rng(seed)
    samples = rng.normal(0, 1, round(seconds * rate)).astype(np.float32)
    knots = np.arange(0, samples.size + rate, rate // 4)
    envelope = np.interp(np.arange(samples.size), knots, rng.uniform(0.02, 0.3, knots.size))
    return (samples * envelope * 20000).clip(-32768, 32767).astype(np.int16)


def sentence(rng: random.Random, words: int = 8) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def segments(seconds: float, rng: random.Random, length: float = 4.0) -> list[dict]:
    """Segments of `length` seconds one after the other, with texts and a CER of 0.05."""
    count = int(seconds // (length + 0.5))
    return [
        {
            "start": round(0.25 + number * (length + 0.5), 3),
            "end": round(0.25 + number * (length + 0.5) + length, 3),
            "asr_text": sentence(rng),
            "human_text": sentence(rng),
            "cer": 0.05,
            "start_idx": number * 8,
            "end_idx": number * 8 + 8,
        }
        for number in range(count)
    ]


def write_alignment(root: Path, country: str, name: str, value: object) -> Path:
    """Write one alignment file (`name` without `_aligned.json`); bytes are written as they are."""
    path = root / country / "Alignment" / "alignment_output" / f"{name}_aligned.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def write_audio(
    root: Path, country: str, name: str, samples: np.ndarray, folder: str = "mp4_converted"
) -> Path:
    path = root / country / "downloaded_audio" / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE, format="FLAC" if name.endswith(".flac") else "WAV")
    return path


def add_recording(
    root: Path, country: str, video_id: str, seconds: float = 20.0, seed: int = 0, suffix: str = "wav"
) -> tuple[Path, Path]:
    """Add one recording with one transcript; return (alignment file, audio file)."""
    rng = random.Random(f"{country} {video_id} {seed}")
    audio = write_audio(root, country, f"{video_id}.{suffix}", noise(seconds, rng.randrange(2**31)))
    value = {
        "audio_file": f"downloaded_audio/mp4_converted/{video_id}.opus",
        "segments": segments(seconds, rng),
    }
    return write_alignment(root, country, f"{video_id}_t1", value), audio


def make_corpus(root: Path, countries: dict[str, int], seconds: float = 20.0, seed: int = 0) -> Path:
    """A corpus with so many recordings per country, of `seconds` to twice that."""
    rng = random.Random(seed)
    for country, count in countries.items():
        for number in range(count):
            add_recording(root, country, f"rec_{number:04d}", round(seconds * rng.uniform(1, 2), 2), seed)
    return root
