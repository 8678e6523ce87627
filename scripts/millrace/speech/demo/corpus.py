"""The demo corpus on disk: audio in mixed containers, alignments in both spellings, an index written last."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
import orjson

from millrace.common import atomic, jsonl
from millrace.common.cli import Progress, log
from millrace.common.errors import MillraceError
from millrace.speech.demo import debian, synthesis
from millrace.speech.demo import prompts as demo_prompts
from millrace.speech.demo.prompts import LANGUAGES, SAMPLING_RATE
from millrace.speech.demo.recordings import Recording, assemble, misheard

SOURCES = ("auto", "debian", "synthesis")
# Recording n of a country: container and folder. Two in eight are lossless, one of them among the first four.
PLACES = (
    ("opus", "mp4_converted"), ("m4a", "youtube_converted"), ("mp3", "mp3_audio"),
    ("flac", "processed_video"), ("opus", "m3u8_streams"), ("wav", "generic_video"),
    ("m4a", "youtube_converted"), ("mp3", "mp3_audio"),
)  # fmt: skip
# suffix: FFmpeg muxer and encoder, sampling rate, bit rate, options (the default ones take 3 times as long)
ENCODERS = {
    "opus": ("ogg", "libopus", 16_000, 24_000, {"compression_level": "5"}),
    "m4a": ("ipod", "aac", 44_100, 64_000, {"aac_coder": "fast"}),
    "mp3": ("mp3", "libmp3lame", 16_000, 32_000, {"compression_level": "7"}),
}


def fetch(
    countries_root: Path, index: Path, seed: int, languages: Sequence[str], source: str, threads: int
) -> dict:
    """Make the corpus under `countries_root` and describe it in `index`; return what the index says.

    Prompts come from Debian packages (stored beside `countries_root`, so that a second run needs no network),
    or if that fails and `source` is "auto", from speech synthesis. Files whose bytes are right keep their
    mtime; files of an earlier corpus that are no longer part of it are removed, files of the user never.
    """
    languages = list(dict.fromkeys(languages))
    archives = countries_root.parent / "debian"
    unpacked = None if source == "synthesis" else _packages(archives, languages, source)
    folders = [unpacked and unpacked[language] for language in languages]
    files: dict[str, dict] = {}
    summaries: dict[str, dict] = {}
    # Every file of ours, by path. Beside the index, as Snakemake removes the index before each run.
    list_path = index.with_name(f".{index.stem}_files.json")
    try:
        ours = set(jsonl.read(list_path))
    except (OSError, ValueError):
        ours = set()
    # A fresh process for each country: the synthesiser's state must not depend on what it said before.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(min(threads, len(languages)), context, max_tasks_per_child=1) as pool,
        Progress(len(languages), "countries", "demo corpus") as progress,
    ):
        built = pool.map(build_country, languages, repeat(seed), repeat(countries_root), folders)
        for language, (summary, written) in zip(languages, built, strict=True):
            summaries[LANGUAGES[language]] = summary
            files |= written
            atomic.write_if_changed(list_path, atomic.json_bytes(sorted(ours | files.keys())))
            log.info("%s: %s", LANGUAGES[language], _line(summary))
            progress.advance(1)
    for path in sorted(ours - files.keys()):
        (countries_root / path).unlink(missing_ok=True)
    atomic.write_if_changed(list_path, atomic.json_bytes(sorted(files)))
    packages = [package for language in languages for package in demo_prompts.packages(language)]
    versions = (
        {name: debian.version(archives, name) for name in packages} if unpacked else synthesis.versions()
    )
    corpus = {
        "source": "debian" if unpacked else "synthesised",
        "seed": seed,
        "sampling_rate": SAMPLING_RATE,
        "packages": versions,
        "hours": round(sum(summary["hours"] for summary in summaries.values()), 4),
        "countries": summaries,
        "files": files,
    }
    atomic.write_if_changed(index, atomic.json_bytes(corpus))
    return corpus


def _packages(folder: Path, languages: Sequence[str], source: str) -> dict[str, tuple[Path, Path]] | None:
    pairs = {language: demo_prompts.packages(language) for language in languages}
    try:
        folders = debian.fetch([name for pair in pairs.values() for name in pair], folder)
    except MillraceError as error:
        if source == "debian":
            raise
        log.warning("no recorded prompts (%s): the demo corpus will be synthesised speech", error)
        return None
    return {language: (folders[texts], folders[audio]) for language, (texts, audio) in pairs.items()}


def build_country(
    language: str, seed: int, countries_root: Path, unpacked: tuple[Path, Path] | None
) -> tuple[dict, dict[str, dict]]:
    """Write one country; return its summary and {path relative to countries_root: size, sha256}.

    `unpacked` are the folders of its texts and its audio, or None for synthesis.
    """
    skipped: Counter = Counter()
    if unpacked:
        prompts = demo_prompts.recorded(*unpacked, skipped)
    else:
        prompts = demo_prompts.synthesised(language, seed)
    distinct = demo_prompts.distinct(prompts, skipped)
    country = LANGUAGES[language]
    recordings = assemble(distinct, seed, country)
    files: dict[str, dict] = {}
    for number, recording in enumerate(recordings):
        suffix, folder = PLACES[number % len(PLACES)]
        video_id = f"demo_{language}_{number + 1:02d}"
        audio = f"{country}/downloaded_audio/{folder}/{video_id}.{suffix}"
        alignment = {
            "audio_file": f"{countries_root.name}/{audio}",
            "segments": aligned_segments(recording, number, random.Random(f"{seed}:{video_id}:asr")),
        }
        aligned = f"{country}/Alignment/alignment_output/{video_id}_transcript_1_aligned.json"
        for path, content in (
            (audio, encode(recording.samples, suffix)),
            (aligned, orjson.dumps(alignment, option=orjson.OPT_INDENT_2)),
        ):
            atomic.write_if_changed(countries_root / path, content)
            files[path] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    segments = [segment for recording in recordings for segment in recording.segments]
    spoken = sum(segment.end - segment.start for segment in segments) / SAMPLING_RATE
    summary = {
        "language": language,
        "recordings": len(recordings),
        "hours": round(sum(recording.seconds for recording in recordings) / 3600, 4),
        "segments": len(segments),
        "segment_hours": round(spoken / 3600, 4),
        "prompts": len(distinct),
        "prompts_skipped": dict(sorted(skipped.items())),
    }
    return summary, files


def aligned_segments(recording: Recording, number: int, rng: random.Random) -> list[dict]:
    """Rows of the alignment: every fourth recording with the longer key names, every fifth without CER."""
    import jiwer

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
    """Encode int16 mono samples at 16 kHz as opus, m4a, mp3, flac or wav; equal samples give equal bytes."""
    buffer = io.BytesIO()
    if suffix not in ENCODERS:
        import soundfile

        soundfile.write(buffer, samples, SAMPLING_RATE, format=suffix.upper(), subtype="PCM_16")
        return buffer.getvalue()
    import av
    import soxr
    from av.codec.context import Flags

    muxer, encoder, rate, bit_rate, options = ENCODERS[suffix]
    if rate != SAMPLING_RATE:
        # In floats: soxr dithers int16 with a seed taken from the clock.
        floats = soxr.resample(samples.astype(np.float32), SAMPLING_RATE, rate)
        samples = np.clip(np.rint(floats), -32768, 32767).astype(np.int16)
    with av.open(buffer, "w", format=muxer, options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream(encoder, rate=rate, options=options)
        stream.codec_context.layout = "mono"
        stream.codec_context.bit_rate = bit_rate
        stream.codec_context.flags |= Flags.bitexact
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def _line(summary: dict) -> str:
    skipped = ", ".join(f"{count} {reason}" for reason, count in summary["prompts_skipped"].items()) or "none"
    return (
        f"{summary['language']}, {summary['recordings']} recordings, {summary['hours'] * 60:.1f} min, "
        f"{summary['segments']} segments of {summary['prompts']} prompts; skipped: {skipped}"
    )


def total(corpus: dict, countries_root: str | os.PathLike) -> str:
    """One line on the whole corpus."""
    recordings = sum(summary["recordings"] for summary in corpus["countries"].values())
    size = sum(file["size"] for file in corpus["files"].values()) / 2**20
    amount = f"{recordings} recordings, {corpus['hours']:.2f} h, {size:.0f} MiB"
    return f"{countries_root}: {corpus['source']} speech, {amount}"
