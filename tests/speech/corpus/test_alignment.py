"""Alignment files: both spellings, damaged ones, odd ids."""

import json

import pytest

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


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "json_empty"),
        (b"  \n", "json_empty"),
        (b"\0" * 4096, "json_empty"),
        (b"\xef\xbb\xbf", "json_empty"),
        (encode({"audio_file": "x.opus", "segments": [SEGMENT]})[:60], "json_damaged"),
        (b"\x80\x81\xfe\xff random bytes", "json_damaged"),
        (b"[" * 100_000, "json_damaged"),
        (encode([SEGMENT]), "json_not_an_object"),
        (encode("text"), "json_not_an_object"),
        (b"null", "json_not_an_object"),
        (encode({"audio_file": "x.opus"}), "no_segments"),
        (encode({"audio_file": "x.opus", "segments": None}), "no_segments"),
        (encode({"audio_file": "x.opus", "segments": {}}), "no_segments"),
        (encode({"audio_file": "x.opus", "segments": []}), "no_segments"),
    ],
)
def test_unusable_files_have_a_reason(raw, reason):
    with pytest.raises(alignment.BadAlignment) as caught:
        alignment.parse(raw)
    assert caught.value.reason == reason
    assert len(str(caught.value)) > 10


@pytest.mark.parametrize(
    ("raw", "repair"),
    [
        (b"\xef\xbb\xbf" + encode({"audio_file": "x.opus", "segments": [SEGMENT]}), "json_bom"),
        (json.dumps({"audio_file": "x.opus", "segments": [SEGMENT]}).encode("utf-16"), "json_encoding"),
        (encode({"audio_file": "x.opus", "segments": [{**SEGMENT, "cer": float("nan")}]}), "json_nan"),
        (encode({"audio_file": None, "segments": [SEGMENT]}), "audio_file_from_name"),
        (encode({"audio_file": "/", "segments": [SEGMENT]}), "audio_file_from_name"),
        (encode({"audio_file": " ..\n", "segments": [SEGMENT]}), "audio_file_from_name"),
        (encode({"audio_file": ["x.opus"], "segments": [SEGMENT]}), "audio_file_from_name"),
    ],
)
def test_what_can_be_read_is_repaired_and_counted(raw, repair):
    parsed = alignment.parse(raw)
    assert repair in parsed.repairs
    assert alignment.field_of(parsed.segments[0], "end") == 5.0


def test_white_space_around_the_audio_file_does_not_count():
    assert (
        alignment.parse(encode({"audio_file": " d/x.opus\n", "segments": [SEGMENT]})).audio_file == "d/x.opus"
    )


def test_both_spellings_give_the_same_digest():
    other = {
        "start_seconds": 1.0, "end_seconds": 5.0, "asr_transcript": "a", "human_transcript": "b", "cer": 0.1,
        "original_transcript_start_idx": 1, "original_transcript_end_idx": 2,
    }  # fmt: skip
    one = alignment.parse(encode({"audio_file": "x.opus", "segments": [SEGMENT]}))
    two = alignment.parse(encode({"segments": [other], "audio_file": "x.opus", "unused": 1}))
    assert one.digest == two.digest


@pytest.mark.parametrize("field", ["start", "end", "asr_text", "human_text", "cer", "start_idx", "end_idx"])
def test_every_field_that_is_used_changes_the_digest(field):
    changed = {**SEGMENT, field: "other" if isinstance(SEGMENT[field], str) else 0.25}
    digests = {
        alignment.parse(encode({"audio_file": "x.opus", "segments": [s]})).digest for s in (SEGMENT, changed)
    }
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("audio_file", "video_id"),
    [
        ("/cluster/x/abc.opus", "abc"),
        ("a.b.c.opus", "a.b.c"),
        ("sitting 12.3.2020.mp4", "sitting 12.3.2020"),
        ("sitting_12.3.2020", "sitting_12.3.2020"),
        ("C:\\data\\día 1.m4a", "día 1"),
        ("clip.3gp", "clip"),
        ("noextension", "noextension"),
        (".opus", ".opus"),
        ("dir/x_1.MP3", "x_1"),
    ],
)
def test_video_id_is_the_stem(audio_file, video_id):
    assert alignment.stem(audio_file) == video_id


@pytest.mark.parametrize(
    ("file_stem", "video_id", "expected"),
    [
        ("v1_t9", "v1", "t9"),
        ("a_b_c_d", "a_b", "c_d"),
        ("v1", "v1", ""),
        ("other_t1", "v1", "other_t1"),
        ("v10_t", "v1", "v10_t"),
    ],
)
def test_transcript_id_is_the_rest_of_the_name(file_stem, video_id, expected):
    assert alignment.transcript_id(file_stem, video_id) == expected


def test_lone_surrogates_and_nuls_leave_the_text_writable():
    text, repairs = alignment.clean_text("a\ud800b\0c")
    assert text.encode() and "\0" not in text and set(repairs) == {"text_surrogate", "text_nul"}
    assert alignment.clean_text("\ud83d\ude00")[0] == "😀"


def test_hours_are_where_the_last_valid_segment_ends():
    values = [{"end": 7200}, {"end": 1e300}, {"end": "x"}, {"end": None}, "no segment", {"end": float("nan")}]
    assert alignment.Alignment("x", values).hours == 2.0
