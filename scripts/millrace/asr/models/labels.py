"""What a model is taught about a transcript: characters for CTC, token ids with masked prompts for
decoders."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch

from millrace.common.errors import MillraceError

IGNORE = -100  # what torch's cross entropy leaves out
BLANK = 0
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\u0060\u00b4\uff07", "'"))


def normalise(text: str, case_fold: bool = True, punctuation: bool = False) -> str:
    """NFKC, one kind of apostrophe, single spaces; folded case; without `punctuation`, only letters, marks,
    digits.

    An apostrophe between letters is part of its word and stays.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    if case_fold:
        text = unicodedata.normalize("NFKC", text.casefold())
    if not punctuation:
        kept = [
            character if unicodedata.category(character)[0] in "LMN" or _inside(text, place) else " "
            for place, character in enumerate(text)
        ]
        text = "".join(kept)
    return " ".join("".join(c for c in text if c.isspace() or unicodedata.category(c)[0] != "C").split())


def _inside(text: str, place: int) -> bool:
    around = text[place - 1 : place] + text[place + 1 : place + 2]
    return text[place] == "'" and len(around) == 2 and around.isalnum()


@dataclass(frozen=True)
class Characters:
    """A vocabulary of characters; index 0 is CTC's blank, character n has index n + 1."""

    characters: str
    case_fold: bool = True
    punctuation: bool = False

    @classmethod
    def from_transcripts(
        cls, transcripts: Iterable[str], case_fold: bool = True, punctuation: bool = False, limit: int = 5000
    ) -> Characters:
        """The `limit` most frequent characters, ordered by code point: the same for any order of the
        transcripts.

        Raises MillraceError where there is none.
        """
        counts: Counter[str] = Counter()
        for transcript in transcripts:
            counts.update(normalise(transcript, case_fold, punctuation))
        ranked = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
        if not ranked:
            raise MillraceError(
                "the transcripts hold no character to learn",
                remedy="Check the transcript column of the manifests (asr.manifest_dir)",
            )
        return cls("".join(sorted(ranked)), case_fold, punctuation)

    def __len__(self) -> int:
        return len(self.characters) + 1

    def normalise(self, text: str) -> str:
        """The text as this vocabulary writes it; characters that it lacks are left out."""
        known = _places(self.characters)
        kept = "".join(c for c in normalise(text, self.case_fold, self.punctuation) if c in known)
        return " ".join(kept.split())

    def encode(self, text: str) -> list[int]:
        """Indices of the characters of `normalise(text)`."""
        places = _places(self.characters)
        return [places[character] for character in self.normalise(text)]

    def decode(self, indices: Iterable[int]) -> str:
        """The text of indices; blanks are left out."""
        return " ".join("".join(self.characters[index - 1] for index in indices if index != BLANK).split())

    def collapse(self, path: Iterable[int]) -> str:
        """The text of a CTC path: repeats are one character, blanks part them."""
        kept, last = [], BLANK
        for index in path:
            if index != last:
                kept.append(index)
            last = index
        return self.decode(kept)


@lru_cache(maxsize=8)
def _places(characters: str) -> dict[str, int]:
    return {character: number + 1 for number, character in enumerate(characters)}


def drop_unfit(
    labels: list[list[int]], steps: Sequence[int], sample_ids: Sequence[int]
) -> list[tuple[int, str]]:
    """Empty the labels that CTC cannot learn in so many steps; return (sample id, reason) of each."""
    dropped = []
    for row, label in enumerate(labels):
        reason = "no_text" if not label else "text_too_long" if ctc_frames(label) > steps[row] else ""
        if reason:
            dropped.append((int(sample_ids[row]), reason))
            labels[row] = []
    return dropped


def ctc_frames(labels: Sequence[int]) -> int:
    """The fewest frames in which CTC can emit `labels`: one each, and a blank between equal neighbours."""
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def padded_ids(sequences: Sequence[Sequence[int]], fill: int, side: str = "right") -> torch.Tensor:
    """int64 (B, L): each sequence flush left (`side` right: padding on the right) or flush right, the rest
    `fill`."""
    if side not in ("left", "right"):
        raise MillraceError(f"padding_side is {side!r}", remedy="Set it to left or right")
    width = max(map(len, sequences), default=0)
    out = torch.full((len(sequences), width), fill, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        if len(sequence):
            place = slice(width - len(sequence), width) if side == "left" else slice(len(sequence))
            out[row, place] = torch.tensor(sequence, dtype=torch.int64)
    return out


def labelled(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], pad_id: int, side: str
) -> dict[str, torch.Tensor]:
    """input_ids, attention_mask and labels, int64 (B, L), of prompt + target with padding on `side`.

    Labels are the targets where the targets lie, else IGNORE. What is padding is known from the lengths,
    never from the ids: a model whose pad token is its end token still learns to end.
    """
    pairs = list(zip(prompts, targets, strict=True))
    return {
        "input_ids": padded_ids([[*prompt, *target] for prompt, target in pairs], pad_id, side),
        "attention_mask": padded_ids(
            [[1] * (len(prompt) + len(target)) for prompt, target in pairs], 0, side
        ),
        "labels": padded_ids(
            [[IGNORE] * len(prompt) + list(target) for prompt, target in pairs], IGNORE, side
        ),
    }


def label_places(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where in the flattened (B * L) hidden states the labels of a causal decoder are predicted, and the
    labels.

    The label at column t is predicted at column t - 1; so the head runs on those positions alone.
    """
    rows, columns = torch.nonzero(labels[:, 1:] != IGNORE, as_tuple=True)
    return rows * labels.shape[1] + columns, labels[rows, columns + 1]
