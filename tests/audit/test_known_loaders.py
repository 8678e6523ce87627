"""The audit on loaders whose answer is known."""

from __future__ import annotations

import pytest

from millrace.audit.runner.guard import Guard
from tests.audit.expectations import KNOWN, Known
from tests.audit.known import mismatches, worst

pytestmark = pytest.mark.long


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.loader} {known.options}")
def test_a_loader_whose_answer_is_known_is_judged_so(known: Known, guard: Guard):
    entries = worst(known, guard, known.verdicts)
    assert not mismatches(known, entries)
