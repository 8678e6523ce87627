"""Recordings assembled of prompts: each prompt once, exact places, lengths within limits, for any
seed."""

from __future__ import annotations

import random

import jiwer
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.speech.demo.prompts import Prompt
from millrace.speech.demo.recordings import assemble, misheard
from tests.refusals import refused


def _prompts(seconds: list[float]) -> list[Prompt]:
    """Prompt n consists of the number n + 1, so that its place in a recording can be read off."""
    return [
        Prompt(str(n), np.full(int(16_000 * s), n + 1, np.int16)) for n, s in enumerate(seconds)
    ]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), hours=st.floats(0.001, 0.7), long=st.booleans())
def test_every_prompt_once_and_in_its_place(seed, hours, long):
    rng = random.Random(seed)
    seconds = [85.0, 42.0] if long else [1.0]
    while sum(seconds) < hours * 3600:
        seconds.append(min(rng.expovariate(1 / 2.5) + 0.2, 30.0))
    recordings = assemble(_prompts(seconds), seed, "spain")
    used = []
    for recording in recordings:
        expected = np.zeros(len(recording.samples), np.int16)
        for segment in recording.segments:
            inside = recording.samples[segment.start : segment.end]
            numbers = [int(text) for text in segment.text.split(" ")]
            assert inside[0] == numbers[0] + 1 and inside[-1] == numbers[-1] + 1
            values, counts = np.unique(inside[inside != 0], return_counts=True)
            lengths = {n: int(16_000 * seconds[n]) for n in numbers}
            assert dict(zip(values - 1, counts, strict=True)) == lengths
            expected[segment.start : segment.end] = inside
            used += numbers
        assert np.array_equal(expected, recording.samples)
        gaps = [
            b.start - a.end
            for a, b in zip(recording.segments, recording.segments[1:], strict=False)
        ]
        gaps += [recording.segments[0].start, len(recording.samples) - recording.segments[-1].end]
        assert all(8_000 <= gap <= 24_000 for gap in gaps)
        assert len(recordings) == 1 or 180 <= len(recording.samples) / 16_000 <= 900
    assert sorted(used) == list(range(len(seconds)))
    assert hours < 0.3 or len(recordings) >= 4


def test_no_prompts_is_a_clear_error():
    with refused("no prompt"):
        assemble([], 1, "italy")


@given(
    text=st.text(alphabet="abcÄß чя.,'1", min_size=1).filter(str.strip), seed=st.integers(0, 999)
)
def test_misheard(text, seed):
    text = " ".join(text.split())
    heard = misheard(text, random.Random(seed))
    assert heard == misheard(text, random.Random(seed))
    assert heard and heard == " ".join(heard.split())
    assert 0 <= jiwer.cer(text, heard) <= 0.75 + 1 / len(text)
