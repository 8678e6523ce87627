"""The timeline: what gaps between time stamps come to, frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest

from millrace.speech.audio import facts
from millrace.speech.audio.recording import AudioError
from millrace.speech.audio.stream import StreamRecording
from millrace.speech.audio.timeline import Timeline

RATE = 48000
FRAME = 960  # samples, 20 ms


def frame(seconds: float | None, samples: int = FRAME) -> av.AudioFrame:
    """A frame that begins at so many seconds; with None its packet has no stamp."""
    silence = np.zeros((1, samples), np.int16)
    made = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
    made.sample_rate, made.time_base = RATE, Fraction(1, RATE)
    if seconds is not None:
        made.pts = round(seconds * RATE)
    return made


def place(
    timeline: Timeline, seconds: float | None, errors: int = 0, samples: int = FRAME
) -> int | None:
    """The silence that is put before a frame that begins at so many seconds."""
    return timeline.place(frame(seconds, samples), errors)


def begun(container: str, codec: str, stated_seconds: float | None = None) -> Timeline:
    """The timeline of a second of frames."""
    timeline = Timeline(container, codec, stated_seconds)
    for number in range(50):
        assert place(timeline, number * 0.02) == 0
    return timeline


def timeline_of(
    container: str, codec: str, gap: float, errors: int = 0
) -> tuple[Timeline, int | None]:
    """A second of frames, a gap before the next one with so many errors; the silence that it
    gets."""
    timeline = begun(container, codec)
    return timeline, place(timeline, 1.0 + gap, errors)


@pytest.mark.parametrize(
    "container, codec, gap, errors, is_hole",
    [
        ("ogg", "vorbis", 0.05, 0, False),
        ("ogg", "opus", 0.48, 0, False),
        ("ogg", "opus", 0.52, 0, True),
        ("ogg", "opus", 0.48, 1, True),
        ("matroska,webm", "flac", 0.2, 0, True),
        ("mpegts", "aac", 9.5, 0, True),
    ],
)
def test_a_gap_is_silence_and_a_hole_if_it_is_long_lossless_or_with_an_error(
    container, codec, gap, errors, is_hole
):
    timeline, silence = timeline_of(container, codec, gap, errors)
    assert silence == round(gap * RATE)
    assert timeline.holes == ([(RATE, RATE + silence)] if is_hole else [])
    assert timeline.samples == RATE + silence + FRAME and timeline.lost_from is None


@pytest.mark.parametrize(
    "container, gap",
    [("mpegts", 10.5), ("mpeg", 3600.0), ("ogg", 61.0), ("ogg", 0.011), ("mpegts", -5.0)],
)
def test_stamps_that_begin_anew_or_only_jitter_insert_nothing(container, gap):
    timeline, silence = timeline_of(container, "aac", gap)
    assert silence == 0 and timeline.holes == [] and timeline.samples == RATE + FRAME
    # What follows is placed from there, gaps too.
    assert place(timeline, 1.02 + gap) == 0
    assert place(timeline, 1.34 + gap) == round(0.3 * RATE) and timeline.lost_from is None


def test_frames_before_the_first_stamp_lie_before_it():
    timeline = Timeline("mpegts", "aac", None)
    for _ in range(50):
        assert place(timeline, None) == 0
    assert place(timeline, 7.0) == 0
    # Gaps count from there on.
    assert place(timeline, 7.32) == round(0.3 * RATE)
    assert timeline.samples == RATE + 2 * FRAME + round(0.3 * RATE) and timeline.lost_from is None


def test_a_frame_behind_an_unknown_stretch_begins_what_is_lost():
    timeline = begun("mp3", "mp3")
    timeline.lost = True
    place(timeline, 1.0, 1)
    place(timeline, 1.02, 1)
    assert timeline.lost_from == RATE


def test_flac_whose_stamps_step_back_holds_something_twice():
    timeline, _ = timeline_of("flac", "flac", 0.2)
    place(timeline, 1.1)
    assert timeline.lost_from == timeline.samples - FRAME


@pytest.mark.parametrize(
    "stated, gap, is_believed",
    [
        (None, 59.0, True),
        (None, 61.0, False),
        (100.0, 61.0, True),
        (50.0, 61.0, False),  # beyond the end of the recording
        (200_000.0, 86_399.0, True),
        (200_000.0, 86_401.0, False),
    ],
)
def test_a_gap_is_believed_within_what_the_recording_states(stated, gap, is_believed):
    timeline = begun("ogg", "opus", stated)
    assert place(timeline, 1.0 + gap) == (round(gap * RATE) if is_believed else 0)


@pytest.mark.parametrize(
    "codec, errors, seconds", [("opus", 0, 0.0), ("opus", 1, 0.5), ("flac", 0, 0.5)]
)
def test_what_comes_before_the_first_frame_is_missing_with_an_error_or_without_loss(
    codec, errors, seconds
):
    timeline = Timeline("matroska,webm", codec, None)
    timeline.origin = 0.0  # of the first packet
    assert place(timeline, 0.5, errors) == seconds * RATE


def test_errors_of_long_ago_make_no_hole():
    timeline = Timeline("ogg", "opus", None)
    for number in range(50):
        place(timeline, number * 0.02, int(number > 3))
    assert place(timeline, 1.2, 1) == round(0.2 * RATE)
    assert timeline.holes == []


@pytest.mark.parametrize(
    "container, codec, seconds, samples, is_lost",
    [
        # A packet of Opus that decodes to more than it held: the next one is early by that.
        ("ogg", "opus", 0.99, FRAME // 2, True),
        ("ogg", "opus", 1.0, FRAME // 2, False),
        ("ogg", "vorbis", 0.99, FRAME // 2, False),
        # A frame too many of a transport stream.
        ("mpegts", "aac", 0.985, FRAME, True),
        ("mpegts", "aac", 0.99, FRAME, False),
        ("ogg", "aac", 0.985, FRAME, False),
    ],
)
def test_a_frame_that_comes_early_follows_one_too_many(container, codec, seconds, samples, is_lost):
    timeline = begun(container, codec)
    place(timeline, seconds, samples=samples)
    assert timeline.lost_from == (RATE if is_lost else None)


def test_stamps_that_go_back_to_before_a_pause_leave_its_place_unknown():
    timeline, silence = timeline_of("ogg", "opus", 0.9)
    place(timeline, 1.02)
    assert timeline.lost_from == timeline.samples - FRAME and silence == round(0.9 * RATE)


@pytest.mark.parametrize(
    "frames, errors, is_sound",
    [(2, 2, True), (2, 3, False), (60, 61, True)],  # a second is a block
)
def test_less_frames_than_errors_in_one_block_are_no_sound(frames, errors, is_sound):
    stream = object.__new__(StreamRecording)
    stream.path, stream.codec_name, stream.sample_rate = "a.mp3", "mp3", 0
    stream.timeline, stream.errors = Timeline("mp3", "mp3", None), errors
    stream._frames = lambda: iter([frame(None) for _ in range(frames)])
    if is_sound:
        assert sum(map(len, stream.blocks())) == frames * FRAME
    else:
        with pytest.raises(AudioError, match="nothing in its mp3 stream can be decoded"):
            list(stream.blocks())


@pytest.mark.parametrize(
    "container, frames, raw, is_lost",
    [
        ("mp3", 1, b"\xff\xfb", True),
        ("mp3", 0, b"\xff\xfb", False),  # before the first one that decodes
        ("mp3", 1, b"TAG", False),
        ("ogg", 1, b"\xff\xfb", False),  # its stamps tell
    ],
)
def test_what_follows_an_undecodable_packet_is_lost_without_stamps(container, frames, raw, is_lost):
    stream = object.__new__(StreamRecording)
    stream.container_format, stream.timeline = container, Timeline(container, "mp3", None)
    stream.timeline.frames = frames
    stream._note_undecodable(av.Packet(raw))
    assert stream.timeline.lost == is_lost


@pytest.fixture
def packets(monkeypatch) -> Callable[..., None]:
    """Makes recordings have packets of a second each, with these stamps in seconds."""

    def have(
        stamps: list[float | None], container: str = "ogg", errors: int = 0, ticks_long: int = 1000
    ) -> None:
        class Recording:
            stream = SimpleNamespace(time_base=Fraction(1, 1000), start_time=0)
            codec = SimpleNamespace(sample_rate=RATE)

            def __init__(self, path: str) -> None:
                self.container_format, self.errors = container, errors

            def __enter__(self) -> Recording:
                return self

            def __exit__(self, *_: object) -> None: ...

            def packets(self) -> list[SimpleNamespace]:
                made = {"size": 9, "duration": ticks_long, "time_base": Fraction(1, 1000)}
                made["has_sidedata"] = lambda kind: False
                ticks = [None if each is None else int(1000 * each) for each in stamps]
                return [SimpleNamespace(pts=tick, **made) for tick in ticks]

        monkeypatch.setattr(facts, "StreamRecording", Recording)

    return have


@pytest.mark.parametrize(
    "container, stamps, seconds",
    [
        ("ogg", [0, 1, 2], 3.0),
        ("ogg", [0, None, 2], 3.0),
        ("ogg", [0, 1, 20], 21.0),  # a gap is silence
        ("ogg", [0, 1, 90], 3.0),  # so long that no recording has it
        ("mpegts", [0, 1, 8], 9.0),
        ("mpegts", [0, 1, 20], 3.0),  # so far that they begin anew
        ("ogg", [5, 6, 0], 3.0),
        ("ogg", [0, 0.5], 1.5),
    ],
)
def test_packets_are_counted_by_their_stamps(packets, container, stamps, seconds):
    packets(stamps, container)
    assert facts._count_packets("a") == pytest.approx(seconds)


def test_a_packet_that_says_that_it_lasts_for_days_lasts_until_the_next(packets):
    packets([0, 1, 2], ticks_long=1 << 32)
    assert facts._count_packets("a") == pytest.approx(2.0)


@pytest.mark.parametrize(
    "stamps, errors, agrees",
    [
        ([0, 1, 2], 0, True),
        ([0, 1, 2], 1, False),
        ([0, 1], 0, False),
        ([0, 1, 2, 3], 0, False),
        ([2, 0, 1, 2], 0, False),  # another recording is joined on
        ([], 0, False),
    ],
)
def test_a_stated_duration_holds_if_the_last_packets_end_there(packets, stamps, errors, agrees):
    packets(stamps, errors=errors)
    assert facts._tail_agrees("a", 3.0) == agrees
