"""Pairs of recordings of which one repeats the other in another split: for ledgers and people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.common.errors import counted

if TYPE_CHECKING:  # which brings pandas along
    from millrace.speech.country.copies import Copy


def pairs(copies: Iterable[Copy]) -> list[dict]:
    """The pairs of recordings behind copies, with their offset (the one of most segments) and their
    number of `segments`: JSON-ready, for ledgers."""
    groups: dict[tuple[str, str, str, str], list[Copy]] = {}
    for copy in copies:
        pair = (copy.recording, copy.split, copy.of_recording, copy.of_split)
        groups.setdefault(pair, []).append(copy)
    result = []
    for pair, group in sorted(groups.items()):
        offsets = Counter(round(copy.offset, 2) for copy in group)
        offset = offsets.most_common(1)[0][0]
        names = dict(zip(("recording", "split", "of_recording", "of_split"), pair, strict=True))
        result.append({**names, "offset": offset, "segments": len(group)})
    return result


def line(pair: dict) -> str:
    """A pair as people read it."""
    copy = f"{pair['recording']} ({pair['split']})"
    original = f"{pair['of_recording']} ({pair['of_split']})"
    repeats = f"{copy} repeats {counted(pair['segments'], 'segment')} of {original}"
    shift = pair["offset"]
    if abs(shift) > 0.01:  # nearer the offset is not known
        repeats += f", {abs(shift):g} s {'later' if shift > 0 else 'earlier'} there"
    return f"{repeats}: left out of {pair['split']}"
