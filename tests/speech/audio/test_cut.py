"""Recordings in, segments out: PCM and lossless files, odd spans, files that are no recordings,
memory."""

from __future__ import annotations

import os
import struct
import tracemalloc

import numpy as np
import pytest
import soundfile
import soxr

from millrace.speech.audio import cut as audio
from millrace.speech.audio import facts
from millrace.speech.audio.pcm import open_pcm, read_pcm
from millrace.speech.audio.recording import mono, to_int16
from tests.speech.audio.recordings import exact, offsets, signal, wav, write_av, write_video


@pytest.mark.parametrize("container", ["WAV", "WAVEX", "RF64", "W64", "AIFF", "CAF", "FLAC"])
@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_int16_mono_passes_unchanged_whatever_the_name(tmp_path, container, rate):
    samples = signal(6, rate)
    samples[:2] = (-32768, 32767)
    path = tmp_path / "a.opus"
    soundfile.write(path, samples, rate, format=container, subtype="PCM_16")
    spans = [
        (0.0, 1.0),
        (0.5, 0.9),
        (0.5, 0.9),
        (1.23456, 5.98765),
        (2.0, 2.0 + 1 / rate),
        (3.3, 6.0),
    ]
    assert all(exact(path, samples, spans, rate))
    info = audio.probe(path)
    assert info.warnings == ()
    assert info.duration_seconds == pytest.approx(len(samples) / rate, abs=1e-9)


@pytest.mark.parametrize(
    "container, subtype",
    [("WAV", s) for s in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW")]
    + [("FLAC", s) for s in ("PCM_S8", "PCM_16", "PCM_24")]
    + [("AIFF", "PCM_S8"), ("AIFF", "PCM_24"), ("CAF", "FLOAT")],
)
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_other_samples_are_mixed_in_float_and_rounded_once(tmp_path, container, subtype, channels):
    wide = np.random.default_rng(3).integers(-(2**31), 2**31, (16000, channels)).astype(np.int32)
    path, content = tmp_path / "a.bin", wide if "PCM" in subtype else wide / 2**31 * 1.3
    soundfile.write(path, content, 16000, format=container, subtype=subtype)
    stored = soundfile.read(path, dtype="float64", always_2d=True)[0]
    expected = np.clip(np.rint(stored.mean(axis=1) * 32768), -32768, 32767)
    segment = next(audio.cut(path, [(0.25, 0.75)], 16000)).astype(int)
    # One apart only where a float32 sum falls on the other side of a half.
    difference = np.abs(segment - expected[4000:12000])
    assert difference.max() <= (1 if channels == 3 or subtype in ("FLOAT", "DOUBLE") else 0)
    assert (difference > 0).mean() < 0.001


def test_eight_bits_without_sign_are_silent_at_128():
    assert mono([np.array([0, 128, 255], np.uint8)], False).tolist() == [-32768, 0, 32512]


@pytest.mark.parametrize("container", ["WAV", "FLAC"])
def test_other_rates_are_resampled_from_the_exact_segment(tmp_path, container):
    samples = signal(4, 44100)
    soundfile.write(tmp_path / "a", samples, 44100, format=container)
    spans = [(0.1, 1.1), (1.5, 3.7)]
    for (start, end), segment in zip(spans, audio.cut(tmp_path / "a", spans, 16000), strict=True):
        source = samples[round(start * 44100) : round(end * 44100)].astype(np.float32)
        expected = np.clip(np.rint(soxr.resample(source, 44100, 16000)), -32768, 32767)
        np.testing.assert_array_equal(segment, expected)
        assert abs(len(segment) - (end - start) * 16000) <= 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_absurd_floats_of_a_decoder_are_mended(kind):
    left = np.array([0.25, np.finfo(kind).max, -np.inf, np.nan, np.inf, 0.25], kind)
    right = np.full(6, 0.25, kind)
    samples = to_int16(mono([left, right], channels_cancel=False))
    assert samples.tolist() == [8192, 32767, -32768, 0, 32767, 8192]


def _one(value):
    return lambda span: np.append(span[1:], value)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
@pytest.mark.parametrize("spoil", [lambda span: span * 32768, _one(np.nan), _one(-101)])
def test_floats_that_are_no_sound_are_refused(tmp_path, spoil, subtype):
    samples = signal(4, 16000) / 32768
    samples[:2] = (100, -100)
    samples[16000:32000] = spoil(samples[16000:32000])
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype=subtype)
    whole, spoilt = audio.cut(tmp_path / "a.wav", [(0, 1), (1, 2)], 16000)
    assert len(whole) == 16000
    assert isinstance(spoilt, audio.AudioError) and spoilt.reason == "audio_load"
    assert "where 1 is full scale" in str(spoilt)


@pytest.mark.parametrize("container", ["WAV", "FLAC"])
def test_opposite_channels_do_not_cancel(tmp_path, container):
    left, path = signal(3, 16000), tmp_path / "a"
    samples = np.stack([left, np.clip(-left.astype(int), -32768, 32767).astype(np.int16)], 1)
    soundfile.write(path, samples, 16000, format=container, subtype="PCM_16")
    assert exact(path, left, [(0.5, 2.5)]) == [True]
    soundfile.write(path, np.stack([left, left // 2], 1), 16000, format=container, subtype="PCM_16")
    (mixed,) = audio.cut(path, [(0.5, 2.5)], 16000)
    assert np.abs(mixed - 0.75 * left[8000:40000]).max() <= 1


@pytest.mark.parametrize("layout", ["5.1", "7.1"])
def test_many_channels(tmp_path, layout):
    samples = signal(3, 16000)
    path = write_av(tmp_path / "a.m4a", samples, 16000, "aac", "ipod", layout)
    assert max(abs(late) for late in offsets(path, samples, [(0.5, 1.5), (1.6, 2.9)], 16000)) <= 1


def test_files_of_unknown_or_wrong_length(tmp_path):
    samples, path = signal(5, 16000), tmp_path / "a.wav"
    soundfile.write(path, samples, 16000, format="FLAC")
    flac, raw = bytearray(path.read_bytes()), samples.tobytes()
    flac[21:26] = bytes([flac[21] & 0xF0, 0, 0, 0, 0])
    listed = b"LIST" + struct.pack("<I", 10) + b"INFOabcdef"
    cases = {
        "FLAC from a pipe": flac,
        "pipe, sizes 0": wav(0, 0, raw),
        "pipe, sizes full": wav(0xFFFFFFFF, 0xFFFFFFFF, raw),
        "pipe, LIST before": wav(0, 0xFFFFFFFF, raw, listed),
        "wrong RIFF size": wav(100, len(raw), raw),
        "chunk behind": wav(36 + len(raw) + 18, len(raw), raw + listed),
    }
    for name, content in cases.items():
        path.write_bytes(content)
        assert exact(path, samples, [(1.0, 2.5), (4.0, 4.99)]) == [True, True], name
        info = audio.probe(path)
        assert info.duration_seconds == pytest.approx(5.0, abs=0.01), name
        assert info.warnings == (), name


@pytest.mark.parametrize("change, words", [(-3, "3 bytes shorter"), (500, "500 bytes longer")])
def test_wav_of_another_size_than_it_states_warns(tmp_path, change, words):
    """Bytes lost or added within PCM show nowhere else, and move all that follows."""
    path, body = tmp_path / "a.wav", signal(2, 16000).tobytes()
    # A chunk of an odd length has a byte behind it.
    odd = b"LIST" + struct.pack("<I", 9) + b"INFOabcde\0"
    raw, middle = wav(36 + len(odd) + len(body), len(body), body, odd), 54 + len(body) // 2
    path.write_bytes(raw[:middle] + b"\xff" * max(change, 0) + raw[middle - min(change, 0) :])
    (warning,) = audio.probe(path).warnings
    assert warning.startswith(f"size_wrong: a.wav is {words} than stated")
    path.write_bytes(raw)
    assert audio.probe(path).warnings == ()
    path.write_bytes(raw + bytes(5000))  # padded with zeros: nothing is wrong
    assert audio.probe(path).warnings == ()


def test_a_wav_that_is_too_long_for_its_sizes_is_read_by_no_header(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, signal(1, 16000), 16000)
    assert open_pcm(path) is not None
    os.truncate(path, 2**32)
    assert open_pcm(path) is None


def test_a_wav_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, signal(4, 16000), 16000)
    with open_pcm(path) as handle:
        os.truncate(path, 64044)
        with pytest.raises(audio.AudioError, match="ends at sample 32000, before 64000"):
            read_pcm(handle, 0, 64000)


@pytest.mark.parametrize("container", ["WAV", "FLAC"])
def test_what_is_whole_of_a_cut_file(tmp_path, container):
    samples, path = signal(20, 16000), tmp_path / "a"
    soundfile.write(path, samples, 16000, format=container)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    spans = [(0.5, 3.0), (7.0, 8.0), (15.0, 16.0), (18.0, 30.0)]
    assert exact(path, samples, spans) == [True, True, False, False]
    assert [error.reason for error in list(audio.cut(path, spans, 16000))[2:]] == [
        "out_of_range"
    ] * 2
    assert 7.5 < audio.probe(path).duration_seconds < 10.5


def test_lossless_in_other_containers_is_exact(tmp_path):
    samples = signal(8, 16000)
    pairs = [("flac", "ogg"), ("flac", "matroska"), ("alac", "ipod"), ("pcm_s16le", "matroska")]
    for codec, container in [*pairs, ("pcm_s16be", "au"), ("pcm_s16le", "wav"), ("alac", "caf")]:
        path = write_av(tmp_path / "a", samples, 16000, codec, container)
        assert exact(path, samples, [(2.5, 5.1)]) == [True], (codec, container)


@pytest.mark.parametrize("name", ["wav", "flac", "opus"])
def test_spans_on_the_edge_and_spans_beyond_it(tmp_path, name):
    samples, path = signal(5, 48000), tmp_path / "a"
    if name == "opus":
        write_av(path, samples, 48000, "libopus", "ogg")
    else:
        soundfile.write(path, samples, 48000, format=name.upper())
    none = [(1.0, 1.000001), (3.0, 1e300)]
    lengths = {(0.0, 5.0): 240000, **dict.fromkeys(none), (4.0, 5.05): 48000}
    lengths |= dict.fromkeys([(4.5, 5.051), (4.9, 9.0), (5.0, 5.04), (7.0, 8.0)])
    for (span, length), segment in zip(
        lengths.items(), audio.cut(path, list(lengths), 48000), strict=True
    ):
        if length is None:
            assert segment.reason == "out_of_range" and str(path) in str(segment), span
        else:
            assert len(segment) == length, span
    assert list(audio.cut(path, [], 48000)) == []
    with pytest.raises(ValueError, match="not sorted"):
        next(audio.cut(path, [(2, 3), (1, 2)], 48000))


def test_nested_and_overlapping_spans_of_a_stream(tmp_path):
    samples = signal(30, 16000)
    soundfile.write(tmp_path / "a.flac", samples, 16000)
    random = np.random.default_rng(2)
    starts = np.sort(random.uniform(0, 25, 60)).round(3)
    spans = [(float(s), float(min(30, s + random.uniform(0.01, 20)))) for s in starts]
    assert all(
        exact(tmp_path / "a.flac", samples, sorted([*spans, spans[3], spans[3], (0.0, 30.0)]))
    )


def refusals(path) -> list[audio.AudioError]:
    """The errors of probing and cutting a file that gives no audio."""
    errors = []
    for attempt in (audio.probe, lambda path: next(audio.cut(path, [(0, 1)], 16000))):
        with pytest.raises(audio.AudioError) as caught:
            attempt(path)
        errors.append(caught.value)
    return errors


def test_bad_files(tmp_path, corpus):
    random, m4a, body = np.random.default_rng(0), corpus["m4a"].read_bytes(), bytes(32000)
    contents = {
        "random": random.bytes(200000),
        "short": b"\x00",
        "zeros": bytes(50000),
        "text": b"WEBVTT\n\n00:00.000 --> 00:01.000\nhello\n" * 50,
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
        "playlist": b"#EXTM3U\n#EXTINF:10,\n/etc/passwd\n",
        "concat": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        "riff": b"RIFF\x00\x00\x00\x00WAVE",
        "riff_random": b"RIFF\x00\x00\x00\x00WAVE" + random.bytes(5000),
        "flac_head": b"fLaC" + random.bytes(5000),
        "ogg_head": b"OggS" + random.bytes(5000),
        "mp3_head": b"\xff\xfb\x90\x00" + random.bytes(50000),
        "m4a_without_index": m4a[: len(m4a) // 2],
        "m4a_index_only": m4a[:40],
        "wav_without_samples": wav(36, 0, b""),
        # FFmpeg plays the last chunk as if it were the first.
        "wav_of_two": wav(0, 32000, body)
        + b"LIST\4\0\0\0INFOdata"
        + struct.pack("<I", 32000)
        + body,
    }
    for lie in ("", ".wav", ".mp3", ".opus", ".m4a"):
        for name, content in contents.items():
            path = tmp_path / (name + lie)
            path.write_bytes(content)
            for error in refusals(path):
                assert error.reason in ("audio_load", "audio_empty"), (name, lie)
                assert str(path) in str(error)
                assert name != "wav_of_two" or "more than one data chunk" in str(error)


@pytest.mark.parametrize(
    "error, raised",
    [
        (RuntimeError("x"), audio.AudioError),
        (MemoryError(), MemoryError),  # of the machine, and of no file
        (OSError(5, "x"), OSError),
    ],
)
def test_a_file_that_trips_a_library_is_an_error_of_its_own(tmp_path, monkeypatch, error, raised):
    def fail(path: object) -> None:
        raise error

    monkeypatch.setattr(facts, "stream_info", fail)
    (tmp_path / "a").write_bytes(b"fLaC")
    with pytest.raises(raised) as caught:
        audio.probe(tmp_path / "a")
    assert raised != audio.AudioError or "cannot be read (RuntimeError: x)" in str(caught.value)


def test_containers_that_are_not_supported_are_refused_by_name(tmp_path):
    for codec, container, rate, name in (
        *(("libmp3lame", "avi", 44100, "AVI (avi)"), ("wmav2", "asf", 44100, "ASF/WMA (asf)")),
        *(("wmav2", "wav", 44100, "WMA (wmav2)"), ("real_144", "rm", 8000, "RealMedia (rm)")),
        *(("libopencore_amrnb", "amr", 8000, "AMR (amr)"), ("ac3", "ac3", 48000, "AC-3 (ac3)")),
        *(("eac3", "eac3", 48000, "E-AC-3 (eac3)"), ("aac", "flv", 44100, "FLV (flv)")),
        ("aac", "adts", 44100, "AAC without a container (aac)"),
        ("g726", "wav", 8000, "G.726 (adpcm_g726)"),
    ):
        path = write_av(tmp_path / "a.mp4", signal(4, rate), rate, codec, container)
        for error in refusals(path):
            assert error.reason == "audio_load"
            assert (
                str(error)
                == f"{path}: {name} is not supported. Convert it, for example to FLAC or m4a"
            )


def test_files_that_are_missing_or_no_files(tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    write_video(tmp_path / "silent.mp4", None)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling.wav").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle.wav").symlink_to(tmp_path / "circle.wav")
    cases = dict.fromkeys(("missing.opus", "dangling.wav", "empty.wav/below.wav"), "audio_missing")
    cases |= dict.fromkeys(("", "pipe", "a\0b", "circle.wav"), "audio_load")
    cases |= {"empty.wav": "audio_empty", "silent.mp4": "audio_no_stream"}
    if os.geteuid():  # root reads everything
        (tmp_path / "closed.wav").write_bytes(wav(36, 0, b""))
        (tmp_path / "closed.wav").chmod(0)
        cases["closed.wav"] = "audio_load"
    for name, reason in cases.items():
        assert [error.reason for error in refusals(f"{tmp_path}/{name}")] == [reason] * 2, name
    assert "Mend that, and touch it" in str(refusals(f"{tmp_path}/circle.wav")[0])


@pytest.mark.long
def test_memory_is_bounded_by_the_longest_span(tmp_path):
    minutes, rate = 3, 16000
    samples = np.resize(signal(30, rate), minutes * 60 * rate)
    path = write_av(tmp_path / "long", samples, rate, "aac", "ipod")
    spans = [(10.0 * i, 10.0 * i + 15) for i in range(minutes * 6 - 1)] + [
        (minutes * 60 - 3.0, 1e6)
    ]
    for target in (rate, 8000):
        tracemalloc.start()
        for segment in audio.cut(path, spans, target):
            assert isinstance(segment, audio.AudioError) or len(segment) == 15 * target
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # 16 s of float, its copy and its resampled copy; the recording is 5.8 MB in int16, 12 in
        # float.
        assert peak < 5e6 < samples.nbytes / 1.1
