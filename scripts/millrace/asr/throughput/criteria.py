"""What the pipeline has to reach (the required criteria, and the project's own), and whether it
did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

from millrace.asr.throughput.comparison import MEASURES, ROLES, UNIT_NAMES, Bucket, Throughput

PASS, FAIL, UNKNOWN = "pass", "fail", "not measured"
STEPS = 200
_COMPARABLE = (
    0.05  # a loss this share above is comparable: in so short runs, seeds differ by as much
)
_QUIET = 0.75  # batches from memory cannot be slower than batches that are read; so much is chance
_EXPECTED_BATCHES = (
    3.0  # a bucket that was to have so many and has none was left out; fewer may be chance
)


@dataclass(frozen=True)
class Criterion:
    """`figure` is what was measured, in words with numbers; `value` the number held against
    `bar`."""

    group: str
    name: str
    bar: str
    status: str
    figure: str
    value: float | None = None


class _Finding(NamedTuple):
    """What was measured, in words and as a number, and the `limit` if that is measured too.

    `status` is given if the statistic itself decides, for example because nothing was measured.
    """

    words: str
    value: float | None = None
    limit: float = math.nan
    status: str | None = None


_Statistic = Callable[[Throughput], _Finding]
_Bar = tuple[str, str, str, _Statistic, Callable[[Any, Any], bool], float | None]


def criteria(throughput: Throughput) -> list[Criterion]:
    """The required criteria in their order, then the project's own bars."""
    judged = []
    for group, name, bar, statistic, test, number in _CRITERIA:
        if statistic is _over_reference and not throughput.reference:
            continue
        words, value, limit, status = statistic(throughput)
        status = status or (PASS if test(value, limit if number is None else number) else FAIL)
        judged.append(Criterion(group, name, bar, status, words, value))
    return judged


def _speedup(throughput: Throughput) -> _Finding:
    ratio, audio = throughput.ratio("samples"), throughput.ratio("audio_seconds")
    if ratio is None:
        return _Finding("no run of the baseline", status=UNKNOWN)
    if differences := throughput.differences():
        return _Finding(f"{ratio:.2f} times, but {differences[0]}", ratio, status=UNKNOWN)
    headroom = throughput.headroom()
    if headroom is not None and headroom < _QUIET:
        words = (
            f"{ratio:.2f} times, but the ideal loader reached {headroom:.2f} times Millrace's"
            " audio-s/s: "
        )
        return _Finding(words + "the machine was busy with other work", ratio, status=UNKNOWN)
    ours, theirs = (
        throughput.known_figure(role, "samples").value for role in ("bench", "baseline")
    )
    words = f"{ratio:.2f} times: {rate(ours)} against {rate(theirs)} samples/s"
    return _Finding(
        words + (f" ({audio:.2f} times in audio-s/s)" if audio is not None else ""), ratio
    )


def _over_reference(throughput: Throughput) -> _Finding:
    """How many times the rate of `throughput.reference`: of samples if it says that, else of
    audio."""
    name = throughput.reference["name"]
    for key, unit in (("samples", "samples/s"), ("audio_seconds", "audio-s/s")):
        theirs, ours = throughput.referred(key), throughput.figure("bench", key)
        if theirs and ours:
            ratio = ours.value / theirs
            words = f"{ratio:.2f} times: {rate(ours.value)} against {rate(theirs)} {unit} of {name}"
            return _Finding(words, ratio)
    return _Finding(f"{name} has no rate to compare with", status=UNKNOWN)


def _share(key: str, missing: str) -> Callable[[Throughput], _Finding]:
    """A share of the benchmark; `missing` says why there may be none."""

    def statistic(throughput: Throughput) -> _Finding:
        share = throughput.figure("bench", key)
        if share is None:
            no_gpu = key == "gpu" and not throughput.on_gpu
            return _Finding(
                "there is no GPU in this machine" if no_gpu else missing, status=UNKNOWN
            )
        return _Finding(percent(share.value), share.value)

    return statistic


def _clean_steps(throughput: Throughput) -> _Finding:
    runs = [*throughput.bench, *throughput.check]
    for run in runs:
        if not run.finished:
            words = (
                f"{run.name} after {run.done_steps} steps:"
                f" {run.failed or 'did not come to its end'}"
            )
            return _Finding(words, float(run.done_steps), status=FAIL)
    steps = max(run.done_steps for run in throughput.bench)
    words = f"{len(runs)} run{'s' if len(runs) > 1 else ''} clean, the longest bench {steps} steps"
    if lost := sum(run.lost_samples for run in runs):
        words += f", {lost} unusable samples left out"
    return _Finding(words, float(steps), status=None if steps >= STEPS else UNKNOWN)


def _sampled_buckets(throughput: Throughput) -> _Finding:
    """The number of buckets with batches; the limit leaves out those too rare to be due."""
    runs = [run for run in (*throughput.check, *throughput.bench) if run.steps]
    buckets = [bucket for bucket in throughput.buckets if bucket.rows]
    if not runs or not buckets:
        return _Finding("no steps were recorded", status=UNKNOWN)
    sampled = {name for run in runs for step in run.steps for name in step["buckets"]}
    missed = [bucket for bucket in buckets if bucket.name not in sampled]
    batches = max(sum(step.get("batches", 1) for step in run.steps) for run in runs)
    hours = math.fsum(bucket.hours for bucket in buckets)
    rare = [
        bucket for bucket in missed if hours and bucket.hours / hours * batches < _EXPECTED_BATCHES
    ]
    words = f"{len(buckets) - len(missed)} of {len(buckets)}"
    if missed:
        names = [
            f"{b.name} ({percent(b.hours / hours)} of the hours)" if hours else b.name
            for b in missed
        ]
        words += f"; not in {batches} batches: {', '.join(names)}"
    return _Finding(words, float(len(buckets) - len(missed)), float(len(buckets) - len(rare)))


def _gap_to_hours(throughput: Throughput) -> _Finding:
    """The largest gap between a bucket's share of the audio and of the hours.

    Fails if any is wider than three standard deviations of random batches and one batch.
    """
    run = max(
        (run for run in throughput.bench if run.steps), key=lambda run: len(run.steps), default=None
    )
    hours = math.fsum(bucket.hours for bucket in throughput.buckets)
    if run is None or not hours:
        return _Finding("no steps were recorded", status=UNKNOWN)
    # A batch of another bucket may hold more or less audio: count in batches of the mean size.
    batches = sum(step.get("batches", 1) for step in run.steps)
    audio: dict[str, float] = defaultdict(float)
    for step in run.steps:
        for name, (_, seconds) in step["buckets"].items():
            audio[name] += seconds
    total = math.fsum(audio.values()) or 1.0
    due = {bucket.name: bucket.hours / hours for bucket in throughput.buckets}
    gaps = {name: audio[name] / total - share for name, share in due.items()}
    widest = {
        name: 3 * math.sqrt(share * (1 - share) / batches) + 1 / batches
        for name, share in due.items()
    }
    fits = all(abs(gap) <= widest[name] + 1e-9 for name, gap in gaps.items())
    worst = max(gaps, key=lambda name: (abs(gaps[name]), name))
    shares = percent(due[worst] + gaps[worst]), percent(due[worst])
    words = "largest gap {}: {} of the audio, {} of the hours".format(worst, *shares)
    return _Finding(words, abs(gaps[worst]), status=PASS if fits else FAIL)


def _last_loss(throughput: Throughput) -> _Finding:
    run = (throughput.check or throughput.bench)[0]
    first, last = run.training_losses()
    if first is None or last is None or len(run.windows) < 2:
        return _Finding(f"{run.name} has too few lines of log", status=UNKNOWN)
    return _Finding(
        f"{first:.3f} to {last:.3f} in {run.done_steps} steps of {run.name}", last, first
    )


def _loss_against_baseline(throughput: Throughput) -> _Finding:
    if not throughput.baseline:
        return _Finding("no run of the baseline", status=UNKNOWN)
    bench, baseline = throughput.bench[0], throughput.baseline[0]
    # A step of the baseline has fewer samples: after as many steps it would have learned from less.
    samples = min(run.samples for run in (bench, baseline))
    (ours, our_steps), (theirs, their_steps) = (
        run.loss_after(samples) for run in (bench, baseline)
    )
    if ours is None or theirs is None:
        return _Finding("no losses", status=UNKNOWN)
    words = f"training loss {ours:.3f} against {theirs:.3f} after {samples:,.0f} samples "
    words += f"({our_steps} and {their_steps} steps)"
    # A negative loss has no share to be above by.
    return _Finding(words, ours, theirs + _COMPARABLE * abs(theirs))


_GPU = _share("gpu", "the GPU's counters could not be read")
_PADDING = _share("padding_audio_seconds", "no counts")
_WAITING = _share("waiting", "no times")
_SAME = "times the baseline's samples/s, same machine"
_REFERRED = "times the rate of throughput.reference, measured elsewhere"
_CLEAN = f"{STEPS} steps without running out of memory, a hang or a stop"
_RANDOM = "each within three standard deviations of random batches"
_CLOSE = f"at most {100 * _COMPARABLE:.0f} % above, after as many samples"
# Group, name, bar, the statistic held against it, and how: with a number, or with the statistic's
# limit.
_CRITERIA: tuple[_Bar, ...] = (
    ("required", "Throughput", f"at least 2.4 {_SAME}", _speedup, ge, 2.4),
    (
        "required",
        "Throughput against the reference",
        f"at least 2.4 {_REFERRED}",
        _over_reference,
        ge,
        2.4,
    ),
    ("required", "GPU use", "above 85 %", _GPU, gt, 0.85),
    ("required", "Padding (seconds of audio)", "below 20 %", _PADDING, lt, 0.2),
    ("required", "Stability", _CLEAN, _clean_steps, ge, STEPS),
    ("required", "All buckets sampled", "every bucket that holds rows", _sampled_buckets, ge, None),
    ("required", "Buckets in proportion to hours", _RANDOM, _gap_to_hours, le, None),
    ("required", "Loss falls", "last quarter of the steps below the first", _last_loss, lt, None),
    ("required", "Loss against the baseline", _CLOSE, _loss_against_baseline, le, None),
    ("project", "Throughput", f"at least 3 {_SAME}", _speedup, ge, 3.0),
    ("project", "GPU use", "above 90 %", _GPU, gt, 0.9),
    ("project", "Waiting for data", "below 5 % of the time", _WAITING, lt, 0.05),
)


def percent(share: float) -> str:
    """`12.3 %`, with two digits of what is rare."""
    return f"{100 * share:.2f} %" if 0 < abs(share) < 0.001 else f"{100 * share:.1f} %"


def rate(value: float) -> str:
    """Three figures or more: `1,234`, `123`, `12.3`, `1.23`."""
    return (
        f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )


def result(throughput: Throughput, judged: list[Criterion]) -> dict[str, Any]:
    roles = [role for role, _ in throughput.role_names]
    comparison = {}
    for key, measure in MEASURES.items():
        figures = {role: throughput.figure(role, key) for role in roles}
        comparison[key] = {
            **{name: getattr(measure, name) for name in ("name", "kind", "higher_is_better")},
            **{role: figure and asdict(figure) for role, figure in figures.items()},
            "ratio": throughput.ratio(key),
        }
    runs = [
        {
            "role": role,
            "name": run.name,
            "steps": run.done_steps,
            "finished": run.finished,
            "failed": run.failed,
            "ranks": run.world_size,
            "seconds": run.seconds,
            "settings": {k: v for k, v in run.facts.items() if isinstance(v, str | int | float)},
        }
        for role in ROLES
        for run in getattr(throughput, role)
    ]
    return {
        "machine": throughput.bench[0].machine,
        "differences": throughput.differences(),
        "comparison": comparison,
        "padding_units": UNIT_NAMES,
        "time_shares": {role: throughput.shares(role) for role in roles},
        "headroom": throughput.headroom(),
        "reference": throughput.reference or None,
        "buckets": [_bucket(bucket) for bucket in throughput.buckets],
        "criteria": [asdict(criterion) for criterion in judged],
        "profile": next((run.profile for run in throughput.profile if run.profile), None),
        "runs": runs,
    }


def _bucket(bucket: Bucket) -> dict[str, Any]:
    facts = {name: getattr(bucket, name) for name in ("name", "hours", "rows", "steps", "padding")}
    for key, figure in (("step_seconds", bucket.seconds), ("batch_size", bucket.batch)):
        facts[key] = (
            {"median": figure.value, "low": figure.low, "high": figure.high} if figure else None
        )
    facts["audio_seconds_per_second"] = bucket.rate
    facts["seen_hours"] = bucket.seen_seconds / 3600
    return {**facts, "peak_memory_bytes": bucket.peak_memory}
