"""Character and word error rates, as jiwer counts them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[list[float], list[float]]:
    """CER and WER of each pair, as jiwer counts them with its default transforms.

    Source: (substitutions + deletions + insertions) / length of the reference, over characters or words. A reference
    that jiwer finds empty counts 0 when the hypothesis is empty too, else 1. jiwer's own engine is asked, for the
    number of edits only: to list them, as jiwer does, takes minutes for a text of a megabyte.
    """
    from rapidfuzz.distance import Levenshtein

    cers, wers = [], []
    for pair in zip(references, hypotheses, strict=True):
        reference, hypothesis = (text.strip() for text in pair)
        if not reference:
            rate = float(bool(hypothesis))
            cers.append(rate)
            wers.append(rate)
            continue
        words = _words(reference)
        cers.append(Levenshtein.distance(reference, hypothesis) / len(reference))
        wers.append(Levenshtein.distance(words, _words(hypothesis)) / len(words))
    return cers, wers


def _words(text: str) -> list[str]:
    """Words as jiwer takes them: a single tab or line break parts none, two of them do."""
    return [word for word in re.sub(r"\s\s+", " ", text).split(" ") if word]
