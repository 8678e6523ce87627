"""The audit on loaders whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.audit.runner.guard import Guard
from tests.audit.expectations import KNOWN, Known
from tests.audit.running import audited

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parent


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.loader} {known.options}")
def test_a_loader_whose_answer_is_known_is_judged_so(known: Known, guard: Guard):
    options = known.options.replace("--loop ", f"--loop {FOLDER}/loaders/")
    argv = ["--loader", f"{FOLDER}/{known.loader}", *options.split(), "--only"]
    found = audited(guard, [*argv, ",".join(known.verdicts)])["entries"]
    assert {entry: said["verdict"] for entry, said in found.items()} == known.verdicts, found
