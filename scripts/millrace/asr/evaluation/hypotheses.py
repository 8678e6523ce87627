"""What a model has written for each sample of dev and test: the lines of hypotheses.jsonl."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from millrace.common import jsonl
from millrace.common.error_rates import ErrorCounts
from millrace.common.errors import Damaged, own_file

FILE = "hypotheses.jsonl"
# The speech lane's keys end with a segment's start and end in milliseconds.
_SPAN = re.compile(r"(.+)_(\d+)_(\d+)")
_SPAN_SECONDS = 1.0  # a name whose numbers differ from the duration by more holds other numbers
Hypothesis = dict[str, Any]  # a line, see of_split


class Transcribed(NamedTuple):
    """A sample as the evaluation leaves it: its row in the split, both texts, the edits between
    them."""

    row: int
    sample_id: int
    language: str
    duration_s: float
    reference: str
    hypothesis: str
    errors: ErrorCounts


def of_split(split: str, parquet: Path, samples: Iterable[Transcribed]) -> list[Hypothesis]:
    """The lines of a split, in the order of its rows; `parquet` gives the names of their members.

    `edits` are substitutions, deletions and insertions of characters, `characters` those of the
    reference.
    """
    samples = sorted(samples, key=lambda sample: sample.row)
    with own_file(parquet):
        columns = ["tar_member_name"]
        members = pq.read_table(parquet, columns=columns, partitioning=None).column(0)
    lines = []
    for sample in samples:
        key = posixpath.splitext(members[sample.row].as_py())[0]
        seconds = round(sample.duration_s, 3)
        line = {
            "split": split,
            "key": key,
            "recording": recording_of(key, seconds),
            "language": sample.language or "und",
            "duration_s": seconds,
            "reference": sample.reference,
            "hypothesis": sample.hypothesis,
            "edits": sample.errors.character_edits,
            "characters": sample.errors.characters,
            "word_edits": sample.errors.word_edits,
            "words": sample.errors.words,
            "sample_id": sample.sample_id,
        }
        lines.append(line)
    return lines


def recording_of(key: str, seconds: float) -> str:
    """The recording that a sample was cut from, if its key ends with its span as
    `<recording>_<start>_<end>` in milliseconds; else the key: the sample is a recording of its
    own."""
    match = _SPAN.fullmatch(key)
    if match:
        span = (int(match[3]) - int(match[2])) / 1000
        if abs(span - seconds) <= _SPAN_SECONDS:
            return match[1]
    return key


def read(run: Path) -> list[Hypothesis]:
    """The lines of a run's folder; none if it has no such file."""
    path = run / FILE
    rows: list[Any] = []
    if path.exists():
        rows = [row for _, row, _ in jsonl.lines(path)]
    for row in rows:
        if isinstance(row, jsonl.BadJson):
            raise Damaged(path, row)
    return rows
