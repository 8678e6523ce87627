"""The largest batch of a bucket that fits, by few trials in fresh processes: guesses, bisection, a
soak."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from millrace.common.cli import log
from millrace.common.errors import MillraceError

_GUESSES = 5  # trials after which the search bisects
_MORE = 2**31  # rows that no bucket has
_SMALLER = "Raise --max-memory-gb, use --gradient-checkpointing 1 or a smaller model, "
_SMALLER += "or lower --min-bs or the last edge"


class Device(TypedDict):
    """Answer to the kind `device`: `kind` is cpu or cuda, `memory_gb` what it has, in 2**30 bytes.

    `precision` is what `auto` stands for on it.
    """

    kind: str
    name: str
    memory_gb: float
    precision: str


class Answer(TypedDict, total=False):
    """Answer to `worst` and `soak`; CUDA adds figures of its allocator. With `oom`: a message, no
    peaks."""

    oom: bool
    retried: bool  # the allocator had to give cached memory back
    steps: int
    # The batch behind the peak: its step, its rows, padded to `seconds`, with `characters` a row on
    # average.
    heaviest: dict[str, float]
    message: str
    peak_gb: float  # since the process began
    step_peak_gb: float  # of the steps
    fixed_gb: float  # before the first step


class Found(TypedDict):
    """What the search says of a bucket."""

    batch_size: int
    limited_by: str  # memory, soak, rows or max_bs
    peak_memory_gb: float
    search: dict[str, Any]  # the Search
    trials: list[dict[str, Any]]  # Answers, with `rows` and `fits`
    soak: Answer | None


@dataclass(frozen=True)
class Search:
    """Batches of `min_bs` to `max_bs` of a bucket's `rows` may peak at `limit_gb`; `start_bs` comes
    first."""

    limit_gb: float
    rows: int
    start_bs: int = 32
    min_bs: int = 1
    max_bs: int = 4096

    @property
    def max_rows(self) -> int:
        return max(min(self.rows, self.max_bs), self.min_bs)

    def fits(self, answer: Answer) -> bool:
        """Whether a trial stayed within the limit, and the allocator never had to try again."""
        return (
            not answer["oom"] and not answer.get("retried") and answer["peak_gb"] <= self.limit_gb
        )

    def why_not(self, answer: Answer) -> str:
        """One line on what kept a trial from fitting."""
        heaviest = answer.get("heaviest") or {}
        at = f" at step {heaviest['step']}" if "step" in heaviest else ""
        if "seconds" in heaviest:
            at += f" ({heaviest['rows']} rows padded to {heaviest['seconds']:.2f} s)"
        if answer["oom"]:
            return f"out of memory{at}: {answer.get('message', '')}".rstrip(": ")
        if answer["peak_gb"] > self.limit_gb:
            return (
                f"the peak of {answer['peak_gb']:.3f} GB{at} is above the limit of"
                f" {self.limit_gb:.3f} GB"
            )
        return f"the allocator had to give memory back and try again{at}"


def calibrate(
    search: Search, worst: Callable[[int], Answer], soak: Callable[[int], Answer] | None
) -> Found:
    """Find the batch size; `worst(n)` and `soak(n)` run trials of n rows.

    Raises MillraceError if not even `min_bs` fits.
    """
    size, trials = largest(search, worst)
    by = "rows" if search.max_rows >= search.rows else "max_bs"
    limited_by = "memory" if size < search.max_rows else by
    soaked: Answer | None = None
    while soak is not None:
        soaked = soak(size)
        if search.fits(soaked):
            log.info(
                "soak of %d steps with %d rows: peak %.3f GB",
                soaked["steps"],
                size,
                soaked["peak_gb"],
            )
            break
        why = search.why_not(soaked)
        smaller = size * 9 // 10
        log.warning("soak with %d rows: %s; trying %d rows", size, why, smaller)
        if smaller < search.min_bs:
            raise MillraceError(f"a batch of {size} does not last: {why}", "soak", _SMALLER)
        size = smaller
        limited_by = "soak"
    peaks = [trial.get("peak_gb", 0.0) for trial in trials if trial["rows"] == size]
    peak = max([*peaks, soaked["peak_gb"] if soaked else 0.0])
    return {
        "batch_size": size,
        "limited_by": limited_by,
        "peak_memory_gb": peak,
        "search": asdict(search),
        "trials": trials,
        "soak": soaked,
    }


def largest(search: Search, worst: Callable[[int], Answer]) -> tuple[int, list[dict[str, Any]]]:
    """The largest batch that fits, to one part in 32, and all trials: it has been tried itself.

    Raises MillraceError if `min_bs` does not fit.
    """
    fits = 0
    fails = search.max_rows + 1
    size = min(max(search.start_bs, search.min_bs), search.max_rows)
    trials: list[dict[str, Any]] = []
    while True:
        answer = worst(size)
        why = "" if search.fits(answer) else search.why_not(answer)
        trials.append({"rows": size, "fits": not why, **answer})
        result = why or f"peak {answer['peak_gb']:.3f} GB, fits"
        log.info("trial %d: %d rows: %s", len(trials), size, result)
        if why:
            fails = size
        else:
            fits = size
        if fails <= search.min_bs:
            problem = f"a batch of {search.min_bs} does not fit: {why}"
            raise MillraceError(problem, "calibration", _SMALLER)
        # While nothing has failed, the largest batch is still to be tried, however near it is.
        if fits == search.max_rows or (fails <= search.max_rows and fails <= _next_known(fits)):
            return fits, trials
        size = _next_size(search, fits, fails, trials)


def _next_size(
    search: Search,
    fits: int,
    fails: int,
    trials: list[dict[str, Any]],
) -> int:
    """In steps until a batch fails, then where a line through the peaks meets the limit, then by
    bisection."""
    if not fits:
        return max(fails // 4, search.min_bs)
    guess = _guess(search, trials)
    if fails > search.max_rows:
        # Nothing tells where memory begins to grow faster.
        return min(max(guess, 3 * fits), 8 * fits, search.max_rows)
    # A line may say again and again what was refuted: a batch that is out of memory has no peak.
    if guess >= fails or len(trials) > _GUESSES:
        return math.isqrt(fits * fails) + 1
    # If it says that nothing larger fits: make sure.
    return min(max(guess, _next_known(fits)), fails - 1)


def _guess(search: Search, trials: list[dict[str, Any]]) -> int:
    """Where a line through the two peaks nearest to the limit meets it; more than any batch if it
    does not rise."""
    peaks = {trial["rows"]: trial["step_peak_gb"] for trial in trials if trial.get("step_peak_gb")}
    if len(peaks) == 1:
        # Too low, as the optimiser's state is missing: the guess is low as well.
        peaks[0] = next(trial["fixed_gb"] for trial in trials if trial.get("step_peak_gb"))
    near = sorted(peaks, key=lambda size: abs(peaks[size] - search.limit_gb))[:2]
    if len(near) < 2:
        return _MORE
    nearest, second = near
    rise = peaks[nearest] - peaks[second]
    run = nearest - second
    if rise * run <= 0:
        return _MORE
    slope = rise / run
    return math.floor(nearest + (search.limit_gb - peaks[nearest]) / slope)


def _next_known(fits: int) -> int:
    """If this batch fails, `fits` is the largest to one part in 32."""
    return fits + 1 + fits // 32
