"""Cutting the segments of one recording: decode once, against pydub, which loads it for every
segment.

Both sides run in the same process, in turns; CPU time is that of the process and its children. The
pydub side is measured on one segment and scaled linearly, since each segment costs it the same. It
needs an ffmpeg program: imageio-ffmpeg's packaged one is used (requirements-bench).

The source is speech-like noise; `--source-rate 48000 --channels 2` is a typical video sound track.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from millrace.common import cli
from millrace.speech.audio import cut as audio

MINUTES, SEGMENTS, RATE = 40, 190, 16_000
BARS = {"wav": 50, "m4a": 150}


def make_parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__, __spec__)
    add, count = parser.add_argument, cli.positive_int
    add("--source-rate", type=count, default=48000, help="of the recording (default 48000)")
    add("--channels", type=int, choices=(1, 2), default=1, help="of the recording (default 1)")
    add("--repeats", type=count, default=5, help="runs of each side (default 5)")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    spans = make_spans(MINUTES * 60, SEGMENTS)
    recording = f"{MINUTES} min at {args.source_rate} Hz x {args.channels}"
    print(f"{recording}, {len(spans)} segments -> flac {RATE} Hz")
    print("CPU seconds for all segments, median of runs (min to max); pydub scaled from one")
    print(f"{'source':8}{'ours':>26}{'pydub':>28}{'ratio':>9}{'bar':>9}")
    with tempfile.TemporaryDirectory(prefix="bench_cut_") as folder:
        signal = speech_like(MINUTES * 60, args.source_rate)
        for form, bar in BARS.items():
            path = Path(folder) / f"recording.{form}"
            write_recording(path, signal, args.source_rate, args.channels)
            ours, theirs = [], []
            for turn in range(args.repeats):
                ours.append(cpu(lambda path=path: cut_ours(path, spans)))
                span = spans[turn % len(spans)]
                seconds = cpu(lambda path=path, span=span: cut_pydub(path, span))
                theirs.append(seconds * len(spans))
            ratio = statistics.median(theirs) / statistics.median(ours)
            print(f"{form:8}{spread(ours):>26}{spread(theirs):>28}{ratio:>8.0f}x{f'>= {bar}x':>9}")
            path.unlink()
    return 0


def cut_ours(path: Path, spans: list[tuple[float, float]]) -> None:
    """Every segment as FLAC bytes."""
    for samples in audio.cut(path, spans, RATE):
        audio.encode(samples, RATE, "flac")


def cut_pydub(path: Path, span: tuple[float, float]) -> None:
    """The load-per-segment way."""
    import imageio_ffmpeg
    import pydub.audio_segment
    from pydub import AudioSegment

    AudioSegment.converter = imageio_ffmpeg.get_ffmpeg_exe()
    # pydub asks ffprobe, which imageio-ffmpeg lacks, for facts it can do without; not asking
    # flatters pydub.
    pydub.audio_segment.mediainfo_json = lambda *args, **kwargs: {}
    # Without its own ffprobe pydub is told the container; WAV it reads itself.
    recording = AudioSegment.from_file(str(path), format="wav" if path.suffix == ".wav" else "mp4")
    start, end = span
    segment = recording[int(start * 1000) : int(end * 1000)]
    segment.set_channels(1).set_frame_rate(RATE).export(io.BytesIO(), format="flac")


def make_spans(seconds: float, count: int) -> list[tuple[float, float]]:
    """Segments of 3 to 20 s, spread over the recording."""
    random = np.random.default_rng(0)
    lengths = random.uniform(3, 20, count)
    lengths *= min(1.0, 0.95 * seconds / lengths.sum())
    gaps = np.full(count, (seconds - lengths.sum()) / (count + 1))
    starts = np.cumsum(gaps) + np.cumsum(lengths) - lengths
    return [
        (round(float(a), 3), round(float(a + b), 3)) for a, b in zip(starts, lengths, strict=True)
    ]


def speech_like(seconds: float, rate: int) -> np.ndarray:
    """int16 (n,): a buzz of changing pitch under syllables, with breath noise; compresses as speech
    does."""
    minute = 60 * rate
    random = np.random.default_rng(1)
    t = np.arange(minute) / rate
    pitch = np.interp(t, np.arange(0, 61, 0.5), random.uniform(90, 250, 122))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = (
        sum(np.sin(k * phase) / k for k in range(1, 12)) * 0.1
        + random.standard_normal(minute) * 0.03
    )
    voice *= np.interp(t, np.arange(0, 60.2, 0.1), random.random(602) ** 2)
    once = np.round(np.clip(voice, -1, 1) * 32767).astype(np.int16)
    return np.resize(once, int(seconds * rate))


def write_recording(path: Path, signal: np.ndarray, rate: int, channels: int) -> None:
    """WAV or m4a (AAC 96 kbit/s), written piece by piece."""
    if path.suffix == ".wav":
        import soundfile

        with soundfile.SoundFile(path, "w", rate, channels, "PCM_16") as target:
            for start in range(0, len(signal), 60 * rate):
                target.write(np.repeat(signal[start : start + 60 * rate, None], channels, 1))
        return
    import av

    layout = "mono" if channels == 1 else "stereo"
    with av.open(str(path), "w", format="ipod") as target:
        stream = target.add_stream("aac", rate=rate, layout=layout)
        stream.bit_rate = 96000
        for start in range(0, len(signal), rate):
            block = np.repeat(signal[start : start + rate], channels)[None]
            frame = av.AudioFrame.from_ndarray(block, format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))


def cpu(work) -> float:
    """CPU seconds of `work()`, children included."""
    before = os.times()
    work()
    return sum(os.times()[:4]) - sum(before[:4])


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    sys.exit(main())
