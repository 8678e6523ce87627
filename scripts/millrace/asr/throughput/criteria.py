"""What the pipeline has to reach (speed, GPU use, padding, loss), and whether it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from millrace.asr.throughput.comparison import MEASURES, Comparison, Measure, rate
from millrace.common.report.figures import human_share

PASS = "pass"
FAIL = "fail"
UNKNOWN = "not measured"
STEPS = 200
# A loss this share above is comparable: in so short runs, seeds differ by as much.
_COMPARABLE = 0.05
_BY_KEY = {measure.key: measure for measure in MEASURES}


@dataclass(frozen=True)
class Criterion:
    """`figure` is what was measured, in words with numbers."""

    name: str
    bar: str
    status: str
    figure: str


class _Finding(NamedTuple):
    status: str
    figure: str


def criteria(comparison: Comparison) -> list[Criterion]:
    """What is required, in its order."""
    return [Criterion(name, bar, *judge(comparison)) for name, bar, judge in _BARS]


def _passing(passes: bool, figure: str) -> _Finding:
    return _Finding(PASS if passes else FAIL, figure)


def _speedup(comparison: Comparison) -> _Finding:
    samples = _BY_KEY["samples"]
    ratio = comparison.ratio(samples)
    ours = samples.of(comparison.bench)
    theirs = samples.of(comparison.baseline)
    if ratio is None or ours is None or theirs is None:
        return _Finding(UNKNOWN, "no samples were counted")
    difference = comparison.difference()
    if difference:
        return _Finding(UNKNOWN, f"{ratio:.2f} times, but {difference}")
    words = f"{ratio:.2f} times: {rate(ours)} against {rate(theirs)} samples/s"
    return _passing(ratio >= 2.4, words)


def _gpu_use(comparison: Comparison) -> _Finding:
    share = _BY_KEY["gpu"].of(comparison.bench)
    if share is None:
        return _Finding(UNKNOWN, "there is no GPU, or its counters could not be read")
    return _passing(share > 0.85, human_share(share))


def _padding(comparison: Comparison) -> _Finding:
    share = _BY_KEY["padding"].of(comparison.bench)
    if share is None:
        return _Finding(UNKNOWN, "no counts")
    return _passing(share < 0.2, human_share(share))


def _clean_steps(comparison: Comparison) -> _Finding:
    for run in (comparison.bench, comparison.check):
        if not run.finished:
            why = run.failed or "did not come to its end"
            return _Finding(FAIL, f"{run.name} after {run.done_steps} steps: {why}")
    words = f"{comparison.bench.done_steps} steps, clean"
    lost = comparison.bench.lost_samples + comparison.check.lost_samples
    if lost:
        words += f", {lost} unusable samples left out"
    return _Finding(PASS if comparison.bench.done_steps >= STEPS else UNKNOWN, words)


def _sampled_buckets(comparison: Comparison) -> _Finding:
    """The check begins with a step of every bucket."""
    steps = [*comparison.check.steps, *comparison.bench.steps]
    buckets = [bucket.name for bucket in comparison.buckets if bucket.rows]
    if not steps or not buckets:
        return _Finding(UNKNOWN, "no steps were recorded")
    sampled = {name for step in steps for name in step["buckets"]}
    missed = [name for name in buckets if name not in sampled]
    words = f"{len(buckets) - len(missed)} of {len(buckets)}"
    if missed:
        words += f", not {', '.join(missed)}"
    return _passing(not missed, words)


def _loss(comparison: Comparison) -> _Finding:
    # A step of the baseline has fewer samples: after as many steps it would have learned from less.
    samples = min(comparison.bench.samples, comparison.baseline.samples)
    ours, our_steps = comparison.bench.loss_after(samples)
    theirs, their_steps = comparison.baseline.loss_after(samples)
    if ours is None or theirs is None:
        return _Finding(UNKNOWN, "no losses")
    words = (
        f"training loss {ours:.3f} against {theirs:.3f} after {samples:,.0f} samples"
        f" ({our_steps} and {their_steps} steps)"
    )
    return _passing(ours <= theirs + _COMPARABLE * abs(theirs), words)


_BARS: tuple[tuple[str, str, Callable[[Comparison], _Finding]], ...] = (
    ("Throughput", "at least 2.4 times the baseline's samples/s, same machine", _speedup),
    ("GPU use", "above 85 %", _gpu_use),
    ("Padding (seconds of audio)", "below 20 %", _padding),
    ("Stability", f"{STEPS} steps without running out of memory, a hang or a stop", _clean_steps),
    ("All buckets sampled", "every bucket that holds rows", _sampled_buckets),
    ("Loss against the baseline", "at most 5 % above, after as many samples", _loss),
)


def result(comparison: Comparison, judged: list[Criterion]) -> dict[str, Any]:
    """All figures, for throughput.json."""
    return {
        "machine": comparison.bench.machine,
        "difference": comparison.difference(),
        "comparison": {measure.key: _figures(comparison, measure) for measure in MEASURES},
        "time_shares": {name: run.shares for name, run in comparison.compared.items()},
        "buckets": [asdict(bucket) for bucket in comparison.buckets],
        "criteria": [asdict(criterion) for criterion in judged],
        "profile": comparison.profile.profile,
    }


def _figures(comparison: Comparison, measure: Measure) -> dict[str, Any]:
    return {
        "name": measure.name,
        "baseline": measure.of(comparison.baseline),
        "bench": measure.of(comparison.bench),
        "ratio": comparison.ratio(measure),
    }
