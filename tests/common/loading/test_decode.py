"""decode: equal to soundfile bit by bit, recognised by content, only DecodeError for what is
damaged."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from millrace.common.loading.decode import (
    DecodeError,
    cancel,
    decode,
    decode_channels,
    decode_flac,
    flac_samples,
)
from tests.asr.audio_tars import RATE, by_ffmpeg, encoded, noise, silence_as


def reference(raw: bytes) -> np.ndarray:
    return soundfile.read(io.BytesIO(raw), dtype="float32", always_2d=True)[0]


def wav(body: bytes, channels=1, size=None, riff=None, extra=b"", tag=1) -> bytes:
    form = struct.pack("<HHIIHH", tag, channels, RATE, RATE * 2 * channels, 2 * channels, 16)
    if tag == 0xFFFE:
        form += struct.pack("<HHIH14s", 22, 16, 0, 1, b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71")
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + extra
    chunks += b"data" + struct.pack("<I", len(body) if size is None else size) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) if riff is None else riff) + b"WAVE" + chunks


@pytest.mark.parametrize("channels", [1, 2, 3, 8])
@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16", "PCM_24"])
def test_flac_is_what_soundfile_gives(subtype, channels):
    rng = np.random.default_rng(channels)
    raw = encoded(np.clip(0.4 * rng.standard_normal((9001, channels)), -1, 1), "FLAC", subtype)
    frames, rate = decode_channels(raw)
    assert rate == RATE and frames.dtype == np.float32
    assert np.array_equal(frames, reference(raw))
    assert np.array_equal(
        decode(raw), reference(raw).mean(axis=1) if channels > 1 else reference(raw)[:, 0]
    )


@pytest.mark.parametrize("level", ["0", "5", "12"])
def test_flac_of_another_encoder_is_what_soundfile_gives(level):
    """FFmpeg's weights have 15 bits and its orders go up to 32."""
    raw = by_ffmpeg("flac", "flac", noise(30_000, 3)[:, 0], compression_level=level)
    assert np.array_equal(decode_channels(raw)[0], reference(raw))


@pytest.mark.parametrize(
    "form",
    [
        "WAV PCM_16",
        "WAVEX PCM_16",
        "WAV PCM_24",
        "WAV PCM_U8",
        "WAV FLOAT",
        "WAV ULAW",
        "RF64 PCM_16",
        "W64 PCM_16",
        "AIFF PCM_16",
        "CAF PCM_16",
        "AU PCM_16",
        "NIST PCM_16",
        "OGG VORBIS",
        "OGG OPUS",
        "MP3",
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_other_containers_are_what_soundfile_gives(form, channels):
    sound = noise(20_011, 5, channels)
    raw = encoded(sound / 32768 if form == "WAV FLOAT" else sound, *form.split())
    # mpg123 rounds the last bit by where its buffers lie.
    atol = 1.2e-7 if form == "MP3" else 0
    assert np.allclose(decode_channels(raw)[0], reference(raw), rtol=0, atol=atol)


@pytest.mark.parametrize("form", ["mp4 aac", "matroska aac", "webm libopus", "adts aac"])
def test_containers_that_soundfile_cannot_read(form):
    tone = (8000 * np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)).astype(np.int16)
    wave = decode(by_ffmpeg(*form.split(), tone))
    assert abs(len(wave) - RATE) < 0.06 * RATE
    middle = wave[4000:12_000]
    assert np.argmax(np.abs(np.fft.rfft(middle))) == 440 * len(middle) // RATE
    assert 0.7 < np.abs(middle).max() / (8000 / 32768) < 1.3


def test_a_film_with_eight_channels_and_a_tag_of_another_alphabet():
    """Of eight channels PyAV lists a plane more, which points nowhere."""
    raw = by_ffmpeg("mp4", "aac", noise(48_000, 1)[:, 0], "7.1")
    for film in (raw, raw.replace(b"Lavf", b"\xfe\xff\xfe\xff")):
        frames, _ = decode_channels(film)
        assert frames.shape[1] == 8 and 1 / 7 < np.ptp(frames) < 3


def test_an_mp3_is_decoded_to_its_end():
    """libsndfile ends where the first of joined files does, or where channels change."""
    first, stereo = (encoded(noise(20_000, 1, channels), "MP3") for channels in (1, 2))
    # Of a picture in a tag some bytes look like a frame.
    tags = [name + b"\xff\xe2\x20" for name in (b"TAG", b"APETAGEX", b"LYRICSBEGIN")]
    for behind in (*tags, bytes(125), b"\n", b"\xff" * 99):
        assert np.allclose(decode(first + behind), reference(first)[:, 0], rtol=0, atol=1.2e-7)
    assert 40_000 <= len(decode(first + bytes(99) + first)) < 43_000
    for other in (stereo, encoded(noise(20_000, 1), "MP3", rate=24_000)):
        with pytest.raises(DecodeError, match="several sample rates or channel counts") as caught:
            decode(first + other)
        assert caught.value.reason == "damaged"


def test_an_ogg_of_two_streams_is_not_joined():
    sink = io.BytesIO()
    with av.open(sink, "w", format="ogg") as out:
        for stream in [out.add_stream("libopus", rate=48_000, layout="mono") for _ in range(2)]:
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), np.float32), "flt", "mono")
            frame.rate = 48_000
            out.mux([*stream.encode(frame), *stream.encode(None)])
    assert 0 < len(decode(sink.getvalue())) < 500


def test_samples_that_no_flac_of_this_size_can_hold_are_not_believed():
    raw = bytearray(encoded(noise(1000, 1)))
    only_block = bytes(raw[:4]) + b"\x80" + bytes(raw[5:])
    assert flac_samples(bytes(raw)) == flac_samples(only_block) == 1000
    raw[21:26] = bytes([raw[21] | 0x0F]) + b"\xff" * 4
    assert flac_samples(bytes(raw)) == 0
    with pytest.raises(DecodeError, match="1000 of 68719476735 samples"):
        decode(bytes(raw))
    out = np.empty(1998, np.float32)[:999]
    for samples in (noise(1000, 1), noise(999, 1, channels=2)):
        with pytest.raises(DecodeError, match="header or the first frame"):
            decode_flac(encoded(samples), out)


def test_a_webm_without_its_end_is_truncated_and_the_error_keeps_no_threads_alive():
    """A decoder freed in a process that was forked since would wait for them for ever."""
    raw = by_ffmpeg("webm", "libopus", noise(200_000, 4)[:, 0])
    assert abs(len(decode(raw)) / RATE - 200 / 48) < 0.1
    before = os.listdir("/proc/self/task")
    with pytest.raises(DecodeError, match=r"of 4\.1\d s can be decoded") as caught:
        decode(raw[: len(raw) // 2])
    assert caught.value.reason == "truncated"
    assert caught.traceback and os.listdir("/proc/self/task") == before


@pytest.mark.parametrize(
    "codec, scale", [("pcm_u8", 256), ("pcm_s16be", 1), ("pcm_s32le", 1), ("pcm_f64le", 1)]
)
def test_whole_numbers_and_floats_of_a_mov_are_the_same_samples(codec, scale):
    samples = noise(5000, 1)[:, 0] // scale * scale
    frames, _ = decode_channels(by_ffmpeg("mov", codec, samples))
    assert np.array_equal(frames[:, 0], samples / np.float32(32768))
    left, right = decode_channels(by_ffmpeg("mov", codec, samples, "stereo"))[0].T
    assert np.array_equal(left, right)


@pytest.mark.parametrize(
    "samples, share, is_cancelled",
    [
        (699, -1.0, True),
        (693, -1.0, False),  # too few to tell
        (7000, -0.97, True),
        (7000, -0.8, False),
        (7000, 1.0, False),
    ],
)
@pytest.mark.parametrize("kind, zero", [(np.int16, 0), (np.uint8, 128)])
def test_channels_cancel_if_their_sum_is_next_to_nothing(samples, share, is_cancelled, kind, zero):
    wave = 100 * np.sin(np.arange(samples))
    channels = [np.round(zero + level * wave).astype(kind) for level in (1.0, share)]
    assert cancel(channels) == is_cancelled


def test_of_two_channels_that_cancel_each_other_the_first_is_taken():
    left = noise(4_000, 3, 1)[:, 0]
    raw = encoded(np.stack([left, -left], axis=1), "FLAC", "PCM_16")
    assert np.array_equal(decode(raw), reference(raw)[:, 0])


def test_other_rates_are_resampled_to_16_khz():
    for rate in (8000, 11_025, 44_100, 48_000):
        tone = (8000 * np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)).astype(np.int16)
        wave = decode(encoded(tone, rate=rate))
        assert wave.dtype == np.float32 and abs(len(wave) - RATE) <= 1
        assert np.argmax(np.abs(np.fft.rfft(wave[: RATE - 2]))) in (999, 1000)


def test_flac_as_found_in_the_wild():
    raw = encoded(noise(20_000, 1))
    variants = [raw + b"\0" * 400, raw + b"trailing junk", bytearray(raw), memoryview(raw)]
    variants.append(b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + raw)
    for kind, size in ((1, 100), (4, 8), (6, 32)):  # more blocks of metadata
        block = bytes([raw[4] & 0x80 | kind, 0, 0, size]) + bytes(size)
        variants.append(raw[:4] + b"\0" + raw[5:42] + block + raw[42:])
    for variant in variants:
        assert np.array_equal(decode(variant), reference(raw)[:, 0])
    silence = encoded(np.zeros(400_000, np.int16))  # 1,000 samples a byte
    assert np.array_equal(decode(silence), np.zeros(400_000, np.float32))
    assert len(decode(encoded(noise(1, 2)))) == 1


def test_a_flac_of_a_pipe_states_no_length_and_is_read_to_its_end():
    raw = encoded(noise(140 * RATE, 1))  # of three pieces
    piped = raw[:21] + bytes([raw[21] & 0xF0, 0, 0, 0, 0]) + raw[26:]
    assert np.array_equal(decode(piped), reference(raw)[:, 0])


def test_wav_as_found_in_the_wild():
    samples = noise(5001, 3)
    body = samples.tobytes()
    expected = samples[:, 0].astype(np.float32) / 32768
    odd = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    variants = [wav(body), wav(body, extra=odd), wav(body) + odd, wav(body, tag=0xFFFE)]
    piped = wav(body, size=0xFFFFFFFF, riff=0xFFFFFFFF)
    half_a_sample_more = wav(body + b"\x01")
    for raw in (*variants, piped, half_a_sample_more):
        assert np.array_equal(decode(raw), expected)
    frames_of_two = wav(body).replace(struct.pack("<HH", 2, 16), struct.pack("<HH", 4, 16), 1)
    assert np.array_equal(decode(frames_of_two), expected)  # as soundfile: by channels and bits
    stereo = wav(body[: 5000 * 2], channels=2)
    assert np.array_equal(decode(stereo), reference(stereo).mean(axis=1))


def test_sizes_of_containers_as_found_in_the_wild():
    samples = noise(9000, 1)
    expected = samples[:, 0].astype(np.float32) / 32768
    padded = bytearray(encoded(samples, "AIFF"))
    padded[7] += 1  # the last byte, which only pads, is not there
    unfilled = [bytearray(encoded(samples, name)) for name in ("W64", "RF64", "AU")]
    unfilled[0][16:24] = unfilled[1][20:28] = b"\xff" * 8
    unfilled[2][8:12] = b"\xff" * 4
    for raw in (padded, *unfilled):
        assert np.array_equal(decode(bytes(raw)), expected)
    # A lossy container only estimates its length.
    half = ORIGINALS["MP3"][: len(ORIGINALS["MP3"]) // 2]
    assert 0 < len(decode(half)) < 2500


def test_the_video_beside_the_sound_may_be_longer():
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as out:
        video = out.add_stream("mpeg4", rate=10, width=16, height=16)
        audio = out.add_stream("aac", rate=RATE, layout="mono")
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        for _ in range(40):
            out.mux(video.encode(picture))
        silence = np.zeros((1, 1024), np.float32)
        frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
        frame.rate = RATE
        out.mux([*video.encode(None), *audio.encode(frame), *audio.encode(None)])
    assert len(decode(sink.getvalue())) < RATE


WAV = encoded(noise(3000, 2), "WAV")


def recording(*form: str, **how: object) -> bytes:
    """9,000 samples of noise in a form."""
    return encoded(noise(9000, 1), *form, **how)


@pytest.mark.parametrize(
    "raw, reason",
    [
        (b"", "empty"),
        (bytes(70_000), "not_audio"),
        (b'{"error": "quota"}', "not_audio"),
        (b"<html><body>404 Not Found</body></html>", "not_audio"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "not_audio"),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "not_audio"),
        (WAV[: len(WAV) // 2], "truncated"),
        (WAV[:36], "truncated"),
        (WAV[:20], "damaged"),
        (WAV[:12], "truncated"),
        (wav(b""), "no_samples"),
        (wav(b"\1\2", size=0x7FFFF000), "truncated"),
        (wav(b"\1\2", channels=0), "damaged"),
        (wav(b"", size=0xFFFFFFFF), "no_samples"),
        (encoded(noise(3000, 1), "WAV", "PCM_24")[:5000], "truncated"),
        (encoded(np.array([0.1, np.nan, 0.2]), "WAV", "FLOAT"), "not_finite"),
        (encoded(np.array([0.1, np.inf]), "WAV", "DOUBLE"), "not_finite"),
        (encoded(noise(3000, 1), "WAV", "FLOAT"), "over_full_scale"),
        (encoded(np.array([0.1, -100.5]), "WAV", "FLOAT"), "over_full_scale"),
        (encoded(noise(3000, 1), rate=10), "damaged"),
        (recording("AIFF")[:-4], "truncated"),
        (recording("W64")[:9000], "truncated"),
        (recording("RF64")[:9000], "truncated"),
        (recording("WAV", endian="BIG")[:9000], "truncated"),
        (recording("AU")[:-9], "truncated"),
        (recording("NIST")[:-9], "truncated"),
        (recording("CAF")[:-9], "truncated"),
        (recording("CAF")[:80], "truncated"),
        (recording("PVF"), "not_audio"),  # it says nowhere how long it is
        (2 * recording("OGG", "VORBIS"), "damaged"),
        (2 * recording(), "damaged"),
        (by_ffmpeg("mov", "pcm_s16be", noise(900, 1)).replace(b"twos", b"ac-4"), "not_audio"),
        (encoded(noise(90_000, 1), "OGG", "VORBIS")[:-9], "truncated"),
        (encoded(noise(90_000, 1), "OGG", "OPUS")[:9000], "truncated"),
    ],
)
def test_what_cannot_be_decoded_has_a_reason(raw, reason):
    with pytest.raises(DecodeError) as error:
        decode(raw)
    assert error.value.reason == reason, str(error.value)
    assert str(error.value)


def test_a_float_may_be_a_hundred_times_full_scale():
    assert decode(encoded(np.array([0.1, -100.0]), "WAV", "FLOAT")).min() == -100


def test_a_flac_that_says_its_length_is_refused_before_it_is_decoded():
    assert len(decode(encoded(noise(8000, 1), rate=8000), max_seconds=1.0)) == RATE
    begun = encoded(noise(8001, 1), rate=8000)[:999]
    with pytest.raises(DecodeError, match=r"more than 1\.00 s of sound"):
        decode(begun, max_seconds=1.0)


def test_no_cut_of_a_flac_is_taken_for_the_whole():
    raw = encoded(noise(700, 3))
    for length in range(4, len(raw)):
        with pytest.raises(DecodeError) as error:
            decode(raw[:length])
        assert error.value.reason == "damaged"


ORIGINALS = {name: encoded(noise(2500, 7), name) for name in ("FLAC", "WAV", "OGG", "MP3", "AIFF")}


@given(at=st.integers(1, 2000), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_sound_of_a_flac_is_noticed(at, bit):
    raw = bytearray(ORIGINALS["FLAC"])
    raw[-at] ^= 1 << bit
    with pytest.raises(DecodeError) as error:
        decode(bytes(raw))
    assert error.value.reason == "damaged"


EDITS = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6)


@given(original=st.sampled_from(list(ORIGINALS.values())), cut=st.integers(0, 4000), edits=EDITS)
def test_any_damage_gives_audio_or_a_decode_error(original, cut, edits):
    raw = bytearray(original)
    for at, value in edits:
        raw[at % len(raw)] = value
    raw = bytes(raw[: len(raw) - cut]) if cut % 2 else bytes(raw)
    try:
        wave = decode(raw)
    except DecodeError as error:
        assert error.reason in {
            "empty",
            "not_audio",
            "damaged",
            "truncated",
            "no_samples",
            "not_finite",
            "over_full_scale",
        }
    else:
        assert wave.ndim == 1 and wave.dtype == np.float32 and len(wave)


@pytest.mark.parametrize(
    "form", ["FLAC", "FLAC without length", "OGG", "MP3", "WAV", "AIFF", "mp4"]
)
def test_no_more_is_decoded_than_a_row_allows(form):
    raw = silence_as(form, 400)  # 26 MB as float32
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="more than 9\\.00 s of sound") as refused:
            decode(raw, max_seconds=9.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.reason == "longer_than_manifest"
    assert peak < 12e6, peak
    assert len(decode(silence_as(form, 8.5), max_seconds=9.0)) == pytest.approx(
        8.5 * RATE, rel=0.02
    )
