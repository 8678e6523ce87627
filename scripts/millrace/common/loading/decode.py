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
import re
import struct
from typing import Any

import numpy as np
import soundfile

from millrace.common.loading.bad_samples import SampleError
from millrace.common.loading.sizes import stated_bytes

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


# libsndfile knows more, some of them by two bytes only, and takes what is left of a cut one for the
# whole.
_CONTAINERS = {"WAV", "WAVEX", "FLAC", "AIFF", "RF64", "W64", "CAF", "AU", "NIST", "OGG", "MP3"}
_ESTIMATING = ("OGG", "MP3")  # their length; the others know it
_FIRST_OGG_PAGE = b"OggS\0\x02"
_LATER_OGG_PAGE = b"OggS\0\0"
# Behind the sound of an MP3: tags, whose pictures may look like more of it, and its next frame.
_MP3_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN")
_MP3_FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xef]")


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
    container, stated = stated_bytes(raw)
    if len(raw) + 1 < stated:
        raise DecodeError("truncated", f"{container}: {len(raw)} of {stated} bytes are there")
    # libsndfile decodes one recording alone.
    if container == "Ogg" and raw.find(_FIRST_OGG_PAGE, raw.find(_LATER_OGG_PAGE)) > 0:
        raise DecodeError("damaged", "Ogg: another recording is joined on")
    if not bytes(raw[: 1 << 16]).strip(b"\0"):
        problem = "the member begins with zero bytes only (a hole in the tar?)"
        raise DecodeError("not_audio", problem)
    try:
        return _sndfile(raw, max_seconds)
    except (RuntimeError, ValueError, MemoryError, OverflowError) as refused:
        name = _av_name(head, refused)
    return _av(raw, name, max_seconds)


def _sndfile(raw: bytes, max_seconds: float) -> tuple[np.ndarray, int]:
    """Decode with libsndfile, and with FFmpeg an MP3 of which that leaves out the end."""
    file = io.BytesIO(raw)
    with soundfile.SoundFile(file) as sound:
        if sound.format not in _CONTAINERS:
            raise DecodeError("not_audio", f"{sound.format} is not supported")
        pieces = [np.empty((0, sound.channels), np.float32)]
        count = 0
        chunk = max(1, _CHUNK_FRAMES // sound.channels)
        while len(piece := sound.read(chunk, dtype="float32", always_2d=True)):
            pieces.append(piece)
            count += len(piece)
            _check_length(count, sound.samplerate, max_seconds)
        end = file.tell()
    container = sound.format
    declared = sound.frames
    # libsndfile ends an MP3 where the length ends that its beginning states, or lets it estimate:
    # too early without a Xing header, or if another one is joined on; and where channels change.
    if container == "MP3" and sound.subtype == "MPEG_LAYER_III" and _goes_on(bytes(raw[end:])):
        return _av(raw, "mp3", max_seconds)
    if container == "NIST":  # of which libsndfile believes the size of the file
        declared = max(map(int, re.findall(rb"\nsample_count -i (\d+)", raw[:1024])), default=0)
    if container not in _ESTIMATING and count < declared:
        problem = f"{container}: {count} of {declared} samples can be decoded"
        raise DecodeError("truncated", problem)
    return np.concatenate(pieces), sound.samplerate


def _goes_on(rest: bytes) -> bool:
    """Whether more frames follow in the rest of an MP3."""
    return not rest.startswith(_MP3_TAGS) and _MP3_FRAME.search(rest) is not None


def _check_length(frames: int, rate: int, max_seconds: float) -> None:
    if frames > max_seconds * rate:
        problem = f"more than {max_seconds:.2f} s of sound, the most that its manifest allows"
        raise DecodeError("longer_than_manifest", problem)


def flac_samples(raw: bytes) -> int:
    """Samples in a mono FLAC at SAMPLING_RATE by its header; 0 for anything else, or if it does not
    say."""
    # STREAMINFO is the first block: 20 bits rate, 3 channels - 1, 5 sample size - 1, 36 samples.
    if raw[:4] != b"fLaC" or len(raw) < 42 or raw[4] & 0x7F:
        return 0
    facts = int.from_bytes(raw[18:26], "big")
    if facts >> 44 != SAMPLING_RATE or facts >> 41 & 7:
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
        if len(frames) == declared and len(read(np.empty((1, channels), np.float32))):
            raise DecodeError("damaged", f"FLAC: more than the {declared} samples that it states")
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


def _av_name(head: bytes, refused: Exception) -> str:
    """PyAV's name of the container that begins with `head`. Raises DecodeError for others."""
    if head[4:8] == b"ftyp":
        return "mov"
    for name, magics in _AV_MAGICS.items():
        if head.startswith(magics):
            return name
    problem = f"no known audio format begins with the bytes {head[:8]!r}"
    raise DecodeError("not_audio", problem) from refused


def _av(raw: bytes, name: str, max_seconds: float) -> tuple[np.ndarray, int]:
    """Decode with FFmpeg, as the container of PyAV's `name`; as `decode_channels`."""
    import av

    try:
        with av.open(io.BytesIO(raw), "r", name, metadata_errors="replace") as container:
            if not container.streams.audio:
                raise DecodeError("not_audio", f"the {name} file has no audio stream")
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise DecodeError("not_audio", f"the {name} file has a codec that is not supported")
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
    from av.audio.frame import format_dtypes

    channels = frame.layout.nb_channels
    if frame.format.is_planar:
        # Of 8 channels PyAV lists one plane more, which points nowhere: its own array of them ends
        # the process.
        kind = format_dtypes[frame.format.name]
        planes = [np.frombuffer(plane, kind, frame.samples) for plane in frame.planes[:channels]]
        samples = np.stack(planes, axis=1)
    else:
        samples = frame.to_ndarray().reshape(-1, channels)
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    size = 2.0 ** (8 * samples.dtype.itemsize - 1)
    middle = size if samples.dtype.kind == "u" else 0
    return (samples.astype(np.float32) - np.float32(middle)) / np.float32(size)
