"""What the labels of token rows leave to train on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from millrace.audit.checks.findings import (
    Finding,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)

ALONE = (
    "count the prompt from the first token, not from padding: "
    "start = (attention_mask[row] == 0).sum()"
)
# What can be wrong with the places that are trained on: cause and fix.
LABELS = {
    "padding": ("padding is trained on", "labels[attention_mask == 0] = -100"),
    "audio": (
        "placeholders of audio or images are trained on",
        "labels[input_ids == audio_token_id] = -100",
    ),
    "eos": (
        "the token that ends a text is masked",
        "mask by attention_mask == 0, not by pad_token_id",
    ),
    "prompt": ("the prompt is trained on", "labels[row, start:start + prompt_length] = -100"),
    "alone": ("a sample is trained on other tokens in a batch than alone", ALONE),
}
SHORTEST = 4  # tokens of an opening that may be a prompt


class Row(NamedTuple):
    """A row of a batch, as the loop receives it."""

    ids: list[int]
    labels: list[int]
    mask: list[int] | None
    alone: Row | None  # what the collate function makes of its sample alone; None if unknown

    @classmethod
    def parse(cls, seen: Seen) -> Row:
        alone = seen.get("alone")
        return cls(seen["ids"], seen["labels"], seen["mask"], cls.parse(alone) if alone else None)

    def trained(self) -> set[int] | None:
        """Return the places of the tokens that are trained on; None if labels are not tokens."""
        labels = [(at, label) for at, label in enumerate(self.labels) if label >= 0]
        for shift in (0, 1):  # a label is its own token or the next one
            if all(self.ids[at + shift : at + shift + 1] == [label] for at, label in labels):
                return {at + shift for at, _ in labels}
        return None

    def trained_tokens(self) -> list[int] | None:
        places = self.trained()
        return None if places is None else [self.ids[at] for at in sorted(places)]


class Tokens(NamedTuple):
    """Special tokens; None if nobody says them."""

    pad: int | None
    end: int | None
    media: set[int]  # placeholders of audio, images and video

    @classmethod
    def parse(cls, special: dict[str, int]) -> Tokens:
        media = {special[name] for name in ("audio", "image", "video") if name in special}
        return cls(special.get("pad"), special.get("eos"), media)


class Text(NamedTuple):
    """A row without its padding."""

    number: int
    row: Row
    places: list[int]  # of its tokens
    trained: set[int]  # places

    @property
    def tokens(self) -> list[int]:
        return [self.row.ids[at] for at in self.places]

    def skips_some(self) -> bool:
        """Whether places between the first and the last that are trained on are masked."""
        if not self.trained:
            return False
        inside = [at for at in self.places if min(self.trained) < at < max(self.trained)]
        return any(at not in self.trained for at in inside)

    def marked(self, places: set[int]) -> list[list[int]]:
        return [[self.number, at] for at in sorted(places)]


class Kinds(NamedTuple):
    """Places of each kind in all rows, and those of them that are trained on."""

    counts: dict[str, int]
    trained: dict[str, list[list[int]]]


@check("labels", "labels")
def label_masks(seen: Seen) -> Iterator[Finding]:
    """Answers and their ends are trained on; padding, placeholders and prompts are not."""
    rows = [Row.parse(row) for batch in seen["batches"] for row in batch]
    if not rows:
        yield inapplicable("no batch has rows of input_ids with labels")
        return
    if any(row.trained() is None for row in rows):
        cause = "labels are not the tokens of input_ids"
        needs = "labels that repeat input_ids, with -100 in the places that are not trained on"
        yield undecided(cause, needs)
        return

    special = Tokens.parse(seen["special"])
    # What ends a text may look like padding.
    is_unsure = special.pad == special.end and not rows[0].mask
    texts = [_text(number, row, special, is_unsure) for number, row in enumerate(rows)]
    if not any(text.trained for text in texts):
        fix = "mask the prompt only; look whether max_length cuts the answers off"
        cause = f"everything in {len(rows)} rows is masked"
        yield failed(cause, fix=fix)
        return
    yield from _judged(texts, special, is_unsure)


def _judged(texts: list[Text], special: Tokens, is_unsure: bool) -> Iterator[Finding]:
    kinds = _kinds(texts, special, _shared_opening(texts))
    wrong = dict(kinds.trained)
    wrong["eos"] = _masked_ends(texts, special.end, is_unsure)
    # One mistake shows in several ways: it is told once.
    wrong["alone"] = [] if wrong["padding"] else _unlike_alone(texts)
    if wrong["alone"]:
        wrong["audio"] = []
    # An opening that all rows share is a prompt if masked places come between; else it may be a
    # text.
    opens = wrong["prompt"]
    if not any(text.skips_some() for text in texts):
        wrong["prompt"] = []

    summary = _summary(texts, kinds)
    tokens = texts[0].row.trained_tokens()
    assert tokens is not None  # rows without are not judged
    shown = {"first row": tokens[:24]}
    for kind, (problem, fix) in LABELS.items():
        if wrong[kind]:
            number, place = wrong[kind][0]
            cause = f"{problem}: row {number}, {place}; {summary}"
            yield failed(cause, {"places": wrong[kind][:8], **shown}, fix)
    if any(wrong.values()):
        return
    if opens:
        needs = "labels with -100 in the opening that all rows share, if that is a prompt"
        yield undecided(summary, needs, shown)
        return
    yield passed(summary, shown)


def _summary(texts: list[Text], kinds: Kinds) -> str:
    total = sum(len(text.trained) for text in texts)
    parts = [
        f"{kind} {len(kinds.trained[kind])} of {kinds.counts[kind]}"
        for kind in ("prompt", "audio", "padding")
    ]
    return f"{len(texts)} rows train on {total} tokens: {', '.join(parts)}"


def _text(number: int, row: Row, special: Tokens, is_unsure: bool) -> Text:
    mask = row.mask or [is_unsure or token != special.pad for token in row.ids]
    places = [at for at, is_token in enumerate(mask) if is_token]
    return Text(number, row, places, row.trained() or set())


def _shared_opening(texts: list[Text]) -> int:
    """How many tokens all texts begin with, which may be a prompt."""
    columns = zip(*(text.tokens for text in texts), strict=False)
    opening = len(list(takewhile(lambda column: len(set(column)) == 1, columns)))
    differ = len({tuple(text.tokens) for text in texts}) > 1
    return opening if differ and opening >= SHORTEST else 0


def _kinds(texts: list[Text], special: Tokens, opening: int) -> Kinds:
    counts = dict.fromkeys(("padding", "prompt", "audio"), 0)
    trained: dict[str, list[list[int]]] = {kind: [] for kind in counts}
    for text in texts:
        ids = text.row.ids
        places = {
            "padding": set(range(len(ids))) - set(text.places),
            "prompt": set(text.places[1:opening]),
            "audio": {at for at in text.places if ids[at] in special.media},
        }
        for kind, some in places.items():
            counts[kind] += len(some)
            trained[kind] += text.marked(some & text.trained)
    return Kinds(counts, trained)


def _masked_ends(texts: list[Text], end: int | None, is_unsure: bool) -> list[list[int]]:
    """Places where a text ends that are masked, if no end is trained on."""
    if end is None:
        end = _last_token(texts)
    masked = []
    for text in texts:
        ids = text.row.ids
        if any(ids[at] == end for at in text.trained):
            return []
        last = max(text.trained, default=len(ids))
        masked += text.marked({at for at in text.places if at > last and ids[at] == end})
    rows = {number for number, _ in masked}
    return [] if is_unsure and len(rows) < len(texts) else masked


def _last_token(texts: list[Text]) -> int | None:
    """The token that all texts end with, if the one before it is not shared."""
    if not all(text.places for text in texts):
        return None
    last = {text.tokens[-1] for text in texts}
    previous = {tuple(text.tokens[-2:][:1]) for text in texts}
    return min(last) if len(last) == 1 < len(previous) else None


def _unlike_alone(texts: list[Text]) -> list[list]:
    """Rows that are trained on other tokens than their samples alone."""
    unlike: list[list] = []
    for text in texts:
        tokens = text.row.alone.trained_tokens() if text.row.alone else None
        if tokens is not None and tokens != text.row.trained_tokens():
            here = f"{len(tokens)} tokens alone, {len(text.trained)} here"
            unlike.append([text.number, here])
    return unlike
