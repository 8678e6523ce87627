"""How far transcriptions are from what was said, over a whole corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorCounts:
    """Edits (substitutions + deletions + insertions) and what they are a share of; add those of several ranks."""

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
