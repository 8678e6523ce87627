"""Character and word error rates, as jiwer counts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[list[float], list[float]]:
    """CER and WER of each pair, as jiwer counts them with its default transforms.

    Source: (substitutions + deletions + insertions) / length of the reference, over characters or words. A
    reference that jiwer finds empty counts 0 when the hypothesis is empty too, else 1. jiwer's own engine is
    asked, for the number of edits only: to list them, as jiwer does, takes minutes for a text of a megabyte.
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


@dataclass(frozen=True)
class ErrorCounts:
    """Edits (substitutions + deletions + insertions) and what they are a share of; add those of several
    ranks."""

    character_edits: int = 0
    characters: int = 0
    word_edits: int = 0
    words: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.character_edits + other.character_edits,
            self.characters + other.characters,
            self.word_edits + other.word_edits,
            self.words + other.words,
        )

    @property
    def cer(self) -> float:
        """Character error rate; 0 where neither side has any character."""
        return self.character_edits / max(self.characters, 1)

    @property
    def wer(self) -> float:
        """Word error rate; 0 where neither side has any word."""
        return self.word_edits / max(self.words, 1)


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Edits between pairs of texts, spaces at the ends left out (rapidfuzz, which jiwer counts with too)."""
    from rapidfuzz.distance import Levenshtein

    total = ErrorCounts()
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        reference, hypothesis = reference.strip(), hypothesis.strip()
        words, heard = reference.split(), hypothesis.split()
        total += ErrorCounts(
            Levenshtein.distance(reference, hypothesis),
            len(reference),
            Levenshtein.distance(words, heard),
            len(words),
        )
    return total
