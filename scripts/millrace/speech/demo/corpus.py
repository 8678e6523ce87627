"""The demo corpus on disk: audio in mixed containers, alignments in both spellings, an index
written last."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

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


class _Country(NamedTuple):
    """What the demo has of a country: facts for its index, and its files by path."""

    summary: dict[str, Any]
    files: dict[str, dict]  # path relative to the countries' root: size, sha256


def fetch(countries_root: Path, index: Path, languages: Sequence[str]) -> None:
    """Make the corpus under `countries_root` and describe it in `index`.

    Prompts come from Debian packages, stored beside `countries_root`, so that a second run needs no
    network. Files whose bytes are right keep their mtime.
    """
    languages = list(dict.fromkeys(languages))
    names = [name for language in languages for name in packages(language)]
    folders = debian.fetch(names, countries_root.parent / "debian", _REMEDY)
    countries: dict[str, _Country] = {}
    files: dict[str, dict] = {}
    for language, country in _built(languages, folders, countries_root):
        countries[LANGUAGES[language]] = country
        files |= country.files
        log.info("%s: %s", LANGUAGES[language], _line(country.summary))

    summaries = {name: country.summary for name, country in countries.items()}
    hours = round(sum(summary["hours"] for summary in summaries.values()), 4)
    corpus = {
        "source": "debian",
        "seed": SEED,
        "sampling_rate": SAMPLING_RATE,
        "packages": {name: debian.version(folder) for name, folder in folders.items()},
        "hours": hours,
        "countries": summaries,
        "files": files,
    }
    atomic.write_if_changed(index, atomic.json_bytes(corpus))
    recordings = sum(summary["recordings"] for summary in summaries.values())
    amount = f"{recordings} recordings, {hours:.2f} h"
    size = sum(file["size"] for file in files.values()) / 2**20
    log.info("%s: %s, %.0f MiB", countries_root, amount, size)


def _built(
    languages: Sequence[str], folders: dict[str, Path], root: Path
) -> Iterator[tuple[str, _Country]]:
    """Each language with the country that was made of it, in their order."""
    unpacked = [[folders[name] for name in packages(language)] for language in languages]
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(2, len(languages)), context) as pool,
        Progress(len(languages), "countries", "demo corpus") as progress,
    ):
        built = pool.map(build_country, languages, repeat(root), unpacked)
        for language, country in zip(languages, built, strict=True):
            yield language, country
            progress.advance(1)


def _line(summary: dict[str, Any]) -> str:
    """What was made of a country, for the log."""
    speech = f"{summary['recordings']} recordings, {summary['hours'] * 60:.1f} min"
    texts = f"{summary['segments']} segments of {summary['prompts']} prompts"
    return f"{summary['language']}, {speech}, {texts}"


def build_country(language: str, root: Path, unpacked: Sequence[Path]) -> _Country:
    """Write one country's files, and say what they are.

    `unpacked` are the folders of its texts and its audio.
    """
    country = LANGUAGES[language]
    skipped: Counter[str] = Counter()
    of_texts, of_audio = unpacked
    prompts = distinct(recorded(of_texts, of_audio, skipped), skipped)
    recordings = assemble(prompts, SEED, country)

    files: dict[str, dict] = {}
    for number, recording in enumerate(recordings):
        files |= _write_recording(recording, number, language, root)
    segments = [segment for recording in recordings for segment in recording.segments]
    spoken = sum(segment.end - segment.start for segment in segments)
    samples = sum(len(recording.samples) for recording in recordings)
    summary = {
        "language": language,
        "recordings": len(recordings),
        "hours": round(samples / SAMPLING_RATE / 3600, 4),
        "segments": len(segments),
        "segment_hours": round(spoken / SAMPLING_RATE / 3600, 4),
        "prompts": len(prompts),
        "prompts_skipped": dict(sorted(skipped.items())),
    }
    return _Country(summary, files)


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
