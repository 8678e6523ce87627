"""Segments: every kind of damage has its reason, what can be mended is counted."""

import math

import pytest

from millrace.speech.manifest import segments

GOOD = {
    "start": 1.0,
    "end": 5.0,
    "asr_text": "a b",
    "human_text": "a c",
    "cer": 0.1,
    "start_idx": 1,
    "end_idx": 2,
}
LIMITS = segments.Limits(3.0, 20.0)


def validated(**changes: object) -> segments.Segment:
    """A good segment with these changes, of a recording of 100 s."""
    return segments.validate({**GOOD, **changes}, 0, LIMITS, audio_seconds=100.0)


def reason_of(raw: object) -> str:
    with pytest.raises(segments.Unusable) as caught:
        segments.validate(raw, 0, LIMITS, audio_seconds=100.0)
    assert str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize(
    "reason, changes",
    [
        ("segment_not_an_object", [None, 5, "text", [1, 2], True]),
        ("time_missing", [{"start": None}, {"end": None}]),
        (
            "time_not_finite",
            [{"start": math.nan}, {"end": math.inf}, {"end": 10**400}],
        ),
        ("time_negative", [{"start": -2.0}, {"start": -0.0005}]),
        ("time_not_a_number", [{"start": text} for text in ("abc", "", "1.0", "5,5", "nan")]),
        ("time_not_a_number", [{"start": value} for value in ({"s": 1}, True, [1])]),
        ("time_reversed", [{"start": 6.0}, {"start": 5.0}]),
        ("time_out_of_range", [{"end": 100.06, "start": 90.0}, {"start": 100.0, "end": 100.01}]),
        (
            "no_human_text",
            [{"human_text": value} for value in (None, "  \n ", "\u200b\u200b", math.nan)],
        ),
        ("text_not_a_string", [{"human_text": value} for value in (42, {"a": 1}, True, [])]),
        ("text_not_a_string", [{"asr_text": 42}, {"human_text": "a\0"}]),
        ("spellings_differ", [{"start_seconds": 1.5}, {"human_transcript": "other"}]),
        ("too_short", [{"end": 3.9}]),
        ("too_long", [{"end": 21.1}]),
    ],
)
def test_rejects_have_a_reason(reason, changes):
    raws = [{**GOOD, **change} if isinstance(change, dict) else change for change in changes]
    assert [reason_of(raw) for raw in raws] == [reason] * len(raws)


@pytest.mark.parametrize(
    "change, repair",
    [
        ({"start": 95.0, "end": 100.05}, "end_clipped"),
        ({"asr_text": None}, "asr_text_missing"),
    ],
)
def test_repairs_are_named(change, repair):
    segment = validated(**change)
    assert repair in segment.repairs
    assert 0 <= segment.start < segment.end <= 100.0
    segment.human_text.encode()


@pytest.mark.parametrize("cer", [None, "x", math.nan, math.inf, -0.1, True, [], "0.2"])
def test_only_a_usable_cer_is_taken(cer):
    assert validated(cer=cer).cer is None


@pytest.mark.parametrize("value", [None, "5", 3.7, math.nan, math.inf, 1e300, {}, 2**53, -(2**53)])
def test_an_odd_token_index_is_none(value):
    assert validated(start_idx=value).start_idx is None


def test_the_largest_token_index_that_a_float_holds_is_kept():
    assert validated(start_idx=2**53 - 1).start_idx == 2**53 - 1


def test_a_segment_ends_where_its_audio_does():
    segment = segments.validate({**GOOD, "start": 95.0, "end": 100.03}, 0, LIMITS, 99.99)
    assert segment.end == 99.99


def test_limits_include_their_ends_despite_float_noise():
    assert validated(start=0.1, end=0.1 + 3.0) and validated(start=0.1, end=20.1)


def test_keys_truncate_to_milliseconds():
    segment = validated(start=1.2349, end=5.9999)
    assert segments.key_of("germany", "a_b", segment) == "germany_a_b_1234_5999"


def row(key: str, cer: float, text: str = "t", transcript: str = "t1") -> dict:
    return {
        "key": key,
        "cer": cer,
        "start_seconds": 1.0,
        "end_seconds": 5.0,
        "human_transcript": text,
        "asr_transcript": "x",
        "transcript_id": transcript,
        "status": "pending_local_tar",
    }


def resolved(rows: list[dict]) -> tuple[list[tuple], list[tuple], set[str]]:
    """Key and transcript of the rows that stay, transcript and reason of the others, and what is
    said of these."""
    unique, rejected = segments.resolve_duplicates(rows)
    return (
        [(row["key"], row["transcript_id"]) for row in unique],
        [(row["transcript_id"], reason) for row, reason, _ in rejected],
        {detail for *_, detail in rejected},
    )


def test_of_equal_keys_one_with_audio_stays_whenever_it_came():
    missing = {"status": "error_local_tar_missing_source"}
    rows = [
        row("k", 0.1) | missing,
        row("k", 0.2, transcript="t2"),
        row("gone", 0.1) | missing,
    ]
    unique, rejected, _ = resolved(rows)
    assert unique == [("k", "t2"), ("gone", "t1")]
    assert rejected == [("t1", "duplicate_exact")]


def test_of_equal_keys_the_lowest_cer_stays_and_the_others_are_counted():
    rows = [
        row("k", 0.2),
        row("k", 0.1, "better", "t2"),
        row("k", 0.1, "better", "t3"),
        row("other", 0.5),
    ]
    unique, rejected, details = resolved(rows)
    assert unique == [("k", "t2"), ("other", "t1")]
    assert rejected == [("t1", "duplicate_key"), ("t3", "duplicate_exact")]
    assert details == {"same key k as in transcript 't2'"}
