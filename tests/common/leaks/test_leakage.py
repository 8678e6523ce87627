"""What is said of leaks, in every lane alike."""

from __future__ import annotations

import pytest

from millrace.common.leaks import leakage
from millrace.common.leaks.leakage import Shared
from millrace.common.ledger import Ledger


def test_a_ledger_says_what_was_rejected_and_what_was_kept() -> None:
    ledger = Ledger("stage", "train", "row", rejected={"also_in_test": 30, "damaged": 2})
    ledger.warnings.update({"also_in_dev": 1, leakage.OTHER_LABEL: 2})
    assert leakage.lines(ledger) == [
        "30 rows of train that are also in test: rejected",
        "1 row of train that is also in dev: kept",
        "2 rows of these with another label where held out",
    ]
    assert leakage.reasons(ledger) == {"also_in_test"}
    assert leakage.lines(Ledger("stage", "train", rejected={"also_in_test": 0})) == []


@pytest.mark.parametrize(
    "on_leak, verdict",
    [(leakage.REJECT, "rejected"), (leakage.KEEP, "kept")],
)
def test_the_line_is_that_of_the_ledger(on_leak: str, verdict: str) -> None:
    shared = Shared(2, "image", "train", "val")
    assert leakage.line(shared, on_leak) == f"2 images of train that are also in val: {verdict}"


def test_an_error_names_the_first_leak_and_the_key() -> None:
    shared = [Shared(2, "row", "train", "test"), Shared(1, "row", "train", "dev")]
    error = leakage.error(shared, "a.flac", "rejects.jsonl", "asr.on_leak")
    assert str(error) == (
        "rejects.jsonl: 2 rows of train that are also in test and 1 row of train that is also in"
        " dev, the first: a.flac. Mend the splits, or set asr.on_leak to reject (they leave train)"
        " or to keep"
    )
