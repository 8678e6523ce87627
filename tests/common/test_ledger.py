"""Rows in are rows out plus rejects, or the stage fails."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from tests.refusals import refused

REASONS = st.dictionaries(
    st.sampled_from(["too_short", "too_long", "no_text", "audio_load"]), st.integers(1, 10**12)
)


@st.composite
def ledgers(draw) -> Ledger:
    rejected, rows_out = draw(REASONS), draw(st.integers(0, 10**12))
    rows_in = rows_out + sum(rejected.values())
    return Ledger(
        "stage",
        draw(st.text()),
        "segment",
        rows_in,
        rows_out,
        rejected,
        draw(REASONS),
        draw(REASONS),
    )


@given(ledger=ledgers(), missing=st.integers(-5, 5))
def test_only_what_adds_up_passes(ledger: Ledger, missing: int):
    ledger.check()
    ledger.rows_in += missing
    if missing == 0:
        ledger.check()
        return
    with pytest.raises(MillraceError) as caught:
        ledger.check()
    assert str(ledger.rows_in) in str(caught.value) and "does not add up" in str(caught.value)
    with refused("does not add up"):
        ledger.as_dict()


@given(ledger=ledgers(), repairs=REASONS)
def test_repairs_and_warnings_take_no_part_in_the_balance(ledger: Ledger, repairs: dict):
    ledger.repaired.update(repairs)
    ledger.warnings.update(repairs)
    ledger.check()


@given(parts=st.lists(ledgers(), max_size=5))
def test_a_total_of_balanced_ledgers_is_balanced_and_leaves_them_alone(parts: list[Ledger]):
    before = [part.as_dict() for part in parts]
    total = Ledger.total("all", "everything", parts)
    total.check()
    assert total.rows_in == sum(part.rows_in for part in parts)
    assert total.rows_rejected == sum(part.rows_rejected for part in parts)
    for name in ("rejected", "repaired", "warnings"):
        reasons = set().union(*(getattr(part, name) for part in parts))
        assert dict(getattr(total, name)) == {
            r: sum(getattr(p, name)[r] for p in parts) for r in reasons
        }
    assert [part.as_dict() for part in parts] == before


@given(ledger=ledgers())
def test_what_is_written_is_read_again_in_sorted_order(ledger: Ledger):
    text = json.dumps(ledger.as_dict())
    again = Ledger.from_dict(json.loads(text))
    assert again == ledger
    assert json.dumps(again.as_dict()) == text
    assert list(ledger.as_dict()["rejected"]) == sorted(ledger.rejected)
    assert ledger.as_dict()["rows_rejected"] == ledger.rows_rejected


def test_a_ledger_does_not_share_its_counts_with_what_it_was_made_from():
    reasons = {"too_short": 1}
    ledger = Ledger("stage", "scope", rows_in=1, rejected=reasons)
    ledger.rejected["too_short"] += 1
    assert reasons == {"too_short": 1}


def test_a_ledger_speaks_in_words():
    ledger = Ledger("stage", "train", "row", 1, 0, {"too_long": 1})
    assert ledger.line() == "train: 1 row in, 0 out, 1 rejected; rejected: 1 too_long"
    assert (
        Ledger("stage", "train", "row", 5, 0, {"too_long": 2, "no_text": 3}).reasons()
        == "3 no_text, 2 too_long"
    )


@pytest.mark.parametrize(
    "most, errors, problem",
    [
        (0.0, 0, ""),
        (0.1, 1, ""),
        (0.1, 2, "2 of 10 rows are in error (2 torn), more than max_error_fraction 0.1 allows"),
    ],
)
def test_what_a_run_has_left_out_by_choice_is_no_error(most: float, errors: int, problem: str):
    rejected = {"torn": errors, "too_long": 5, "empty": 0}
    ledger = Ledger("stage", "train", "row", 10, 5 - errors, rejected)
    assert ledger.too_many_errors({"too_long"}, most) == problem
