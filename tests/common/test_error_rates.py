"""Error rates of pairs, and edits counted over many of them."""

import pytest

from millrace.common.error_rates import ErrorCounts, count_errors, error_rates, normalised


@pytest.mark.parametrize(
    "reference, hypothesis, cer, wer",
    [
        ("the house is adjourned", "the house is a journed", 1 / 22, 2 / 4),
        ("Äpfel, Birnen", "Apfel Birnen", 2 / 13, 1 / 2),
        ("  two   blanks ", "two blanks", 2 / 12, 0.0),
        ("a", "", 1.0, 1.0),
        ("a", "b c d", 5.0, 3.0),
        # One tab or line break parts no words, two of them do; the ends are stripped of any white
        # space.
        ("one\ttwo", "one two", 1 / 7, 2.0),
        ("one\t\ntwo", "one two", 2 / 8, 0.0),
        ("\u3000один два\x1c", "один", 4 / 8, 1 / 2),
        # An empty reference: jiwer would give the number of insertions.
        ("", "", 0.0, 0.0),
        (" ", "\n", 0.0, 0.0),
        (" ", "x y", 1.0, 1.0),
        ("", "x y", 1.0, 1.0),
    ],
)
def test_rates_of_a_pair(reference, hypothesis, cer, wer):
    assert error_rates([reference, "a"], [hypothesis, "a"]) == ([cer, 0.0], [wer, 0.0])


def test_counts_of_many_pairs_are_sums():
    references, hypotheses = ["a b", " one\ttwo ", "", "x"], ["a", "one two", "new words", "x"]
    counts = count_errors(references, hypotheses)
    assert counts == ErrorCounts(character_edits=12, characters=11, word_edits=3, words=5)
    pairs = zip(references, hypotheses, strict=True)
    assert counts == sum((count_errors([a], [b]) for a, b in pairs), ErrorCounts())
    assert (counts.cer, counts.wer) == (12 / 11, 3 / 5)
    assert count_errors(["a"], ["b c d"]).wer == 3.0
    assert count_errors([], []) == ErrorCounts() and ErrorCounts().cer == ErrorCounts().wer == 0.0


def test_lists_of_different_lengths_are_refused():
    for count in (error_rates, count_errors):
        with pytest.raises(ValueError):
            count(["a"], [])


@pytest.mark.parametrize(
    "text, spoken",
    [
        ("L’écouter:  Désolé — je\tn'ai\u00a0PAS!", "l écouter désolé je n ai pas"),
        ("\ufb01ne ＡＢＣ Straße", "fine abc strasse"),
        ("E\u0301tat, \u200fsoft\u00adhyphen", "état softhyphen"),
        ("हिन्दी। 50 € + 3", "हिन्दी 50 € + 3"),
        ("...", ""),
    ],
)
def test_a_normalised_text_is_what_is_spoken(text, spoken):
    assert normalised(text) == spoken == normalised(spoken)
