"""Alignment files: both spellings, damaged ones, odd ids."""

import json

import pytest

from millrace.common import jsonl
from millrace.speech.corpus import alignment

SEGMENT = {
    "start": 1.0,
    "end": 5.0,
    "asr_text": "a",
    "human_text": "b",
    "cer": 0.1,
    "start_idx": 1,
    "end_idx": 2,
}


def encode(value: object, encoding: str = "utf-8") -> bytes:
    return json.dumps(value).encode(encoding)


def of(segments: object = (SEGMENT,), audio_file: object = "x.opus") -> dict:
    return {"audio_file": audio_file, "segments": segments}


@pytest.mark.parametrize(
    "raw, reason",
    [
        *((raw, "json_empty") for raw in (b"", b"  \n", b"\0" * 4096, b"\xef\xbb\xbf")),
        *(
            (raw, "json_damaged")
            for raw in (encode(of())[:60], b"\x80\x81\xfe\xff bytes", b"[" * 100_000)
        ),
        *((raw, "json_not_an_object") for raw in (encode([SEGMENT]), encode("text"), b"null")),
        *((encode(of(segments)), "no_segments") for segments in (None, {}, [])),
        (encode({"audio_file": "x.opus"}), "no_segments"),
        *(
            (encode(of(audio_file=name)), "no_audio_file")
            for name in (None, "/", " ..\n", ["x.opus"], "x\0.opus")
        ),
    ],
)
def test_unusable_files_have_a_reason(raw, reason):
    with pytest.raises(jsonl.BadJson) as caught:
        alignment.parse(raw)
    assert caught.value.reason == reason and len(str(caught.value)) > 10


@pytest.mark.parametrize(
    "raw, repair",
    [
        (b"\xef\xbb\xbf" + encode(of()), "json_bom"),
        (encode(of([{**SEGMENT, "cer": float("nan")}])), "json_nan"),
    ],
)
def test_what_can_be_read_is_repaired_and_counted(raw, repair):
    parsed = alignment.parse(raw)
    assert repair in parsed.repairs
    assert alignment.field_of(parsed.segments[0], "end") == 5.0


def test_white_space_around_the_audio_file_does_not_count():
    assert alignment.parse(encode(of(audio_file=" d/x.opus\n"))).audio_file == "d/x.opus"


def test_both_spellings_give_the_same_digest():
    other = {
        "start_seconds": 1.0,
        "end_seconds": 5.0,
        "asr_transcript": "a",
        "human_transcript": "b",
        "cer": 0.1,
        "original_transcript_start_idx": 1,
        "original_transcript_end_idx": 2,
    }
    one = alignment.parse(encode(of()))
    two = alignment.parse(encode({"segments": [other], "audio_file": "x.opus", "unused": 1}))
    assert one.digests == two.digests


def test_a_second_spelling_that_differs_is_a_change():
    plain = {"start": 1.0, "end": 5.0}
    both = plain | {"start_seconds": 1.0}
    differing = plain | {"start_seconds": 1.5}
    digests = [
        alignment.parse(encode(of([segment]))).digests for segment in (plain, both, differing)
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("field", SEGMENT)
def test_every_field_that_is_used_changes_the_digest(field):
    changed = {**SEGMENT, field: "other" if isinstance(SEGMENT[field], str) else 0.25}
    assert alignment.parse(encode(of())).digests != alignment.parse(encode(of([changed]))).digests


@pytest.mark.parametrize(
    "audio_file, video_id",
    [
        ("/cluster/x/abc.opus", "abc"),
        ("dir/x_1.MP3", "x_1"),
        ("C:\\data\\día 1.m4a", "día 1"),
        ("a.b.c.opus", "a.b.c"),
        ("clip.3gp", "clip"),
        ("noextension", "noextension"),
        (".opus", ".opus"),
        ("sitting 12.3.2020.mp4", "sitting 12.3.2020"),
        ("sitting_12.3.2020", "sitting_12.3.2020"),
    ],
)
def test_video_id_is_the_stem(audio_file, video_id):
    assert alignment.stem(audio_file) == video_id


@pytest.mark.parametrize(
    "file_stem, video_id, expected",
    [("v1_t9", "v1", "t9"), ("a_b_c_d", "a_b", "c_d"), ("v1", "v1", "")]
    + [(stem, "v1", stem) for stem in ("other_t1", "v10_t")],
)
def test_transcript_id_is_the_rest_of_the_name(file_stem, video_id, expected):
    assert alignment.transcript_id(file_stem, video_id) == expected


def test_hours_are_where_the_last_valid_segment_ends():
    values = [
        {"end": 7200},
        {"end": 1e300},
        {"end": "x"},
        {"end": None},
        "no segment",
        {"end": float("nan")},
    ]
    assert alignment.Alignment("x", values).hours == 2.0
