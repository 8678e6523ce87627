"""The demo corpus on disk: audio in mixed containers, alignments in both spellings, an index
written last."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import orjson

from millrace.common import atomic, debian
from millrace.common.cli import Progress, log
from millrace.speech.audio import encode as audio_encode
from millrace.speech.audio.recording import resampled
from millrace.speech.demo.prompts import (
    LANGUAGES,
    SAMPLING_RATE,
    distinct,
    packages,
    recorded,
)
from millrace.speech.demo.recordings import Recording, assemble, misheard

SEED = 42  # of texts, order, lengths and ASR errors
_REMEDY = "Fetch it on a machine with apt-get and a network, and copy the folder to this one"
# Recording n of a country: container and folder. Two in eight are lossless, one of them among the
# first four.
PLACES = (
    ("opus", "mp4_converted"),
    ("m4a", "youtube_converted"),
    ("mp3", "mp3_audio"),
    ("flac", "processed_video"),
    ("opus", "m3u8_streams"),
    ("wav", "generic_video"),
    ("m4a", "youtube_converted"),
    ("mp3", "mp3_audio"),
)
# suffix: FFmpeg muxer and encoder, sampling rate, bit rate, options (the default ones take 3 times
# as long)
ENCODERS = {
    "opus": ("ogg", "libopus", 16_000, 24_000, {"compression_level": "5"}),
    "m4a": ("ipod", "aac", 44_100, 64_000, {"aac_coder": "fast"}),
    "mp3": ("mp3", "libmp3lame", 16_000, 32_000, {"compression_level": "7"}),
}


def fetch(countries_root: Path, index: Path, languages: Sequence[str] = tuple(LANGUAGES)) -> None:
    """Make the corpus under `countries_root` and list its files in `index`.

    Prompts come from Debian packages, stored beside `countries_root`, so that a second run needs no
    network. Files whose bytes are right keep their mtime.
    """
    names = [name for language in languages for name in packages(language)]
    folders = debian.fetch(names, countries_root.parent / "debian", _REMEDY)
    unpacked = [[folders[name] for name in packages(language)] for language in languages]
    files: dict[str, dict] = {}
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(2, len(languages)), context) as pool,
        Progress(len(languages), "countries", "demo corpus") as progress,
    ):
        for of_country in pool.map(build_country, languages, repeat(countries_root), unpacked):
            files |= of_country
            progress.advance(1)

    versions = {name: debian.version(folder) for name, folder in folders.items()}
    corpus = {"seed": SEED, "packages": versions, "files": files}
    atomic.write_if_changed(index, atomic.json_bytes(corpus))
    size = sum(file["size"] for file in files.values()) / 2**20
    log.info("%s: %d files, %.0f MiB", countries_root, len(files), size)


def build_country(language: str, root: Path, unpacked: Sequence[Path]) -> dict[str, dict]:
    """Write one country's files; size and sha256 of each by its path below `root`.

    `unpacked` are the folders of its texts and its audio.
    """
    prompts = distinct(recorded(*unpacked))
    files: dict[str, dict] = {}
    for number, recording in enumerate(assemble(prompts, SEED, LANGUAGES[language])):
        files |= _write_recording(recording, number, language, root)
    return files


def _write_recording(
    recording: Recording, number: int, language: str, root: Path
) -> dict[str, dict]:
    """Write the audio and the alignment of a country's recording `number`; their facts by path."""
    country = LANGUAGES[language]
    suffix, folder = PLACES[number % len(PLACES)]
    video_id = f"demo_{language}_{number + 1:02d}"
    audio = f"{country}/downloaded_audio/{folder}/{video_id}.{suffix}"
    aligned = f"{country}/Alignment/alignment_output/{video_id}_transcript_1_aligned.json"
    rng = random.Random(f"{SEED}:{video_id}:asr")
    alignment = {
        "audio_file": f"{root.name}/{audio}",
        "segments": aligned_segments(recording, number, rng),
    }
    return {
        audio: _write(root / audio, encode(recording.samples, suffix)),
        aligned: _write(root / aligned, orjson.dumps(alignment, option=orjson.OPT_INDENT_2)),
    }


def _write(path: Path, content: bytes) -> dict[str, Any]:
    """Write a file of the corpus; its facts for the index."""
    atomic.write_if_changed(path, content)
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def aligned_segments(recording: Recording, number: int, rng: random.Random) -> list[dict]:
    """Rows of the alignment: every fourth recording with the longer key names, every fifth without
    CER."""
    keys = ("start", "end", "asr_text", "human_text")
    if number % 4 == 2:
        keys = ("start_seconds", "end_seconds", "asr_transcript", "human_transcript")
    rows = []
    token = 0
    for segment in recording.segments:
        heard = misheard(segment.text, rng)
        start = segment.start / SAMPLING_RATE
        end = segment.end / SAMPLING_RATE
        row = dict(zip(keys, (start, end, heard, segment.text), strict=True))
        if number % 5 != 3:
            row["cer"] = jiwer.cer(segment.text, heard)
        tokens = len(segment.text.split())
        rows.append(row | {"start_idx": token, "end_idx": token + tokens})
        token += tokens
    return rows


def encode(samples: np.ndarray, suffix: str) -> bytes:
    """Encode int16 mono samples at 16 kHz as opus, m4a, mp3, flac or wav; equal samples give equal
    bytes."""
    if suffix not in ENCODERS:
        return audio_encode.encode(samples, SAMPLING_RATE, suffix)
    muxer, codec, rate, bit_rate, options = ENCODERS[suffix]
    samples = resampled(samples, SAMPLING_RATE, rate)
    return audio_encode.encode_av(samples, rate, muxer, codec, bit_rate, **options)
