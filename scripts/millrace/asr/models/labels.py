"""What a model learns from a transcript: characters for CTC (case, punctuation, how many at most),
token ids with masked prompts for decoders."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from millrace.common.errors import MillraceError

IGNORE = -100  # what torch's cross entropy leaves out
BLANK = 0
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\u0060\u00b4\uff07", "'"))
# Apostrophes without a letter or digit on both sides.
_OUTSIDE_WORDS = re.compile(r"(?<![^\W_])'|'(?![^\W_])")


def normalise(
    text: str,
    case_fold: bool = True,
    punctuation: bool = False,
) -> str:
    """NFKC with one kind of apostrophe and single spaces.

    Without `punctuation` only letters, marks, digits and apostrophes between letters stay.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    if case_fold:
        text = unicodedata.normalize("NFKC", text.casefold())  # folding can undo the first NFKC
    if not punctuation:
        text = _OUTSIDE_WORDS.sub(" ", text)
        text = "".join(character if _is_spoken(character) else " " for character in text)
    # Control characters go, except those that are white space.
    shown = [c for c in text if c.isspace() or unicodedata.category(c)[0] != "C"]
    return " ".join("".join(shown).split())


def _is_spoken(character: str) -> bool:
    """Whether it is a letter, mark, digit or apostrophe."""
    return character == "'" or unicodedata.category(character)[0] in "LMN"


@dataclass(frozen=True)
class Characters:
    """A vocabulary of characters; index 0 is CTC's blank, character n has index n + 1."""

    characters: str
    case_fold: bool = True
    punctuation: bool = False

    @classmethod
    def from_transcripts(
        cls,
        transcripts: Iterable[str],
        limit: int = 5000,
        **rules: bool,
    ) -> Characters:
        """The `limit` most frequent characters, by code point: the same for any order of the
        transcripts.

        `rules` are those of `normalise`. Raises MillraceError if there is no character.
        """
        counts = Counter(
            character for text in transcripts for character in normalise(text, **rules)
        )
        ranked = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
        if not ranked:
            remedy = "Check the transcript column of the manifests (asr.manifest_dir)"
            raise MillraceError("the transcripts hold no character to learn", remedy=remedy)
        return cls("".join(sorted(ranked)), **rules)

    def __len__(self) -> int:
        return len(self.characters) + 1

    def normalise(self, text: str) -> str:
        """The text as this vocabulary writes it; characters that it lacks are left out."""
        known = _indices(self.characters)
        text = normalise(text, self.case_fold, self.punctuation)
        return " ".join("".join(c for c in text if c in known).split())

    def encode(self, text: str) -> list[int]:
        """Indices of the characters of `normalise(text)`."""
        return [_indices(self.characters)[character] for character in self.normalise(text)]

    def collapse(self, path: Iterable[int]) -> str:
        """The text of a CTC path: repeats are one character, blanks part them."""
        indices = [index for index, _ in groupby(path) if index != BLANK]
        text = "".join(self.characters[index - 1] for index in indices)
        return " ".join(text.split())


@lru_cache(maxsize=8)
def _indices(characters: str) -> dict[str, int]:
    return {character: number + 1 for number, character in enumerate(characters)}


def padded_ids(
    sequences: Sequence[Sequence[int]],
    fill: int,
    side: str = "right",
) -> Tensor:
    """int64 (B, L): sequences filled up with `fill` on the `side`, left or right."""
    rows = [torch.tensor(sequence, dtype=torch.int64) for sequence in sequences]
    if not rows:
        return torch.empty((0, 0), dtype=torch.int64)
    return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side=side)


def labelled(
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    pad_id: int,
) -> dict[str, Tensor]:
    """input_ids, attention_mask and labels, int64 (B, L), of prompt + target, padded on the right.

    Labels are IGNORE except at the targets. Padding follows from the lengths, never from the ids: a
    model whose pad token is its end token still learns to end. `places` are the positions in the
    flattened (B * L) hidden states at which a causal decoder predicts the `answers`, so that the
    head runs on those alone.
    """
    ids = []
    marks = []
    for prompt, target in zip(prompts, targets, strict=True):
        ids.append([*prompt, *target])
        marks.append([IGNORE] * len(prompt) + list(target))
    labels = padded_ids(marks, IGNORE)

    # The label at column t is predicted at column t - 1.
    rows, columns = torch.nonzero(labels[:, 1:] != IGNORE, as_tuple=True)
    return {
        "input_ids": padded_ids(ids, pad_id),
        "attention_mask": padded_ids([[1] * len(row) for row in ids], 0),
        "labels": labels,
        "places": rows * labels.shape[1] + columns,
        "answers": labels[rows, columns + 1],
    }
