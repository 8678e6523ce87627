"""Error rates are jiwer's."""

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.common.error_rates import error_rates

PAIRS = [
    ("the house is adjourned", "the house is a journed"),
    ("Äpfel, Birnen", "Apfel Birnen"),
    ("  two   blanks ", "two blanks"),
    ("a", ""),
    ("один два", "один"),
]


def test_rates_equal_jiwer_pair_by_pair():
    cers, wers = error_rates(*zip(*PAIRS, strict=True))
    assert cers == pytest.approx([jiwer.cer(reference, hypothesis) for reference, hypothesis in PAIRS])
    assert wers == pytest.approx([jiwer.wer(reference, hypothesis) for reference, hypothesis in PAIRS])


TEXT = st.text(
    st.one_of(st.sampled_from("ab \t\n\u3000\x1c"), st.characters(exclude_categories=["Cs"])), max_size=12
)


@given(reference=TEXT.filter(str.strip), hypothesis=TEXT)
def test_rates_equal_jiwer_for_any_text(reference, hypothesis):
    (cer,), (wer,) = error_rates([reference], [hypothesis])
    assert cer == pytest.approx(jiwer.cer(reference, hypothesis))
    assert wer == pytest.approx(jiwer.wer(reference, hypothesis))


def test_an_empty_reference_has_a_rate_all_the_same():
    assert error_rates(["", " "], ["", "x"]) == ([0.0, 1.0], [0.0, 1.0])
