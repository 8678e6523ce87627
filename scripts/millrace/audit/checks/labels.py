"""labels, judged: whether a prompt, padding or placeholders are trained on, and the ends of texts
are not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from millrace.audit.checks.findings import (
    Finding,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.common.errors import counted

# What can be wrong with the places that are trained on: cause and fix.
PROBLEMS = {
    "padding": ("padding is trained on", "labels[attention_mask == 0] = -100"),
    "media": (
        "placeholders of audio or images are trained on",
        "labels[input_ids == audio_token_id] = -100",
    ),
    "end": (
        "the token that ends a text is masked",
        "mask by attention_mask == 0, not by pad_token_id",
    ),
    "prompt": ("the prompt is trained on", "labels[row, start:start + prompt_length] = -100"),
    "alone": (
        "a sample is trained on other tokens in a batch than alone",
        "count the prompt from the first token, not from padding: "
        "start = (attention_mask[row] == 0).sum()",
    ),
}
IMAGES = ("image", "video")
MEDIA = ("audio", *IMAGES)
SHORTEST = 4  # tokens of an opening that may be a prompt

Wrong = dict[str, list[list[Any]]]  # by problem: row and place, or row and what is told of it


class Row(NamedTuple):
    """A row of a batch, as the loop receives it."""

    number: int
    ids: list[int]
    places: list[int]  # of its tokens, without padding
    trained: set[int] | None  # places that are trained on; None if labels are not tokens
    alone: list[int] | None  # tokens that are trained on if its sample is alone; None if unknown

    @classmethod
    def parse(cls, number: int, seen: Seen, pad: int | None) -> Row:
        ids = seen["ids"]
        alone = seen.get("alone")
        mask = seen["mask"] or [token != pad for token in ids]
        tokens = None
        if alone:
            tokens = _tokens(alone["ids"], _trained(alone["ids"], alone["labels"]))
        return cls(
            number=number,
            ids=ids,
            places=[at for at, is_token in enumerate(mask) if is_token],
            trained=_trained(ids, seen["labels"]),
            alone=tokens,
        )

    @property
    def tokens(self) -> list[int]:
        return [self.ids[at] for at in self.places]

    @property
    def trained_tokens(self) -> list[int]:
        return _tokens(self.ids, self.trained) or []

    def is_masked_inside(self, images: set[int]) -> bool:
        """Whether places between the first and the last that are trained on are masked, other than
        by `images`, the tokens at their edges, and the one that begins a text: where texts are
        packed, none is predicted."""
        trained = self.trained
        if not trained:
            return False
        inside = [at for at in self.places if min(trained) < at < max(trained)]
        masked = [at for at in inside if at not in trained]
        texts = {self.ids[at] for at in masked if images.isdisjoint(self.ids[at - 1 : at + 2])}
        return bool(texts - {self.tokens[0]})

    def marked(self, places: set[int]) -> list[list[Any]]:
        return [[self.number, at] for at in sorted(places)]


def _trained(ids: list[int], labels: list[int]) -> set[int] | None:
    """Return the places of the tokens that are trained on; None if labels are not tokens."""
    trained = [(at, label) for at, label in enumerate(labels) if label >= 0]
    for shift in (0, 1):  # a label is its own token or the next one
        if all(ids[at + shift : at + shift + 1] == [label] for at, label in trained):
            return {at + shift for at, _ in trained}
    return None


def _tokens(ids: list[int], places: set[int] | None) -> list[int] | None:
    if places is None:
        return None
    return [ids[at] for at in sorted(places)]


@check("labels", "labels")
def label_masks(seen: Seen) -> Iterator[Finding]:
    """Answers and their ends are trained on; padding, placeholders and prompts are not."""
    special = seen["special"]
    pad = special.get("pad")
    batched = seen["rows"]
    if not batched:
        yield inapplicable("no batch has rows of input_ids with labels")
        return
    if pad == special.get("eos") and not batched[0]["mask"]:
        needs = "attention_mask in the batch"
        yield undecided("nothing tells padding from the ends of texts", needs)
        return

    rows = [Row.parse(number, row, pad) for number, row in enumerate(batched)]
    if any(row.trained is None for row in rows):
        cause = "labels are not the tokens of input_ids"
        needs = "labels that repeat input_ids, with -100 in the places that are not trained on"
        yield undecided(cause, needs)
    elif not any(row.trained for row in rows):
        fix = "mask the prompt only; look whether max_length cuts the answers off"
        yield failed(f"everything in {len(rows)} rows is masked", fix=fix)
    else:
        yield from _judged(rows, special)


def _judged(rows: list[Row], special: dict[str, int]) -> Iterator[Finding]:
    wrong = _wrong_places(rows, special)
    # An opening that all rows share is a prompt if masked places come between; else it may be a
    # text. Models of images and text are often trained on all but the images.
    opens = wrong["prompt"]
    images = {special[name] for name in IMAGES if name in special}
    if not any(row.is_masked_inside(images) for row in rows):
        wrong["prompt"] = []

    total = sum(len(row.trained_tokens) for row in rows)
    summary = f"{counted(total, 'token')} trained on in {counted(len(rows), 'row')}"
    shown = {"first row": rows[0].trained_tokens[:24]}
    for kind, (problem, fix) in PROBLEMS.items():
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
    yield passed(summary)


def _wrong_places(rows: list[Row], special: dict[str, int]) -> Wrong:
    opening = _shared_opening(rows)
    placeholders = {special[name] for name in MEDIA if name in special}
    wrong: Wrong = {kind: [] for kind in PROBLEMS}
    for row in rows:
        trained = row.trained or set()
        media = {at for at in row.places if row.ids[at] in placeholders}
        padding = trained - set(row.places)
        # Where one token ends texts and pads them, a mask of all of them leaves out the end too.
        behind = row.places[-1] + 1 if row.places else 0
        if row.ids[behind : behind + 1] == [special.get("eos")]:
            padding.discard(behind)
        wrong["padding"] += row.marked(padding)
        wrong["media"] += row.marked(trained & media)
        wrong["prompt"] += row.marked(trained & set(row.places[1:opening]))
        if row.alone is not None and row.alone != row.trained_tokens:
            here = f"{len(row.alone)} tokens alone, {len(trained)} here"
            wrong["alone"].append([row.number, here])
    wrong["end"] = _masked_ends(rows, special.get("eos"))

    # One mistake shows in several ways: it is told once.
    if wrong["padding"]:
        wrong["alone"] = []
    if wrong["alone"]:
        wrong["media"] = []
    return wrong


def _shared_opening(rows: list[Row]) -> int:
    """How many tokens all texts begin with, which may be a prompt."""
    columns = zip(*(row.tokens for row in rows), strict=False)
    shared = takewhile(lambda column: len(set(column)) == 1, columns)
    opening = len(list(shared))
    differ = len({tuple(row.tokens) for row in rows}) > 1
    return opening if differ and opening >= SHORTEST else 0


def _masked_ends(rows: list[Row], end: int | None) -> list[list[Any]]:
    """Places where a text ends that are masked, if no end is trained on."""
    masked = []
    for row in rows:
        if end in row.trained_tokens:
            return []
        last = max(row.trained or {len(row.ids)})
        ends = {at for at in row.places if at > last and row.ids[at] == end}
        masked += row.marked(ends)
    return masked
