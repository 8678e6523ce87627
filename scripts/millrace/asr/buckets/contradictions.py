"""Rows of one member that contradict each other: which of them counts, and what is said of the
others."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from typing import NamedTuple

from millrace.asr.manifests import columns as mc

# Seconds by which a row may differ from the member's header.
_TOLERANCE = 0.05


class Claim(NamedTuple):
    """What one row says of a member; `place` is its file and row."""

    place: str
    duration_s: float
    language: str | None

    def __str__(self) -> str:
        return f"{self.place} says {self.duration_s:g} s, {self.language or 'no language'}"


class Verdict(NamedTuple):
    """Of each row its problem (a code of `columns`, 0: it is used), and a text that names the other
    rows; and a line for the log."""

    problems: list[int]
    details: list[str]
    line: str


def judge(claims: Sequence[Claim], seconds: float | None) -> Verdict:
    """Decide by the duration in the member's header, if that is known: the rows that have it win if
    they agree; else all are rejected."""
    fitting = [
        at
        for at, claim in enumerate(claims)
        if seconds is not None and abs(claim.duration_s - seconds) <= _TOLERANCE
    ]
    is_decided = bool(fitting) and agree_in_language([claims[at].language for at in fitting])
    problems = [mc.CODE["contradicting_row"]] * len(claims)
    if is_decided:
        for at in fitting:
            problems[at] = mc.CODE["duplicate_row"]
        used = next((at for at in fitting if claims[at].language), fitting[0])
        problems[used] = 0

    texts = [str(claim) for claim in claims]
    header = "" if seconds is None else f" (its header: {seconds:.3f} s)"
    details = [", ".join(other for other in texts if other != own) + header for own in texts]
    verdict = "the one that fits is used" if is_decided else "none is used"
    return Verdict(problems, details, f"{header}: {', '.join(texts)}; {verdict}")


def agree_in_language(languages: Sequence[str | None]) -> bool:
    """Whether these name one language at most: none contradicts none, and case is no other
    language."""
    return len({language.casefold() for language in languages if language}) < 2


def header_seconds(tar: str, offset: int) -> float | None:
    """The duration of a FLAC or WAV member at `offset` by its header; None where that does not
    say."""
    try:
        with open(tar, "rb") as file:
            file.seek(offset)
            head = file.read(4096)
        if head.startswith(b"fLaC"):
            # 20 bits of rate, 8 of format, 36 of samples
            facts = int.from_bytes(head[18:26], "big")
            return (facts & ((1 << 36) - 1)) / (facts >> 44) or None
        with wave.open(io.BytesIO(head)) as sound:
            return sound.getnframes() / sound.getframerate()
    except (OSError, ValueError, EOFError, ZeroDivisionError, wave.Error):
        return None
