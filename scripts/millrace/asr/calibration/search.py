"""The largest batch of a bucket that fits: doubling, then bisection, each trial in a fresh process, then a
soak."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millrace.common.cli import log
from millrace.common.errors import MillraceError

Trial = Callable[[int], Mapping[str, Any]]
_FINE = 32  # the search ends when it knows the batch to one part in so many
_BACK_OFF, _BACK_OFF_LEAST = 0.9, 0.95
_SMALLER = "Raise --max_memory_gb, use --gradient_checkpointing 1 or a smaller model, or lower --min_bs or the last edge"


@dataclass(frozen=True)
class Search:
    """`limit_gb`: memory that a batch may take at its peak. Batches of `min_bs` to `max_bs` rows are tried,
    the first of `start_bs`; `rows` are what the bucket has."""

    limit_gb: float
    rows: int
    start_bs: int = 32
    min_bs: int = 1
    max_bs: int = 4096

    @property
    def most(self) -> int:
        return max(min(self.rows, self.max_bs), self.min_bs)

    @property
    def limited_by(self) -> str:
        """What keeps the batch from growing where memory does not."""
        return "rows" if self.most >= self.rows else "max_bs"

    def fits(self, answer: Mapping[str, Any]) -> bool:
        """Whether a trial stayed within the limit, and the allocator never had to try again."""
        return not answer["oom"] and not answer.get("retried") and answer["peak_gb"] <= self.limit_gb

    def why_not(self, answer: Mapping[str, Any]) -> str:
        """One line on what kept a trial from fitting."""
        heaviest = answer.get("heaviest") or {}
        at = f" at step {heaviest['step']}" if "step" in heaviest else ""
        if "seconds" in heaviest:
            at += f" ({heaviest['rows']} rows padded to {heaviest['seconds']:.2f} s)"
        if answer["oom"]:
            return f"out of memory{at}: {answer.get('message', '')}".rstrip(": ")
        if answer["peak_gb"] > self.limit_gb:
            return f"the peak of {answer['peak_gb']:.3f} GB{at} is above the limit of {self.limit_gb:.3f} GB"
        return f"the allocator had to give memory back and try again{at}"


def calibrate(search: Search, worst: Trial, soak: Trial | None) -> dict[str, Any]:
    """Find the batch size. `worst(n)` and `soak(n)` run trials of n rows (see
    millrace.asr.calibration.trial).

    Returns batch_size, limited_by, peak_memory_gb, trials, soak and backed_off. Raises MillraceError where
    not even `min_bs` fits.
    """
    trials: list[dict[str, Any]] = []
    size = largest(search, _recording(search, worst, trials))
    limited_by = "memory" if size < search.most else search.limited_by
    backed_off: list[dict[str, Any]] = []
    soaked: Mapping[str, Any] | None = None
    while soak is not None:
        soaked = soak(size)
        if search.fits(soaked):
            log.info("soak of %d steps with %d rows: peak %.3f GB", soaked["steps"], size, soaked["peak_gb"])
            break
        why, smaller = search.why_not(soaked), backed_off_size(search, size, soaked)
        log.warning("soak with %d rows: %s; trying %d rows", size, why, smaller)
        backed_off.append({"batch_size": size, "why": why})
        if smaller < search.min_bs:
            raise MillraceError(f"a batch of {size} does not last: {why}", where="soak", remedy=_SMALLER)
        size, limited_by = smaller, "soak"
    peaks = {trial["rows"]: trial.get("peak_gb") for trial in trials}
    return {
        "batch_size": size,
        "limited_by": limited_by,
        "peak_memory_gb": max(peaks.get(size) or 0.0, soaked["peak_gb"] if soaked else 0.0),
        "search": asdict(search),
        "trials": trials,
        "soak": dict(soaked) if soaked else None,
        "backed_off": backed_off,
    }


def largest(search: Search, worst: Trial) -> int:
    """The largest batch that fits, to one part in 32: the batch returned has been tried and fits.

    Raises MillraceError where `min_bs` does not.
    """
    fits, fails = 0, search.most + 1
    size = min(max(search.start_bs, search.min_bs), search.most)
    known: dict[int, float] = {}
    while True:
        answer = worst(size)
        if answer.get("step_peak_gb"):
            known[size] = answer["step_peak_gb"]
        if search.fits(answer):
            fits = size
        else:
            fails, why = size, search.why_not(answer)
        if fails <= search.min_bs:
            raise MillraceError(
                f"a batch of {search.min_bs} does not fit: {why}", where="calibration", remedy=_SMALLER
            )
        if fails - fits <= max(1, fits // _FINE):
            return fits
        size = _next_size(search, fits, fails, known)


def _next_size(search: Search, fits: int, fails: int, known: dict[int, float]) -> int:
    """Double until something fails; then where a line through the last peaks meets the limit, or else the
    middle."""
    if fails > search.most:
        return min(2 * fits, search.most)
    if not fits:
        return max(fails // 2, search.min_bs)
    middle, fine = (fits + fails) // 2, max(1, fits // _FINE)
    near = sorted(known, key=lambda size: abs(known[size] - search.limit_gb))[:2]
    if len(near) < 2 or len(known) > 6:  # too little is known, or memory grows in no straight line
        return middle
    slope = (known[near[0]] - known[near[1]]) / (near[0] - near[1])
    if slope <= 0:
        return middle
    guess = math.floor(near[0] + (search.limit_gb - known[near[0]]) / slope)
    if guess <= fits:
        guess = fits + fine  # the line says that nothing larger fits: make sure
    return min(max(guess, fits + 1), fails - 1)


def backed_off_size(search: Search, size: int, answer: Mapping[str, Any]) -> int:
    """The next batch to soak: as much smaller as the peak above what is fixed was too high, or a tenth."""
    share = _BACK_OFF
    if not answer["oom"] and answer["step_peak_gb"] > search.limit_gb > answer["fixed_gb"]:
        share = (search.limit_gb - answer["fixed_gb"]) / (answer["step_peak_gb"] - answer["fixed_gb"])
    return min(size - 1, math.floor(size * min(max(share, 0.5), _BACK_OFF_LEAST)))


def _recording(search: Search, worst: Trial, trials: list[dict[str, Any]]) -> Trial:
    def tried(size: int) -> Mapping[str, Any]:
        answer = worst(size)
        fits = search.fits(answer)
        log.info(
            "%d rows: %s", size, f"peak {answer['peak_gb']:.3f} GB, fits" if fits else search.why_not(answer)
        )
        trials.append({"rows": size, "fits": fits, **answer})
        return answer

    return tried
