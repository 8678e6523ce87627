"""Recordings to cut, sound and odd ones, and how late what is cut of them is."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import av
import numpy as np

from millrace.speech.audio import cut as audio

RATE = 48000
SECONDS = 24
SPANS = tuple((1.0 + 2 * i, 2.9 + 2 * i) for i in range(11))


def signal(seconds: float = SECONDS, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """int16 (n,): bursts of noise and chirps, nowhere like itself elsewhere, so that any shift
    shows."""
    random = np.random.default_rng(seed)
    n = int(seconds * rate)
    t = np.arange(n) / rate
    corners = 4 * int(seconds) + 4
    pitch = np.interp(t, np.arange(corners) / 4, random.uniform(100, 900, corners))
    corners = 10 * int(seconds) + 20
    level = np.interp(t, np.arange(corners) / 10, random.random(corners) ** 2)
    wave = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / rate) + 0.1 * random.standard_normal(n)
    return np.round(np.clip(wave * level, -1, 1) * 32767).astype(np.int16)


# Of encoders that would take 8 bits.
SAMPLE_FORMATS = {"tta": "s16", "wavpack": "s16p"}


def write_av(path, samples, rate, codec, container, layout="mono", **options: str) -> Path:
    """Encode `samples`, the same in all channels; the muxer takes the options."""
    # Without random ids in Matroska and Ogg: what a damaged byte does must be the same in every
    # run.
    options = {"fflags": "+bitexact", **options}
    with av.open(str(path), "w", format=container, container_options=options) as target:
        stream = target.add_stream(
            codec, rate=rate, layout=layout, options={"strict": "experimental"}
        )
        stream.bit_rate = 96000
        if codec in SAMPLE_FORMATS:
            stream.format = SAMPLE_FORMATS[codec]
        block = np.repeat(samples, stream.layout.nb_channels)[None]
        frame = av.AudioFrame.from_ndarray(block, format="s16", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        for part in (frame, None):
            target.mux(stream.encode(part))
    return path


def write_joined(
    path: Path, parts, codec: str, container: str, between: bytes = b"", layouts=()
) -> None:
    """Encode each of `parts` (samples, rate) as a file, and write these one behind the other."""
    pairs = zip(parts, layouts or ["mono"] * len(parts), strict=True)
    files = [write_av(path, *part, codec, container, layout).read_bytes() for part, layout in pairs]
    path.write_bytes(between.join(files))


def write_video(path: Path, samples: np.ndarray | None) -> Path:
    """A video with `samples` at RATE as its sound track, or without one."""
    picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
    with av.open(str(path), "w") as target:
        video = target.add_stream("mpeg4", rate=5)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        sound = target.add_stream("aac", rate=RATE, layout="mono") if samples is not None else None
        for number in range(5 * SECONDS):
            picture.pts = number
            target.mux(video.encode(picture))
        target.mux(video.encode(None))
        if sound is not None:
            frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = RATE, 0
            for part in (frame, None):
                target.mux(sound.encode(part))
    return path


def wav(riff_size: int, data_size: int, body: bytes, extra: bytes = b"") -> bytes:
    """A WAV of int16 mono at 16 kHz that states these sizes."""
    head = struct.pack(
        "<4sI8sIHHIIHH", b"RIFF", riff_size, b"WAVEfmt ", 16, 1, 1, 16000, 32000, 2, 16
    )
    return head + extra + b"data" + struct.pack("<I", data_size) + body


def damaged(raw: bytes, damage: str, at: int, size: int, random: np.random.Generator) -> bytes:
    """`raw` with `size` bytes at `at` replaced, removed or there twice."""
    before = raw[at : at + size]
    flipped = bytearray(before)
    for place in random.integers(0, len(before), 20):
        flipped[place] ^= 1 << int(random.integers(8))
    after = {
        "random": random.bytes(len(before)),
        "zeros": bytes(len(before)),
        "removed": b"",
        "twice": before + before,
        "flipped": bytes(flipped),
    }
    return raw[:at] + after[damage] + raw[at + size :]


def offset(expected: np.ndarray, segment: np.ndarray, limit: int = 4800) -> int:
    """By how many samples `segment` is late, by cross-correlation."""
    size = 1 << math.ceil(math.log2(len(expected) + len(segment)))
    product = np.fft.rfft(segment.astype(float), size) * np.conj(
        np.fft.rfft(expected.astype(float), size)
    )
    scores = np.fft.irfft(product, size)
    return int(np.argmax(np.concatenate([scores[-limit:], scores[:limit]]))) - limit


def offsets(path: Path, source: np.ndarray, spans=SPANS, rate: int = RATE) -> list[int | str]:
    """For each span by how many samples it is late, or the reason why there is none."""
    result: list[int | str] = []
    for (start, end), segment in zip(spans, audio.cut(path, spans, rate), strict=True):
        if isinstance(segment, audio.AudioError):
            result.append(segment.reason)
        else:
            assert segment.dtype == np.int16 and segment.ndim == 1
            result.append(offset(source[round(start * rate) : round(end * rate)], segment))
    return result


def is_in_place(path: Path, source: np.ndarray, spans=SPANS, rate: int = RATE) -> bool:
    """Whether all spans lie within 10 ms of where they were."""
    late = offsets(path, source, spans, rate)
    return all(isinstance(samples, int) and abs(samples) <= rate // 100 for samples in late)


def exact(path: Path, samples: np.ndarray, spans, rate: int = 16000) -> list[bool]:
    """For each span whether there is a segment; one that is not exactly what went in fails."""
    is_cut = []
    for (start, end), segment in zip(spans, audio.cut(path, spans, rate), strict=True):
        is_cut.append(not isinstance(segment, audio.AudioError))
        if is_cut[-1]:
            np.testing.assert_array_equal(segment, samples[round(start * rate) : round(end * rate)])
    return is_cut
