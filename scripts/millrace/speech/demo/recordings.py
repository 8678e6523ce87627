"""Recordings assembled of prompts, with exact alignments: how long they and their utterances are,
and which errors a recogniser made in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.common.errors import MillraceError
from millrace.speech.demo.prompts import SAMPLING_RATE, Prompt

MIN_MINUTES = 3.0
MAX_MINUTES = 15.0
BASE_MINUTES = 3.1  # of the short recordings
MEAN_MINUTES = 3.4  # of all together


# Prompts, and the samples of silence behind each; the last one separates from the next utterance.
_Utterance = tuple[list[Prompt], list[int]]


@dataclass(frozen=True)
class Segment:
    """An utterance in a recording: samples `start` to `end` (exclusive) at 16 kHz."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Recording:
    """`samples` are int16 mono at 16 kHz; between the segments they are zero."""

    samples: np.ndarray
    segments: tuple[Segment, ...]


def assemble(prompts: Sequence[Prompt], seed: int, country: str) -> list[Recording]:
    """Put each prompt into one utterance of one recording.

    Utterances last about 3 to 12 s; a few are a single short prompt, a few longer than 20 s, so
    that limits on the duration have something to reject. Recordings last 3 to 15 minutes if there
    is enough speech.
    """
    if not prompts:
        raise MillraceError("there is no prompt to make recordings of", country)
    rng = random.Random(f"{seed}:{country}:recordings")
    utterances = list(_utterances(prompts, rng))
    lengths = []
    for taken, pauses in utterances:
        spoken = sum(len(prompt.samples) for prompt in taken)
        lengths.append(spoken + sum(pauses))
    minutes = np.cumsum([0, *lengths]) / SAMPLING_RATE / 60
    most = max(1, int(minutes[-1] / MEAN_MINUTES))
    for count in range(most, 0, -1):
        cuts = _cuts(minutes, count, rng)
        durations = np.diff(minutes[cuts])
        # A recording also begins with a second of silence: hence the margin.
        if durations.min() >= MIN_MINUTES and durations.max() <= MAX_MINUTES - 0.05:
            break
    else:
        cuts = [0, len(utterances)]
    return [_recording(utterances[first:last], rng) for first, last in itertools.pairwise(cuts)]


def _utterances(prompts: Sequence[Prompt], rng: random.Random) -> Iterator[_Utterance]:
    waiting = list(prompts)
    rng.shuffle(waiting)
    while waiting:
        kind = rng.random()
        if kind < 0.05:
            least = 0.0
            limit = 0.0
        elif kind < 0.07:
            least = rng.uniform(20.5, 24.0)
            limit = 30.0
        else:
            least = rng.uniform(3.0, 10.0)
            limit = 12.0
        taken = [waiting.pop()]
        pauses = []
        seconds = len(taken[0].samples) / SAMPLING_RATE
        while waiting and seconds < least:
            pause = rng.randint(int(0.15 * SAMPLING_RATE), int(0.4 * SAMPLING_RATE))
            longer = seconds + (pause + len(waiting[-1].samples)) / SAMPLING_RATE
            if longer > limit and seconds >= 3.0:
                break
            taken.append(waiting.pop())
            pauses.append(pause)
            seconds = longer
        pauses.append(rng.randint(SAMPLING_RATE // 2, SAMPLING_RATE * 3 // 2))
        yield taken, pauses


def _cuts(minutes: np.ndarray, count: int, rng: random.Random) -> list[int]:
    """Where to cut the utterances into `count` recordings: one clearly longer than the others."""
    weights = [rng.random() for _ in range(count)]
    weights[rng.randrange(count)] += 0.6 * count
    spare = max(0.0, minutes[-1] - count * BASE_MINUTES)
    lengths = []
    for weight in weights:
        length = BASE_MINUTES + spare * weight / sum(weights)
        lengths.append(min(MAX_MINUTES - 1, length))
    ends = np.cumsum(lengths)[:-1]
    inner = [int(np.abs(minutes - end).argmin()) for end in ends]
    return [0, *inner, len(minutes) - 1]


def _recording(utterances: Sequence[_Utterance], rng: random.Random) -> Recording:
    position = rng.randint(SAMPLING_RATE // 2, SAMPLING_RATE * 3 // 2)
    pieces = [np.zeros(position, np.int16)]
    segments = []
    for prompts, pauses in utterances:
        start = position
        for prompt, pause in zip(prompts, pauses, strict=True):
            pieces += [prompt.samples, np.zeros(pause, np.int16)]
            position += len(prompt.samples) + pause
        text = " ".join(prompt.text for prompt in prompts)
        segments.append(Segment(start, position - pauses[-1], text))
    return Recording(np.concatenate(pieces), tuple(segments))


def misheard(text: str, rng: random.Random) -> str:
    """`text` with errors of a recogniser: CER mostly up to 0.15, now and then above 0.3."""
    alphabet = sorted({character for character in text.lower() if character.isalpha()}) or ["a"]
    words = text.split()
    budget = round(_error_rate(rng) * len(text))
    while budget > 0 and words:
        place = rng.randrange(len(words))
        word = words[place]
        if rng.random() < 0.15 and len(words) > 1 and len(word) < budget:
            budget -= len(word) + 1  # a word not heard
            del words[place]
            continue
        budget -= 1
        at = rng.randrange(len(word))
        character = rng.choice(alphabet)
        change = rng.choice(("substitute", "delete", "insert"))
        if change == "insert":
            words[place] = word[:at] + character + word[at:]
        elif change == "substitute":
            words[place] = word[:at] + character + word[at + 1 :]
        elif len(word) > 1:
            words[place] = word[:at] + word[at + 1 :]
    return " ".join(words)


def _error_rate(rng: random.Random) -> float:
    kind = rng.random()
    if kind < 0.2:
        return 0.0
    if kind > 0.96:
        return rng.uniform(0.35, 0.6)
    return rng.uniform(0.01, 0.13)
