"""Character and word error rates, as jiwer counts them: how texts are written before (case,
punctuation), and what an empty reference counts."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from dataclasses import astuple, dataclass


def normalised(text: str) -> str:
    """A text as it is spoken: Unicode NFKC, case folded, punctuation (P*) parts words, invisible
    format characters (Cf) are dropped, white space is one blank each. Digits, symbols and accents
    stay.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(map(_spoken, folded)).split())


@functools.cache
def _spoken(char: str) -> str:
    kind = unicodedata.category(char)
    if kind[0] == "P":
        return " "
    return "" if kind == "Cf" else char


def error_rates(
    references: Sequence[str], hypotheses: Sequence[str]
) -> tuple[list[float], list[float]]:
    """CER and WER of each pair, by jiwer with its default transforms.

    Source: (substitutions + deletions + insertions) / length of the reference, over characters or
    words. An empty reference counts 0 when the hypothesis is empty too, else 1 (jiwer gives the
    number of insertions).
    """
    import jiwer

    cers = []
    wers = []
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        blank = None
        if not reference.strip():
            blank = float(bool(hypothesis.strip()))
        cers.append(jiwer.cer(reference, hypothesis) if blank is None else blank)
        wers.append(jiwer.wer(reference, hypothesis) if blank is None else blank)
    return cers, wers


@dataclass(frozen=True)
class ErrorCounts:
    """Edits (substitutions + deletions + insertions) and what they are a share of; ranks add
    theirs."""

    character_edits: int = 0
    characters: int = 0
    word_edits: int = 0
    words: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return ErrorCounts(*map(sum, pairs))

    @property
    def cer(self) -> float:
        """Character error rate; 0 if neither side has any character."""
        return self.character_edits / max(self.characters, 1)

    @property
    def wer(self) -> float:
        """Word error rate; 0 if neither side has any word."""
        return self.word_edits / max(self.words, 1)


def count_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Edits between pairs of texts, by jiwer: blanks at the ends do not count, white space parts
    words."""
    import jiwer

    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses")
    said = [" ".join(text.split()) for text in references]
    heard = [" ".join(text.split()) for text in hypotheses]
    counts: list[int] = []
    for output in (
        jiwer.process_characters(list(references), list(hypotheses)),
        jiwer.process_words(said, heard),
    ):
        wrong = output.substitutions + output.deletions
        counts += (wrong + output.insertions, wrong + output.hits)
    return ErrorCounts(*counts)
