"""Short spoken prompts with their texts, of which the demo recordings are assembled: which are
speech with a sure text, and which say the same."""

from __future__ import annotations

import gzip
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from millrace.common.errors import MillraceError

SAMPLING_RATE = 16_000
LANGUAGES = {
    "en": "united_kingdom",
    "es": "spain",
    "fr": "france",
    "it": "italy",
    "ru": "russia",
}
MIN_SAMPLES = int(0.15 * SAMPLING_RATE)
MIN_PEAK = 300  # of 32768; below it a file holds silence


@dataclass(frozen=True)
class Prompt:
    """A spoken prompt: `samples` are int16 mono at 16 kHz."""

    text: str
    samples: np.ndarray


def packages(language: str) -> tuple[str, str]:
    """The Debian packages with the texts and with the audio (G.722, 16 kHz) of a language's
    prompts."""
    return f"asterisk-core-sounds-{language}", f"asterisk-core-sounds-{language}-g722"


def recorded(texts: Path, audio: Path) -> Iterator[Prompt]:
    """Yield the prompts of unpacked packages that are speech with a sure text, in the order of the
    list."""
    lists = sorted(texts.glob("usr/share/doc/*/core-sounds-*.txt.gz"))
    sounds = audio / "usr/share/asterisk/sounds"
    # <language and voice>/<name>.g722, where the name may hold a folder: digits/1
    by_name = {
        "/".join(path.relative_to(sounds).parts[1:]).removesuffix(".g722"): path
        for path in sorted(sounds.glob("*/**/*.g722"))
    }
    if not lists or not by_name:
        problem = "no list of prompts, or no audio, where the packages have been unpacked"
        remedy = "Remove the folder and run again"
        raise MillraceError(problem, str(audio), remedy)
    folded = {name.casefold(): path for name, path in by_name.items()}
    for name, raw in read_texts(lists[0]).items():
        path = by_name.get(name) or folded.get(name.casefold())
        text = clean(name, raw)
        if path is None or not text:
            continue
        samples = decode(path)
        loudness = np.abs(samples.astype(np.int32))
        if len(samples) >= MIN_SAMPLES and loudness.max() >= MIN_PEAK:
            yield Prompt(text, samples)


def read_texts(path: Path) -> dict[str, str]:
    """Read a list of `name: text` lines (gzip, with or without a BOM, `;` begins a comment).

    A name with two different texts is dropped: nobody knows which of them is spoken.
    """
    texts: dict[str, str] = {}
    ambiguous: set[str] = set()
    content = gzip.decompress(path.read_bytes())
    for line in content.decode("utf-8-sig", "replace").splitlines():
        name, colon, text = line.partition(":")
        if not line.strip() or line.lstrip().startswith(";") or not colon:
            continue
        if texts.setdefault(name.strip(), text.strip()) != text.strip():
            ambiguous.add(name.strip())
    return {name: text for name, text in texts.items() if name not in ambiguous}


def clean(name: str, text: str) -> str:
    """The text as spoken; "" for a sound, and if it is not sure what is spoken.

    Brackets hold the description of a sound, or an aside that may or may not be spoken; only the
    symbol behind the name of a letter ("dash [-]") can be cut off safely.
    """
    if name.startswith("letters/"):
        text = re.sub(r"\[.?\]", " ", text)
    text = " ".join(text.split())
    for opening, closing in ('""', "''", "“”", "«»"):
        inner = text[1:-1]
        is_quoted = text.startswith(opening) and text.endswith(closing)
        if inner and is_quoted and opening not in inner:
            text = inner.strip()
    if name.startswith("silence/") or re.search(r"[\[\]<>(){}]", text):
        return ""
    if any(character.isalnum() for character in text):
        return text
    return ""


def decode(path: Path) -> np.ndarray:
    """Decode a raw G.722 file to int16 mono samples at 16 kHz; an unreadable one raises
    MillraceError."""
    try:
        with av.open(str(path), format="g722") as container:
            frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    except av.FFmpegError as error:
        remedy = "Remove the package's folder and run again"
        raise MillraceError(f"not G.722 audio ({error})", str(path), remedy) from None
    if frames:
        return np.concatenate(frames)
    return np.zeros(0, np.int16)


def normal(text: str) -> str:
    """The text without case, accents and punctuation: what two prompts share when they say the
    same."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    return " ".join(re.findall(r"\w+", plain)) or text


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Keep the first of the prompts that say the same or sound the same.

    A prompt under two names could else fall into two recordings, one of them in the test split.
    """
    seen: set[str] = set()
    unique = []
    for prompt in prompts:
        marks = {normal(prompt.text), hashlib.sha256(prompt.samples.tobytes()).hexdigest()}
        if not seen & marks:
            unique.append(prompt)
        seen |= marks
    return unique
