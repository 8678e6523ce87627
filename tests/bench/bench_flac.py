"""Decoding FLAC to float32: our compiled decoder against dr_flac (miniaudio) and soundfile, CPU nanoseconds a
sample.

All sides decode the same clips in one process and one thread, in turns; the median of the rounds is reported.
Speech is what `resources/speech` holds (the demo corpus, espeak), where it is there.
    python -m tests.bench.bench_flac [--rounds 9] [--speech resources/speech]
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile

from millrace.asr.loading.flac_frames import decode_frames, stream_info
from tests.asr.flac_streams import by_dr_flac

RATE, SECONDS = 16_000, 7


def by_us(raw: bytes) -> np.ndarray | None:
    info = stream_info(raw)
    out = np.empty((info.samples, info.channels), np.float32)
    return out if decode_frames(raw, info, out) else None


def by_soundfile(raw: bytes) -> np.ndarray:
    return soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)[0]


SIDES = {"dr_flac": by_dr_flac, "soundfile": by_soundfile, "millrace": by_us}


def voices(count: int) -> list[np.ndarray]:
    """Harmonics with moving pitch over noise, as in the reader benchmark: some 10 bits a sample."""
    rng = np.random.default_rng(0)
    time_s = np.arange(SECONDS * RATE) / RATE
    made = []
    for _ in range(count):
        phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * time_s + rng.uniform(0, 6))) / RATE
        voice = sum(np.sin(harmonic * phase + harmonic) / harmonic for harmonic in range(1, 12))
        loudness = np.clip(np.sin(2 * np.pi * 2.3 * time_s + rng.uniform(0, 6)) + 0.4, 0, None)
        made.append(np.clip(0.15 * voice * loudness + 0.004 * rng.standard_normal(len(time_s)), -1, 1))
    return made


def with_libflac(clips: list[np.ndarray], level: int) -> list[bytes]:
    """Blocks of 4096 samples (1152 at levels below 3)."""
    raws = []
    for clip in clips:
        sink = io.BytesIO()
        soundfile.write(sink, clip, RATE, format="FLAC", subtype="PCM_16", compression_level=level / 8)
        raws.append(sink.getvalue())
    return raws


def with_ffmpeg(clips: list[np.ndarray], level: int, frame_size: int) -> list[bytes]:
    import av

    raws = []
    for clip in clips:
        sink = io.BytesIO()
        with av.open(sink, "w", format="flac") as container:
            stream = container.add_stream("flac", rate=RATE, layout="mono")
            stream.codec_context.options = {"compression_level": str(level), "frame_size": str(frame_size)}
            pcm = (clip * 32767).astype(np.int16).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(pcm, format="s16", layout="mono")
            frame.rate = RATE
            for packet in (*stream.encode(frame), *stream.encode(None)):
                container.mux(packet)
        raws.append(sink.getvalue())
    return raws


def corpora(speech: Path) -> Iterator[tuple[str, list[bytes]]]:
    made = voices(20)
    for level in (0, 5, 8):
        yield f"voices, libFLAC level {level}", with_libflac(made, level)
    for frame_size in (1152, 4096, 4608):
        yield f"voices, FFmpeg, blocks of {frame_size}", with_ffmpeg(made, 5, frame_size)
    rng = np.random.default_rng(1)
    yield "noise", with_libflac([rng.uniform(-0.5, 0.5, SECONDS * RATE) for _ in range(20)], 5)
    yield (
        "two channels",
        with_libflac([np.stack(pair, axis=1) for pair in zip(made[::2], made[1::2], strict=True)], 5),
    )
    spoken = []
    for path in sorted(speech.rglob("*.flac")):
        wave, rate = soundfile.read(path, dtype="float32", always_2d=True)
        if rate == RATE:
            spoken += [wave[at : at + SECONDS * RATE, 0] for at in range(0, len(wave), SECONDS * RATE)]
    if spoken:
        yield "espeak's speech, libFLAC level 5", with_libflac(spoken[:40], 5)


def seconds(decode: Callable[[bytes], np.ndarray | None], raws: list[bytes]) -> float:
    started = time.process_time()
    for raw in raws:
        decode(raw)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--speech", type=Path, default=Path("resources/speech"), help="folder with 16 kHz FLAC"
    )
    args = parser.parse_args()
    for label, raws in corpora(args.speech):
        samples, left = 0, 0
        for raw in raws:
            expected, ours = by_dr_flac(raw), by_us(raw)
            samples += expected.size
            left += ours is None
            if ours is not None and not np.array_equal(ours, expected):
                raise SystemExit(f"{label}: not what dr_flac gives")
        times: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(args.rounds):
            for side, decode in SIDES.items():
                times[side].append(seconds(decode, raws))
        medians = {side: statistics.median(taken) for side, taken in times.items()}
        figures = {f"{side}_ns": round(1e9 * median / samples, 2) for side, median in medians.items()}
        rest = {"bits_a_sample": round(8 * sum(map(len, raws)) / samples, 1), "left_to_dr_flac": left}
        ratio = round(medians["dr_flac"] / medians["millrace"], 2)
        print(json.dumps({"clips": label, **rest, **figures, "times_dr_flac": ratio}))


if __name__ == "__main__":
    main()
