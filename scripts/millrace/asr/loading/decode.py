"""Decode the bytes of one audio member to mono float32; the container is recognised by content, never by
name.

FLAC is decoded by dr_flac (miniaudio): equal to soundfile bit for bit, 1.7 times as fast, as it skips
libFLAC's MD5 of the whole stream. It checks every frame's CRC-16. PCM16 WAV is read in place. The rest is
soundfile's, and PyAV's where soundfile cannot (MP4, Matroska, ADTS). Each call releases the GIL while it
decodes.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import soundfile

SAMPLING_RATE = 16_000
_PCM16 = np.float32(1 / 32768)
_CHUNK_FRAMES = 1 << 20
_RATES = 2_000, 768_000  # what is outside is damage, and would become any number of samples when resampled
# No FLAC that encodes sound comes near this many samples a byte: a header that claims more is read piece by
# piece.
_TRUSTED_FRAMES_PER_BYTE = 64
_NO_FLAC = "the FLAC header or the first frame is damaged"
_UNKNOWN_WAV_SIZES = (0, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFFFFF)  # what writers to a pipe leave in the header
# MP4, Matroska and others soundfile does not read: (offset, magic, PyAV's name). PyAV never guesses, because
# some of the formats it would try (playlists) open other files.
_AV_MAGICS = (
    (4, b"ftyp", "mov"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (0, b"\xff\xf1", "aac"),
    (0, b"\xff\xf9", "aac"),
    (0, b"\xff\xfb", "mp3"),
    (0, b"\xff\xf3", "mp3"),
    (0, b"\xff\xf2", "mp3"),
    (0, b"\x30\x26\xb2\x75", "asf"),
    (0, b"#!AMR", "amr"),
)


class DecodeError(Exception):
    """A member that cannot be decoded whole. `reason` is a slug for counts, the message is for people.

    Reasons: empty, not_audio, damaged, truncated, no_samples, not_finite.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(reason, message)

    def __str__(self) -> str:
        return self.args[1]


def decode(raw: bytes, sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """Decode `raw` to float32 in [-1, 1], shape (samples,), mono at `sampling_rate`.

    Channels are averaged, other rates go through soxr (HQ). Raises DecodeError.
    """
    frames, rate = decode_channels(raw)
    if not _RATES[0] <= rate <= _RATES[1]:
        raise DecodeError("damaged", f"the header says {rate} Hz")
    mono = frames[:, 0] if frames.shape[1] == 1 else frames.mean(axis=1)
    if rate != sampling_rate:
        import soxr

        mono = soxr.resample(mono, rate, sampling_rate)
    if not len(mono):
        raise DecodeError("no_samples", "the audio holds no samples")
    return np.ascontiguousarray(mono, dtype=np.float32)


def decode_channels(raw: bytes) -> tuple[np.ndarray, int]:
    """Decode `raw` to (float32 of shape (frames, channels), sampling rate), as soundfile would. Raises
    DecodeError."""
    head = bytes(raw[:12])
    if not head:
        raise DecodeError("empty", "the member has no bytes")
    if head[:4] == b"fLaC":
        return _flac(raw)
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        pcm = _wav_pcm16(raw)
        if pcm is not None:
            return pcm
    if head[:4] == b"FORM" and int.from_bytes(head[4:8], "big") > len(raw) - 8 + 1:
        raise DecodeError(
            "truncated", f"AIFF: {len(raw)} of {int.from_bytes(head[4:8], 'big') + 8} bytes are there"
        )
    if not bytes(raw[: 1 << 16]).strip(b"\0"):
        raise DecodeError("not_audio", "the member begins with zero bytes only (a hole in the tar?)")
    return _any(raw)


def flac_samples(raw: bytes, sampling_rate: int = SAMPLING_RATE) -> int:
    """Samples in a mono FLAC at `sampling_rate` by its header; 0 for anything else, or if it does not say."""
    # STREAMINFO is the first block: 20 bits rate, 3 bits channels - 1, 5 bits sample size - 1, 36 bits
    # samples.
    if raw[:4] != b"fLaC" or len(raw) < 42 or raw[4] & 0x7F:
        return 0
    facts = int.from_bytes(raw[18:26], "big")
    if facts >> 44 != sampling_rate or facts >> 41 & 7:
        return 0
    samples = facts & ((1 << 36) - 1)
    return samples if samples <= _TRUSTED_FRAMES_PER_BYTE * len(raw) else 0


def decode_flac_into(raw: bytes, out: np.ndarray) -> None:
    """Decode a FLAC of `flac_samples(raw)` samples into `out`, float32 of that length. Raises DecodeError."""
    with _dr_flac(raw) as (header, read):
        if header.channels != 1 or header.totalPCMFrameCount != len(out):
            raise DecodeError("damaged", _NO_FLAC)
        _check_whole(read(out), len(out))


def _flac(raw: bytes) -> tuple[np.ndarray, int]:
    with _dr_flac(raw) as (header, read):
        declared, channels, rate = header.totalPCMFrameCount, header.channels, header.sampleRate
        if 0 < declared <= _TRUSTED_FRAMES_PER_BYTE * len(raw):
            frames = np.empty((declared, channels), np.float32)
            _check_whole(read(frames), declared)
            return frames, rate
        # The header does not say how many, or claims more than can be believed: read until the end.
        pieces, count = [], _CHUNK_FRAMES
        while count == _CHUNK_FRAMES:
            piece = np.empty((_CHUNK_FRAMES, channels), np.float32)
            count = read(piece)
            pieces.append(piece[:count])
    frames = np.concatenate(pieces)
    _check_whole(len(frames), declared)
    if not len(frames):
        raise DecodeError("no_samples", "the FLAC stream holds no samples")
    return frames, rate


@contextlib.contextmanager
def _dr_flac(raw: bytes) -> Iterator[tuple[Any, Any]]:
    """dr_flac's header, and `read(out)`, which fills float32 (frames, ...) and returns how many."""
    from miniaudio import ffi, lib

    handle = lib.ma_dr_flac_open_memory(ffi.from_buffer(raw), len(raw), ffi.NULL)
    if handle == ffi.NULL:
        raise DecodeError("damaged", _NO_FLAC)

    def read(out: np.ndarray) -> int:
        return lib.ma_dr_flac_read_pcm_frames_f32(handle, len(out), ffi.from_buffer("float[]", out))

    try:
        yield handle, read
    finally:
        lib.ma_dr_flac_close(handle)


def _check_whole(frames: int, declared: int) -> None:
    # A frame whose CRC is wrong is skipped by dr_flac, so that damage shows as missing samples.
    if frames < declared:
        raise DecodeError("damaged", f"FLAC, cut or damaged: {frames} of {declared} samples can be decoded")


def _wav_pcm16(raw: bytes) -> tuple[np.ndarray, int] | None:
    """PCM16 in RIFF, or None for another encoding (left to soundfile, which would accept a missing end)."""
    view, position, layout = memoryview(raw), 12, None
    while position + 8 <= len(view):
        name, size = struct.unpack_from("<4sI", view, position)
        position += 8
        if name == b"fmt ":
            if size < 16 or position + 16 > len(view):
                raise DecodeError("damaged", "the WAV's fmt chunk is cut")
            tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", view, position)
            if tag == 0xFFFE and size >= 26 and position + 26 <= len(view):  # WAVE_FORMAT_EXTENSIBLE
                tag = struct.unpack_from("<H", view, position + 24)[0]
            pcm16 = tag == 1 and bits == 16 and align == 2 * channels and channels and rate
            layout = (channels, rate) if pcm16 else ()
        elif name == b"data":
            if layout is None:
                raise DecodeError("damaged", "the WAV's data chunk comes before its fmt chunk")
            left = len(view) - position
            if size > left and size not in _UNKNOWN_WAV_SIZES:
                raise DecodeError("truncated", f"WAV: {left} of {size} bytes of sound are there")
            if not layout:
                return None
            # A WAV written to a pipe never had its sizes filled in, that of RIFF neither: sound up to the
            # end.
            riff_size = struct.unpack_from("<I", view, 4)[0]
            if size > left or (size == 0 and riff_size in (*_UNKNOWN_WAV_SIZES, 36)):
                size = left
            channels, rate = layout
            whole = size // (2 * channels) * 2 * channels  # half a frame at the end is dropped
            if not whole:
                raise DecodeError("no_samples", "the WAV holds no samples")
            frames = np.frombuffer(view[position : position + whole], "<i2").reshape(-1, channels)
            return np.multiply(frames, _PCM16, dtype=np.float32), rate
        position += size + (size & 1)
    raise DecodeError("truncated", "the WAV has no data chunk")


def _any(raw: bytes) -> tuple[np.ndarray, int]:
    declared, container = 0, ""
    try:
        with soundfile.SoundFile(io.BytesIO(raw)) as sound:
            pieces = [np.empty((0, sound.channels), np.float32)]
            while len(piece := sound.read(_CHUNK_FRAMES, dtype="float32", always_2d=True)):
                pieces.append(piece)
            frames, rate = np.concatenate(pieces), sound.samplerate
            declared, container = sound.frames, sound.format
    except (soundfile.LibsndfileError, RuntimeError, ValueError, MemoryError, OverflowError) as refused:
        frames, rate = _av(raw, refused)
    if not len(frames):
        raise DecodeError("no_samples", "the audio holds no samples")
    # Lossy containers estimate their length; the others know it.
    if container in {"WAV", "WAVEX", "FLAC", "AIFF", "RF64", "W64", "CAF"} and len(frames) < declared:
        raise DecodeError("truncated", f"{container}: {len(frames)} of {declared} samples can be decoded")
    if not np.isfinite(frames).all():
        raise DecodeError("not_finite", "the audio holds NaN or infinite samples")
    return frames, rate


def _av(raw: bytes, refused: Exception) -> tuple[np.ndarray, int]:
    name = next(
        (name for offset, magic, name in _AV_MAGICS if raw[offset : offset + len(magic)] == magic), None
    )
    if name is None:
        raise DecodeError(
            "not_audio", f"no known audio format begins with the bytes {bytes(raw[:8])!r}"
        ) from refused
    import av

    try:
        with av.open(io.BytesIO(raw), format=name) as container:
            if not container.streams.audio:
                raise DecodeError("not_audio", f"the {name} file has no audio stream")
            stream = container.streams.audio[0]
            resampler = av.AudioResampler(format="flt", layout=stream.layout, rate=stream.rate)
            blocks = [
                block.to_ndarray().reshape(-1, block.layout.nb_channels)
                for frame in (*container.decode(stream), None)
                for block in resampler.resample(frame)
            ]
            rate = stream.rate
    except (av.FFmpegError, ValueError, MemoryError) as error:
        raise DecodeError("damaged", f"the {name} file cannot be decoded: {error}") from error
    return np.concatenate(blocks) if blocks else np.empty((0, 1), np.float32), rate
