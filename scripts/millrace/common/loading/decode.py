"""Decode one clip to mono float32, by its bytes, never its name: which sound is damaged, cut, far
too loud or of an absurd rate, and which channels cancel each other.

FLAC is decoded by dr_flac (miniaudio): equal to soundfile bit for bit, 1.7 times as fast, as it
skips libFLAC's MD5 of the whole stream. It checks every frame's CRC-16. PCM16 WAV is read in place.
The rest is soundfile's, and PyAV's where soundfile cannot (MP4, Matroska, ADTS). Decoding releases
the GIL.
"""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import numpy as np
import soundfile

from millrace.common.loading.bad_samples import SampleError
from millrace.common.loading.ogg import ogg_bytes

SAMPLING_RATE = 16_000
_PCM16 = np.float32(1 / 32768)
LOUDEST = 100
"""Times full scale: floats above are no sound, but on the scale of whole numbers."""

_CHUNK_FRAMES = 1 << 20
_MIN_CHANNEL_SAMPLES = 100  # of every seventh; fewer show nothing about how two channels relate
_RATES = (
    2_000,
    768_000,
)  # what is outside is damage, and would become any number of samples when resampled
# No FLAC of sound comes near this many samples a byte: if the header claims more, it is read piece
# by piece.
_TRUSTED_FRAMES_PER_BYTE = 64
_PIPED = 0xFFFFFFFF
_EXTENSIBLE = 0xFFFE
_NO_SIZE = 1 << 62  # bytes; a size above was never filled in
# Formats that soundfile may not read, by PyAV's name and their first bytes (mov: bytes 4 to 8).
# PyAV must not guess: some of the formats it would try (playlists) open other files.
_AV_MAGICS = {
    "matroska": (b"\x1a\x45\xdf\xa3",),
    "ogg": (b"OggS",),
    "mp3": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
    "aac": (b"\xff\xf1", b"\xff\xf9"),
}
_STATES_DURATION = ("matroska", "mov")  # others estimate it


class DecodeError(SampleError):
    """A member that cannot be decoded whole.

    Reasons: empty, not_audio, damaged, truncated, no_samples, not_finite, over_full_scale,
    longer_than_manifest, shorter_than_manifest.
    """


def decode(
    raw: bytes, sampling_rate: int = SAMPLING_RATE, max_seconds: float = math.inf
) -> np.ndarray:
    """Decode `raw` to float32 in [-1, 1], shape (samples,), mono at `sampling_rate`.

    Channels become one as in `decode_mono`, other rates go through soxr (HQ). No more than
    `max_seconds` are decoded: a small file may hold hours of silence. Raises DecodeError.
    """
    mono, rate = decode_mono(raw, max_seconds)
    if rate != sampling_rate:
        import soxr

        mono = soxr.resample(mono, rate, sampling_rate)
    if not len(mono):
        raise DecodeError("no_samples", "the audio holds no samples")
    return np.ascontiguousarray(mono, np.float32)


def decode_mono(raw: bytes, max_seconds: float = math.inf) -> tuple[np.ndarray, int]:
    """Decode to float32 (samples,) and the sampling rate: the mean of the channels, or the first
    of two that cancel each other. Raises DecodeError."""
    frames, rate = decode_channels(raw, max_seconds)
    if not len(frames):
        raise DecodeError("no_samples", "the audio holds no samples")
    if not _RATES[0] <= rate <= _RATES[1]:
        raise DecodeError("damaged", f"the header says {rate} Hz")
    if frames.shape[1] == 1 or cancel(list(frames.T)):
        mono = frames[:, 0]
    else:
        mono = frames.mean(axis=1)
    return mono, rate


def cancel(channels: list[np.ndarray]) -> bool:
    """Whether two channels cancel each other: one is wired wrongly then."""
    if len(channels) != 2:
        return False
    zero = 128 if channels[0].dtype == np.uint8 else 0
    left, right = (channel[::7].astype(np.float64) - zero for channel in channels)
    if len(left) < _MIN_CHANNEL_SAMPLES:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        both = left + right
        return are_opposite(np.dot(left, left) + np.dot(right, right), np.dot(both, both))


def are_opposite(loudness: float, loudness_of_sum: float) -> bool:
    """Whether the sum of two channels is 30 dB below them, by their sums of squares: no two
    microphones, and no stereo mix, are so opposite."""
    return bool(loudness > 0 and loudness_of_sum < 1e-3 * loudness)


# Containers that know the number of their samples.
_COUNTING = {"WAV", "WAVEX", "FLAC", "AIFF", "RF64", "W64", "CAF"}


def decode_channels(raw: bytes, max_seconds: float = math.inf) -> tuple[np.ndarray, int]:
    """Decode to float32 (frames, channels) and the sampling rate, as soundfile would.

    Raises DecodeError, and for more than `max_seconds` before more has been decoded.
    """
    head = bytes(raw[:12])
    if not head:
        raise DecodeError("empty", "the member has no bytes")
    if head[:4] == b"fLaC":
        return decode_flac(raw, max_seconds=max_seconds)
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        pcm = _wav_pcm16(raw, max_seconds)
        if pcm is not None:
            return pcm
    frames, rate = _decode_with_libraries(raw, head, max_seconds)
    if not np.isfinite(frames).all():
        raise DecodeError("not_finite", "the audio holds NaN or infinite samples")
    peak = np.abs(frames).max(initial=0)
    if peak > LOUDEST:
        problem = f"samples up to {peak:,.0f}, where 1 is full scale: floats on the scale of int16?"
        raise DecodeError("over_full_scale", problem)
    return frames, rate


def _decode_with_libraries(raw: bytes, head: bytes, max_seconds: float) -> tuple[np.ndarray, int]:
    """Decode with libsndfile, or FFmpeg what that refuses; as `decode_channels`."""
    container, declared = _declared_bytes(raw)
    if len(raw) + 1 < declared < _NO_SIZE:
        raise DecodeError("truncated", f"{container}: {len(raw)} of {declared} bytes are there")
    if not bytes(raw[: 1 << 16]).strip(b"\0"):
        problem = "the member begins with zero bytes only (a hole in the tar?)"
        raise DecodeError("not_audio", problem)

    declared = 0
    container = ""
    try:
        with soundfile.SoundFile(io.BytesIO(raw)) as sound:
            pieces = [np.empty((0, sound.channels), np.float32)]
            count = 0
            chunk = max(1, _CHUNK_FRAMES // sound.channels)
            while len(piece := sound.read(chunk, dtype="float32", always_2d=True)):
                pieces.append(piece)
                count += len(piece)
                _check_length(count, sound.samplerate, max_seconds)
            frames = np.concatenate(pieces)
            rate = sound.samplerate
            declared = sound.frames
            container = sound.format
    except (
        soundfile.LibsndfileError,
        RuntimeError,
        ValueError,
        MemoryError,
        OverflowError,
    ) as refused:
        frames, rate = _av(raw, head, refused, max_seconds)
    # Lossy containers estimate their length; the others know it.
    if container in _COUNTING and len(frames) < declared:
        problem = f"{container}: {len(frames)} of {declared} samples can be decoded"
        raise DecodeError("truncated", problem)
    return frames, rate


def _declared_bytes(raw: bytes) -> tuple[str, int]:
    """The container and its bytes by what it says, of those that libsndfile reads as far as they
    are there; 0 bytes of all others."""
    if raw[:4] == b"FORM":
        return "AIFF", int.from_bytes(raw[4:8], "big") + 8
    if raw[:4] == b"RF64":
        return "RF64", int.from_bytes(raw[20:28], "little") + 8
    if raw[:4] == b"riff":  # as the GUID of W64 begins
        return "W64", int.from_bytes(raw[16:24], "little")
    if raw[:4] == b"OggS":
        return "Ogg", ogg_bytes(raw)
    return "", 0


def _check_length(frames: int, rate: int, max_seconds: float) -> None:
    if frames > max_seconds * rate:
        problem = f"more than {max_seconds:.2f} s of sound, the most that its manifest allows"
        raise DecodeError("longer_than_manifest", problem)


def flac_samples(raw: bytes, sampling_rate: int = SAMPLING_RATE) -> int:
    """Samples in a mono FLAC at `sampling_rate` by its header; 0 for anything else, or if it does
    not say."""
    # STREAMINFO is the first block: 20 bits rate, 3 channels - 1, 5 sample size - 1, 36 samples.
    if raw[:4] != b"fLaC" or len(raw) < 42 or raw[4] & 0x7F:
        return 0
    facts = int.from_bytes(raw[18:26], "big")
    if facts >> 44 != sampling_rate or facts >> 41 & 7:
        return 0
    samples = facts & ((1 << 36) - 1)
    return samples if samples <= _TRUSTED_FRAMES_PER_BYTE * len(raw) else 0


def decode_flac(
    raw: bytes, out: np.ndarray | None = None, max_seconds: float = math.inf
) -> tuple[np.ndarray, int]:
    """Decode a FLAC to float32 (frames, channels) and its sampling rate.

    Raises DecodeError, and for more than `max_seconds` before more has been decoded.

    A mono FLAC may be decoded into `out`, float32 of `flac_samples(raw)` samples.
    """
    from miniaudio import ffi, lib

    def read(to: np.ndarray) -> np.ndarray:
        return to[
            : lib.ma_dr_flac_read_pcm_frames_f32(handle, len(to), ffi.from_buffer("float[]", to))
        ]

    handle = lib.ma_dr_flac_open_memory(ffi.from_buffer(raw), len(raw), ffi.NULL)
    if handle == ffi.NULL:
        raise DecodeError("damaged", "the FLAC header or the first frame is damaged")
    try:
        declared = handle.totalPCMFrameCount
        channels = handle.channels
        rate = handle.sampleRate
        if out is not None and (channels != 1 or declared != len(out)):
            raise DecodeError("damaged", "the FLAC header or the first frame is damaged")
        _check_length(declared, rate, max_seconds)
        if out is None and 0 < declared <= _TRUSTED_FRAMES_PER_BYTE * len(raw):
            out = np.empty((declared, channels), np.float32)
        if out is not None:
            frames = read(out)
        else:
            # The header does not say how many, or claims more than can be believed: read until the
            # end.
            pieces = [read(np.empty((_CHUNK_FRAMES, channels), np.float32))]
            while len(pieces[-1]) == _CHUNK_FRAMES:
                _check_length(len(pieces) * _CHUNK_FRAMES, rate, max_seconds)
                pieces.append(read(np.empty((_CHUNK_FRAMES, channels), np.float32)))
            frames = np.concatenate(pieces)
    finally:
        lib.ma_dr_flac_close(handle)
    # A frame whose CRC is wrong is skipped by dr_flac, so that damage shows as missing samples.
    if len(frames) < declared:
        message = f"FLAC, cut or damaged: {len(frames)} of {declared} samples can be decoded"
        raise DecodeError("damaged", message)
    return frames, rate


def _wav_pcm16(raw: bytes, max_seconds: float) -> tuple[np.ndarray, int] | None:
    """PCM16 in RIFF, or None for another encoding (left to soundfile, which would accept a missing
    end). A WAV that was written to a pipe may say _PIPED: sound up to the end."""
    view = memoryview(raw)
    channels = rate = 0
    is_pcm16 = False
    position = 12
    while position + 8 <= len(view):
        name, size = struct.unpack_from("<4sI", view, position)
        position += 8
        left = len(view) - position
        if name == b"fmt ":
            if size < 16 or left < 16:
                raise DecodeError("damaged", "the WAV's fmt chunk is cut")
            tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", view, position)
            if tag == _EXTENSIBLE and 26 <= size <= left:
                (tag,) = struct.unpack_from("<H", view, position + 24)
            is_pcm16 = (tag, bits, align) == (1, 16, 2 * channels)
        elif name == b"data":
            if not rate or not channels:
                raise DecodeError("damaged", "the WAV's data comes without channels and rate")
            if size == _PIPED:
                size = left
            if size > left:
                raise DecodeError("truncated", f"WAV: {left} of {size} bytes of sound are there")
            if not is_pcm16:
                return None
            count = size // align  # half a frame at the end is dropped
            _check_length(count, rate, max_seconds)
            frames = np.frombuffer(view, "<i2", count * channels, position)
            samples = np.multiply(frames, _PCM16, dtype=np.float32)
            return samples.reshape(-1, channels), rate
        position += size + (size & 1)
    raise DecodeError("truncated", "the WAV has no data chunk")


def _av(raw: bytes, head: bytes, refused: Exception, max_seconds: float) -> tuple[np.ndarray, int]:
    names = ["mov"] if head[4:8] == b"ftyp" else []
    names += [name for name, magics in _AV_MAGICS.items() if head.startswith(magics)]
    if not names:
        problem = f"no known audio format begins with the bytes {head[:8]!r}"
        raise DecodeError("not_audio", problem) from refused
    import av

    name = names[0]
    try:
        with av.open(io.BytesIO(raw), mode="r", format=name) as container:
            if not container.streams.audio:
                raise DecodeError("not_audio", f"the {name} file has no audio stream")
            stream = container.streams.audio[0]
            rate = stream.rate
            states = name in _STATES_DURATION and len(container.streams) == 1
            stated = (container.duration or 0) / 1e6 if states else 0.0
            blocks: list[np.ndarray] = []
            count = 0
            for frame in container.decode(stream):
                block = _floats(frame)
                if not blocks:
                    rate = frame.sample_rate
                elif (frame.sample_rate, block.shape[1]) != (rate, blocks[0].shape[1]):
                    problem = f"the {name} file has several sample rates or channel counts"
                    raise DecodeError("damaged", problem)
                blocks.append(block)
                count += len(block)
                _check_length(count, rate, max_seconds)
    except (av.FFmpegError, ValueError, MemoryError) as error:
        raise DecodeError("damaged", f"the {name} file cannot be decoded: {error}") from error
    if (seconds := count / rate) < 0.98 * stated - 0.5:
        raise DecodeError("truncated", f"{name}: {seconds:.2f} of {stated:.2f} s can be decoded")
    return np.concatenate(blocks) if blocks else np.empty((0, 1), np.float32), rate


def _floats(frame: Any) -> np.ndarray:
    """float32 samples (n, channels) of a decoded frame.

    FFmpeg's resampler would do this with threads, and Python may free it in a process that was
    forked since, where they do not exist: that process would wait for them for ever.
    """
    samples = frame.to_ndarray()
    if frame.format.is_planar:
        by_row = samples.T
    else:
        by_row = samples.reshape(-1, frame.layout.nb_channels)
    if samples.dtype.kind == "f":
        return by_row.astype(np.float32)
    size = 2.0 ** (8 * samples.dtype.itemsize - 1)
    middle = size if samples.dtype.kind == "u" else 0
    return (by_row.astype(np.float32) - np.float32(middle)) / np.float32(size)
