"""Compressed recordings: segments lie within 10 ms of where they were, or a warning says why
not."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import av
import numpy as np
import pytest
import soundfile
import soxr

from millrace.speech.audio import cut as audio
from millrace.speech.audio.facts import _stated_duration
from millrace.speech.audio.packets import is_tag
from millrace.speech.audio.stream import StreamRecording
from tests.speech.audio.recordings import (
    RATE,
    is_in_place,
    offsets,
    signal,
    write_av,
    write_joined,
)


@pytest.mark.parametrize("name", ["opus", "webm", "m4a", "mkv", "mp3", "live", "video"])
def test_compressed_segments_lie_where_they_were(corpus, source, name):
    assert is_in_place(corpus[name], source)
    info = audio.probe(corpus[name])
    assert info.duration_seconds == pytest.approx(len(source) / RATE, abs=0.05)
    assert name != "opus" or info.duration_seconds == pytest.approx(len(source) / RATE, abs=0.001)
    assert info.warnings == ()


def test_of_a_long_recording_the_last_packets_are_read(corpus, monkeypatch):
    read = []
    packets = StreamRecording.packets

    def counted(self: StreamRecording) -> Iterator[av.Packet]:
        for packet in packets(self):
            read.append(packet.size)
            yield packet

    monkeypatch.setattr(StreamRecording, "packets", counted)
    audio.probe(corpus["m4a"])
    assert 0 < sum(read) < corpus["m4a"].stat().st_size / 2


def test_compressed_stereo_at_another_rate(tmp_path, source):
    path = write_av(tmp_path / "a.m4a", source, RATE, "aac", "ipod", "stereo")
    assert is_in_place(path, soxr.resample(source, RATE, 16000), rate=16000)


def test_what_states_no_encoder_delay_is_late_and_warns(corpus, source):
    assert set(offsets(corpus["ts"], source)) <= {1023, 1024, 1025}
    (warning,) = audio.probe(corpus["ts"]).warnings
    assert warning.startswith("no_encoder_delay: ") and corpus["ts"].name in warning
    assert "is up to 44 ms later than in the original" in warning


def test_mp3_without_its_info_frame_warns(tmp_path, corpus, source):
    raw = corpus["mp3"].read_bytes()
    first, path = raw.index(b"\xff\xfb"), tmp_path / "bare.mp3"
    path.write_bytes(raw[raw.index(raw[first : first + 2], first + 40) :])
    info = audio.probe(path)
    (warning,) = info.warnings
    assert warning.startswith("no_encoder_delay: mp3 ") and "bare.mp3" in warning
    assert info.duration_seconds == pytest.approx(len(source) / RATE, abs=0.1)
    late = offsets(path, source)
    assert set(late) == {late[0]} and 900 < late[0] < 1400


@pytest.mark.parametrize("codec", ["g722", "libmp3lame", "adpcm_ima_wav"])
def test_compressed_inside_wav(tmp_path, codec):
    samples = signal(8, 16000)
    path = write_av(tmp_path / "a.wav", samples, 16000, codec, "wav")
    late = offsets(path, samples, [(1.0, 3.0), (4.0, 7.0)], 16000)
    # MP3 in WAV states no delay; ADPCM and G.722 have next to none.
    assert max(late) <= (1200 if codec == "libmp3lame" else 160) and len(set(late)) == 1


def test_vorbis_that_changes_between_short_and_long_blocks(tmp_path):
    """FFmpeg stamps blocks next to a change up to 10 ms off: that is no gap to be filled with
    silence."""
    samples = signal(12, 44100)
    # Clicks make the encoder change to short blocks, here before there was a long one.
    for at in (3000, 0, *range(44100, len(samples), 20000)):
        samples[max(at - 6000, 0) : at] //= 64
        samples[at : at + 300] = 30000
    path = tmp_path / "a.ogg"
    soundfile.write(path, samples, 44100, format="OGG", subtype="VORBIS")
    assert set(offsets(path, samples, [(2.0 * i, 2.0 * i + 1.9) for i in range(6)], 44100)) == {0}


def test_stated_duration_that_lies_is_measured(tmp_path, corpus):
    raw, path = corpus["mkv"].read_bytes(), tmp_path / "half.mkv"
    path.write_bytes(raw[: len(raw) // 2])
    info = audio.probe(path)
    assert 9 < info.duration_seconds < 14


@pytest.mark.parametrize("size", [1, 5000])
def test_an_mp3_that_begins_within_a_frame_is_refused(tmp_path, corpus, size):
    """FFmpeg takes some of such bytes for frames, or misses the first ones."""
    junk = np.random.default_rng(size).bytes(size)
    (tmp_path / "a").write_bytes(junk + corpus["mp3"].read_bytes())
    with pytest.raises(audio.AudioError, match="begins with no frame of MP3, and no ID3 tag"):
        audio.probe(tmp_path / "a")


@pytest.mark.parametrize("name", ["opus", "ts", "mp3"])
def test_tags_before_and_behind_move_nothing(tmp_path, corpus, source, name):
    tag = b"ID3\4\0\0\0\0\0\x3fPRIV" + bytes(59)
    (tmp_path / "a").write_bytes(tag + corpus[name].read_bytes() + b"TAG" + bytes(125))
    assert offsets(tmp_path / "a", source) == offsets(corpus[name], source)


def test_chained_ogg_with_other_channels_goes_on(tmp_path, source):
    path, parts = tmp_path / "chained", [(source[: 10 * RATE], RATE), (source[10 * RATE :], RATE)]
    write_joined(path, parts, "libopus", "ogg", layouts=["mono", "stereo"])
    late = offsets(path, source, [(2.0, 5.0), (8.0, 9.9), (11.0, 14.0), (20.0, 23.0)])
    assert late[:2] == [0, 0]
    assert all(isinstance(value, str) or abs(value) <= RATE // 100 for value in late[2:]), late


def page(serial: bytes, flags: int) -> bytes:
    """A page of Ogg, of which nothing but its stream is said."""
    return b"OggS\0" + bytes([flags]) + bytes(8) + serial + bytes(9)


@pytest.mark.parametrize(
    "first, last, expected",
    [
        (["AAAA"], "AAAA", False),
        (["AAAA"], "BBBB", True),
        (["AAAA", "BBBB"], "BBBB", False),  # beside each other, from the beginning
    ],
)
def test_an_ogg_whose_last_page_is_of_a_later_stream_is_chained(tmp_path, first, last, expected):
    path = tmp_path / "a.ogg"
    begun = b"".join(page(serial.encode(), 2) for serial in first)
    path.write_bytes(begun + bytes(200_000) + page(last.encode(), 0))
    # What its header states is of one of the streams.
    track = SimpleNamespace(duration=5, time_base=1)
    stream = SimpleNamespace(container_format="ogg", path=str(path), stream=track)
    stream.container = SimpleNamespace(duration=None)
    stream.codec, stream.codec_name = SimpleNamespace(extradata=b""), "vorbis"
    assert _stated_duration(stream) == (None if expected else 5.0)


def halves(source: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """The first ten seconds in two parts, with their rate."""
    return [(source[: 5 * RATE], RATE), (source[5 * RATE : 10 * RATE], RATE)]


@pytest.mark.parametrize(
    "codec, form, layout",
    [("libopus", "matroska", "mono"), ("flac", "flac", "mono"), ("vorbis", "ogg", "stereo")],
)
def test_joined_files_are_one_timeline(tmp_path, source, codec, form, layout):
    path = tmp_path / "joined"
    write_joined(path, halves(source), codec, form, layouts=[layout] * 2)
    assert is_in_place(path, source, [(1.0, 3.0), (3.5, 4.9), (6.0, 7.5), (8.0, 9.5)])
    assert audio.probe(path).duration_seconds == pytest.approx(10, abs=0.3)


@pytest.mark.parametrize(
    "raw, expected",
    [(b"ID3\4", True), (b"TAGa", True), (b"APETAGEX\xd0", True), (b"\xff\xfb\x90\0", False)],
)
def test_tags_between_joined_files_are_told_from_frames(raw, expected):
    assert is_tag(av.Packet(raw)) == expected


def test_joined_mp3_goes_on_where_the_first_ends(tmp_path, source):
    """The tag between the two takes no time; the second one's delay does, as in any player."""
    path = tmp_path / "joined"
    write_joined(path, halves(source), "libmp3lame", "mp3", between=b"TAG" + bytes(125))
    late = offsets(path, source, [(1.0, 3.0), (3.5, 4.9), (4.9, 5.8), (6.0, 7.5), (8.0, 9.5)])
    assert late[:2] == [0, 0] and isinstance(late[2], int) and late[3] == late[4]
    assert 0 <= late[3] <= 2 * 1152


@pytest.mark.parametrize("codec, form", [("libmp3lame", "mp3"), ("aac", "mpegts")])
def test_a_rate_that_rises_spoils_nothing(tmp_path, source, codec, form):
    path, low = tmp_path / "joined", soxr.resample(source, RATE, 24000)
    # In the middle of a block of one second, so that some is left to flush.
    parts = [(low[: 27 * 24000 // 5], 24000), (source[27 * RATE // 5 : 10 * RATE], RATE)]
    write_joined(path, parts, codec, form)
    late = offsets(path, low, [(1.0, 3.0), (6.0, 7.5), (8.0, 9.5)], 24000)
    if form == "mpegts":
        assert late[1:] == ["audio_load"] * 2
    else:
        assert abs(late[1] - late[2]) <= 2 and 0 <= late[1] <= 2400, late
