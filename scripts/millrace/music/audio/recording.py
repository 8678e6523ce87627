"""The CQT of a recording: decoded to mono at 16 kHz and refused if it is damaged, cut or too short;
then linear magnitudes of 84 bins, 50 times a second."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from millrace.common.loading.decode import LOUDEST, are_opposite
from millrace.common.loading.sizes import stated_bytes
from millrace.music.features.decisions import check_values
from millrace.music.features.track import Refused

if TYPE_CHECKING:
    import av

RATE = 16_000  # Hz
HOP = 320  # samples
BINS = 84  # of a twelfth of an octave
LOWEST = 32.70  # Hz
HOP_SECONDS = HOP / RATE
_ESTIMATED = ("mp3", "aac")  # containers whose length FFmpeg guesses
_MAX_LOST = 0.02  # of a recording's packets or seconds
_XING_PLACES = (13, 21, 36)  # in an MP3's first frame: by its version and channels
_XING_END = 36 + 16
_UNSTATED = 0x7FFFF000  # bytes: a WAV that was written to a pipe says so many, or more
# A small file may hold days of silence. No music takes fewer bytes a second, but for its pauses.
_LEAST_BYTES_PER_SECOND = 1000
_PAUSES = 600  # seconds
# What a recording may come in. Without a list FFmpeg follows playlists to other files.
_FORMATS = "aac,aiff,asf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,w64,wav"


@dataclass
class _Stereo:
    """Sums of squares of two channels, and of their sum. Other numbers of channels add nothing."""

    to_floats: av.AudioResampler
    loudness: float = 0.0
    loudness_of_sum: float = 0.0

    def add(self, frame: av.AudioFrame) -> None:
        if frame.layout.nb_channels != 2:
            return
        for block in self.to_floats.resample(frame):
            channels = block.to_ndarray()
            both = channels.sum(axis=0)
            self.loudness += float(np.vdot(channels, channels))
            self.loudness_of_sum += float(np.vdot(both, both))

    def check(self) -> None:
        """Raise Refused for channels of which the mix is next to nothing."""
        if are_opposite(self.loudness, self.loudness_of_sum):
            words = "the two channels cancel each other: write it anew with one of them"
            raise Refused("opposite_channels", words)


def _opened(path: str | os.PathLike) -> av.container.InputContainer:
    """The file by its descriptor, so that no name is taken for a protocol or a format."""
    import av

    descriptor = os.open(path, os.O_RDONLY)
    options = {
        "fd": str(descriptor),
        "protocol_whitelist": "fd",
        "format_whitelist": _FORMATS,
    }
    try:
        return av.open("fd:", "r", options=options, metadata_errors="ignore")
    finally:
        os.close(descriptor)


def decode(path: str | os.PathLike) -> np.ndarray:
    """float32 samples (n,) of a recording, mono at 16 kHz. Raises Refused if it is damaged or
    cut, lasts longer than sound in so few bytes can, or if its channels cancel each other."""
    import av

    blocks: list[np.ndarray] = []
    packets = damaged = decoded = 0
    try:
        with contextlib.closing(_opened(path)) as container:
            if not container.streams.audio:
                raise Refused("no_audio", "the file has no audio")
            size = os.path.getsize(path)
            _check_whole(path)
            stated = _stated_seconds(container)
            _check_length(stated, size)
            resampler = av.AudioResampler("flt", "mono", RATE)
            stereo = _Stereo(av.AudioResampler("fltp"))
            for packet in container.demux(container.streams.audio[0]):
                packets += 1
                try:
                    frames = packet.decode()
                except av.InvalidDataError:
                    damaged += 1
                    continue
                for frame in frames:
                    stereo.add(frame)
                    blocks += [out.to_ndarray()[0] for out in resampler.resample(frame)]
                    decoded += frame.samples
                    _check_length(decoded / frame.sample_rate, size)
            blocks += [out.to_ndarray()[0] for out in resampler.resample(None)]
    except (av.FFmpegError, OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise Refused("undecodable", f"no audio can be decoded ({words})") from None
    samples = np.concatenate([np.zeros(0, np.float32), *blocks])
    seconds = len(samples) / RATE
    if damaged > _MAX_LOST * packets or seconds < (1 - _MAX_LOST) * stated:
        words = f"{damaged} of {packets} packets cannot be decoded"
        raise Refused("damaged", f"{words}; {seconds:.1f} s of {stated:.1f} s are left")
    stereo.check()
    return samples


def _stated_seconds(container: av.container.InputContainer) -> float:
    """What the container says that its sound lasts; 0 if it does not say."""
    import av

    track = container.streams.audio[0]
    if container.format.name in _ESTIMATED:
        return 0.0
    if track.duration and track.time_base:  # the picture beside it may last longer
        return float(track.duration * track.time_base)
    return (container.duration or 0) / av.time_base


def _check_whole(path: str | os.PathLike) -> None:
    """Raise Refused for a file that says that it was longer: FFmpeg takes what is left of it for
    the whole."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        head = raw[:10]
        tag_size = _tag_size(head)
        container, stated = stated_bytes(raw)
        stated = stated or _riff_size(head) or _xing_size(raw[tag_size : tag_size + _XING_END])
        there = len(raw) - tag_size
    lost = stated - there
    if lost > (0 if container == "Ogg" else _MAX_LOST * stated):
        raise Refused("damaged", f"it is cut: {there:,} bytes of {stated:,} are there")


def _riff_size(head: bytes) -> int:
    """The bytes that a WAV says it has; 0 if it does not say, or is none."""
    stated = 8 + int.from_bytes(head[4:8], "little")
    if head[:4] == b"RIFF" and stated < _UNSTATED:
        return stated
    return 0


def _tag_size(head: bytes) -> int:
    """The bytes of the ID3 tag that a file begins with: its head, and four times 7 bits."""
    if head[:3] != b"ID3":
        return 0
    size = 0
    for byte in head[6:]:
        size = size << 7 | byte & 0x7F
    return len(head) + size


def _xing_size(frame: bytes) -> int:
    """The bytes from the first frame of an MP3 on, by that frame; 0 if it does not say, or is
    none."""
    if frame[:1] != b"\xff":
        return 0
    padded = frame.ljust(_XING_END, b"\0")
    for place in _XING_PLACES:
        name, flags, _, stated = struct.unpack_from(">4sIII", padded, place)
        states_both = flags & 3 == 3  # frames, then bytes
        if name in (b"Xing", b"Info") and states_both:
            return stated
    return 0


def _check_length(seconds: float, size: int) -> None:
    longest = _PAUSES + size / _LEAST_BYTES_PER_SECOND
    if seconds > longest:
        words = f"more than {longest:.0f} s in {size:,} bytes are no music"
        raise Refused("too_long", f"{words}: is most of it silence?")


def cqt(samples: np.ndarray) -> np.ndarray:
    """float32 linear magnitudes (84, T) of mono samples at 16 kHz, a frame every 0.02 s."""
    import librosa

    return np.abs(librosa.cqt(samples, sr=RATE, hop_length=HOP, fmin=LOWEST, n_bins=BINS))


def features(path: str | os.PathLike) -> np.ndarray:
    """The CQT of a recording. Raises Refused if there is none, less than a second, or silence
    only."""
    samples = decode(path)
    seconds = len(samples) / RATE
    if seconds < 1:
        raise Refused("too_short", f"{seconds:.2f} s; one second is the least")
    if not np.isfinite(samples).all():
        raise Refused("not_finite", "samples are NaN or infinite")
    peak = np.abs(samples).max()
    if peak > LOUDEST:
        problem = f"samples up to {peak:,.0f}, where 1 is full scale: floats on the scale of int16?"
        raise Refused("over_full_scale", problem)
    magnitudes = cqt(samples)
    check_values([magnitudes])
    return magnitudes
