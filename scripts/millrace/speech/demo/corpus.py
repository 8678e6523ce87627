"""The demo corpus on disk: audio in mixed containers, alignments in both spellings, an index
written last."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from itertools import repeat
from pathlib import Path

import jiwer
import numpy as np
import orjson

from millrace.common import atomic, debian, jsonl
from millrace.common.cli import Progress, log
from millrace.common.errors import MillraceError
from millrace.speech.audio import encode as audio_encode
from millrace.speech.audio.recording import resampled
from millrace.speech.demo.prompts import (
    LANGUAGES,
    SAMPLING_RATE,
    distinct,
    packages,
    recorded,
    synthesised,
)
from millrace.speech.demo.recordings import Recording, assemble, misheard

SOURCES = ("auto", "debian", "synthesis")
SYNTHESIS = "--source synthesis needs no packages"
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


def fetch(
    countries_root: Path,
    index: Path,
    seed: int,
    languages: Sequence[str],
    source: str,
    threads: int,
) -> None:
    """Make the corpus under `countries_root` and describe it in `index`.

    Prompts come from Debian packages (stored beside `countries_root`, so that a second run needs no
    network), or if that fails and `source` is "auto", from speech synthesis. Files whose bytes are
    right keep their mtime; files of an earlier corpus that are no longer part of it are removed,
    files of the user never.
    """
    languages = list(dict.fromkeys(languages))
    folders: dict[str, Path] = {}  # of unpacked packages
    if source != "synthesis":
        names = [name for language in languages for name in packages(language)]
        try:
            folders = debian.fetch(names, countries_root.parent / "debian", SYNTHESIS)
        except MillraceError as error:
            if source == "debian":
                raise
            log.warning(
                "no recorded prompts (%s): the demo corpus will be synthesised speech", error
            )
    unpacked = [[folders[name] for name in packages(language) if folders] for language in languages]
    files: dict[str, dict] = {}
    summaries: dict[str, dict] = {}
    # Every file of ours, by path. Beside the index, as Snakemake removes the index before each run.
    list_path = index.with_name(f".{index.stem}_files.json")
    try:
        ours = set(jsonl.read(list_path))
    except (OSError, ValueError):
        ours = set()
    # A fresh process for each country: the synthesiser's state must not depend on what it said
    # before.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(threads, len(languages)), context, max_tasks_per_child=1) as pool,
        Progress(len(languages), "countries", "demo corpus") as progress,
    ):
        built = pool.map(build_country, languages, repeat(seed), repeat(countries_root), unpacked)
        for language, (summary, written) in zip(languages, built, strict=True):
            country, skipped = LANGUAGES[language], summary["prompts_skipped"]
            summaries[country] = summary
            files |= written
            atomic.write_if_changed(list_path, atomic.json_bytes(sorted(ours | files.keys())))
            speech = f"{summary['recordings']} recordings, {summary['hours'] * 60:.1f} min"
            texts = f"{summary['segments']} segments of {summary['prompts']} prompts"
            reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "none"
            log.info("%s: %s, %s, %s; skipped: %s", country, language, speech, texts, reasons)
            progress.advance(1)
    for path in sorted(ours - files.keys()):
        (countries_root / path).unlink(missing_ok=True)
    atomic.write_if_changed(list_path, atomic.json_bytes(sorted(files)))
    versions = {name: debian.version(folder) for name, folder in folders.items()}
    corpus = {
        "source": "debian" if folders else "synthesised",
        "seed": seed,
        "sampling_rate": SAMPLING_RATE,
        "packages": versions or {"espeakng-loader": metadata.version("espeakng-loader")},
        "hours": round(sum(summary["hours"] for summary in summaries.values()), 4),
        "countries": summaries,
        "files": files,
    }
    atomic.write_if_changed(index, atomic.json_bytes(corpus))
    recordings = sum(summary["recordings"] for summary in summaries.values())
    amount = f"{recordings} recordings, {corpus['hours']:.2f} h"
    size = sum(file["size"] for file in files.values()) / 2**20
    log.info("%s: %s speech, %s, %.0f MiB", countries_root, corpus["source"], amount, size)


def build_country(
    language: str, seed: int, root: Path, unpacked: Sequence[Path]
) -> tuple[dict, dict]:
    """Write one country's files; return its summary and {path relative to `root`: size, sha256}.

    `unpacked` are the folders of its texts and its audio; none of them for synthesis.
    """
    country = LANGUAGES[language]
    skipped: Counter[str] = Counter()
    if unpacked:
        of_texts, of_audio = unpacked
        said = recorded(of_texts, of_audio, skipped)
    else:
        said = synthesised(language, seed)
    prompts = distinct(said, skipped)
    recordings = assemble(prompts, seed, country)
    files: dict[str, dict] = {}
    for number, recording in enumerate(recordings):
        suffix, folder = PLACES[number % len(PLACES)]
        video_id = f"demo_{language}_{number + 1:02d}"
        audio = f"{country}/downloaded_audio/{folder}/{video_id}.{suffix}"
        alignment = {
            "audio_file": f"{root.name}/{audio}",
            "segments": aligned_segments(
                recording, number, random.Random(f"{seed}:{video_id}:asr")
            ),
        }
        aligned = f"{country}/Alignment/alignment_output/{video_id}_transcript_1_aligned.json"
        for path, content in (
            (audio, encode(recording.samples, suffix)),
            (aligned, orjson.dumps(alignment, option=orjson.OPT_INDENT_2)),
        ):
            atomic.write_if_changed(root / path, content)
            files[path] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    segments = [segment for recording in recordings for segment in recording.segments]
    spoken = sum(segment.end - segment.start for segment in segments) / SAMPLING_RATE
    summary = {
        "language": language,
        "recordings": len(recordings),
        "hours": round(
            sum(len(recording.samples) for recording in recordings) / SAMPLING_RATE / 3600, 4
        ),
        "segments": len(segments),
        "segment_hours": round(spoken / 3600, 4),
        "prompts": len(prompts),
        "prompts_skipped": dict(sorted(skipped.items())),
    }
    return summary, files


def aligned_segments(recording: Recording, number: int, rng: random.Random) -> list[dict]:
    """Rows of the alignment: every fourth recording with the longer key names, every fifth without
    CER."""
    keys = ("start", "end", "asr_text", "human_text")
    if number % 4 == 2:
        keys = ("start_seconds", "end_seconds", "asr_transcript", "human_transcript")
    rows, token = [], 0
    for segment in recording.segments:
        heard = misheard(segment.text, rng)
        start, end = segment.start / SAMPLING_RATE, segment.end / SAMPLING_RATE
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
