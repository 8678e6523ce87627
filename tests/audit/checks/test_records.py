"""What a probe wrote becomes the records that a check names."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from millrace.audit.checks.records import parse


class Part(NamedTuple):
    size: int
    names: list[str]


class Whole(NamedTuple):
    parts: list[Part]
    by_name: dict[str, Part]
    best: Part | None
    number: int = 3


PART = {"size": 1, "names": ["a"]}
RECORD = Part(1, ["a"])


@pytest.mark.parametrize(
    "kind, value, record",
    [
        (Part, {**PART, "what no check asks for": 2}, RECORD),
        (Part, {"size": 1}, Part(1, [])),
        (list[Part], [PART, PART], [RECORD, RECORD]),
        (Whole, {"best": None}, Whole([], {}, None)),
        (
            Whole,
            {"parts": [PART], "by_name": {"x": PART}, "best": PART, "number": 4},
            Whole([RECORD], {"x": RECORD}, RECORD, 4),
        ),
        (dict, PART, PART),
    ],
)
def test_a_record_is_made_of_what_its_type_names(kind, value, record):
    assert parse(kind, value) == record


def test_a_value_that_was_not_written_is_missed():
    with pytest.raises(TypeError, match="size"):
        parse(Part, {"names": []})
