"""Error rates and their intervals, against what can be counted by hand."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.asr.evaluation import hypotheses, rates
from millrace.asr.evaluation.hypotheses import Transcribed, recording_of
from millrace.common.error_rates import ErrorCounts
from millrace.common.errors import Damaged


def line(recording: str, edits: int, seconds: float = 4.0, language: str = "en") -> dict:
    """A reference of ten characters and two words, a word wrong if any character is."""
    counts = {"edits": edits, "characters": 10, "word_edits": min(edits, 1), "words": 2}
    return {"recording": recording, "language": language, "duration_s": seconds, **counts}


def test_whole_recordings_are_drawn_not_clips():
    # Of two recordings, one all right and one all wrong, a quarter of the draws has only the first
    # one.
    lines = [line("a", 0)] * 50 + [line("b", 10)] * 50
    both = rates.rates(lines)
    assert (both["cer"], both["cer_range"], both["wer_range"]) == (0.5, [0.0, 1.0], [0.0, 0.5])
    assert (both["samples"], both["recordings"], both["wer"], both["seconds"]) == (
        100,
        2,
        0.25,
        400,
    )
    uneven = [line(f"r{number}", number % 7) for number in range(20)]
    assert rates.rates(uneven[::-1]) == rates.rates(uneven)
    assert rates.rates([line("a", 1), line("a", 3), line("b", 2)])["cer"] == 0.2
    # As many clips of as many recordings are far less uncertain.
    many = rates.rates([line(f"r{number}", 10 * (number % 2)) for number in range(100)])
    # Their mean varies by 0.05: 1.96 times that to both sides, in steps of 0.01.
    assert many["cer_range"] == pytest.approx([0.402, 0.598], abs=0.0125)
    # Of a reference without a character, each letter that is written is wrong.
    nothing = {**line("a", 3), "characters": 0, "words": 0}
    assert (rates.rates([nothing])["cer"], rates.rates([nothing])["wer"]) == (3.0, 1.0)
    # One recording says nothing of others.
    assert rates.rates(lines[:50])["cer_range"] is None


def test_rates_by_language_and_by_duration_add_up_to_all():
    lines = [line("a", 1, 2.9, "de"), line("b", 2, 3.0, "de"), line("c", 6, 99.0, "it")]
    of = rates.of_split(lines, (0, 1, 3, 5))
    assert of["overall"]["cer"] == 0.3
    assert {name: of["cer"] for name, of in of["by_language"].items()} == {"de": 0.15, "it": 0.6}
    assert {name: of["cer"] for name, of in of["by_duration"].items()} == {
        "b_1_3": 0.1,
        "b_3_5": 0.4,
    }
    assert rates.of_split(lines, ())["by_duration"] == {}
    assert rates.shown(of["by_language"]["it"], "wer") == "50.0 %"
    assert rates.shown({"cer": 0.5, "cer_range": [0.25, 0.75]}) == "50.0 % (25.0–75.0)"
    assert rates.line_of("dev", of).endswith("3 samples of 3 recordings")


@pytest.mark.parametrize(
    "key, seconds, recording",
    [
        ("malta_talk_7_1200_3700", 2.5, "malta_talk_7"),
        ("clips/utt_0_0012", 2.5, "clips/utt_0_0012"),  # 12 ms is not its duration
        ("84-121123-0003", 2.5, "84-121123-0003"),
    ],
)
def test_the_recording_of_a_clip_is_found_by_its_span(key, seconds, recording):
    assert recording_of(key, seconds) == recording


def test_hypotheses_stand_in_the_order_of_the_rows_whichever_rank_had_them(tmp_path):
    members = pa.table({"tar_member_name": ["a.flac", "b.1.flac"]})
    pq.write_table(members, tmp_path / "dev.parquet")
    samples = [
        Transcribed(row, 7, language, 1.0, "x", f"of {row}", ErrorCounts())
        for row, language in ((1, ""), (0, "en"))
    ]
    lines = hypotheses.of_split("dev", tmp_path / "dev.parquet", samples)
    said = [(line["key"], line["language"], line["hypothesis"]) for line in lines]
    assert said == [("a", "en", "of 0"), ("b.1", "und", "of 1")]


def test_damaged_hypotheses_are_refused(tmp_path):
    (tmp_path / "hypotheses.jsonl").write_text('{"split": "dev"}\n{"split"\n')
    with pytest.raises(Damaged):
        hypotheses.read(tmp_path)
