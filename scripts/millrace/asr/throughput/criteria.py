"""What the pipeline has to reach, and whether it did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

from millrace.asr.throughput.comparison import MEASURES, ROLES, UNIT_NAMES, Throughput

PASS = "pass"
FAIL = "fail"
UNKNOWN = "not measured"
STEPS = 200
# A loss this share above is comparable: in so short runs, seeds differ by as much.
_COMPARABLE = 0.05
# A bucket that was to have so many batches and has none was left out; fewer may be chance.
_EXPECTED_BATCHES = 3.0


@dataclass(frozen=True)
class Criterion:
    """`figure` is what was measured, in words with numbers; `value` the number held against
    `bar`."""

    name: str
    bar: str
    status: str
    figure: str
    value: float | None = None


class _Finding(NamedTuple):
    """What was measured, in words and as a number, and the `limit` if that is measured too.

    `status` is given if the finding itself decides, for example because nothing was measured.
    """

    words: str
    value: float | None = None
    limit: float = math.nan
    status: str | None = None


class _Bar(NamedTuple):
    """`passes` holds the value of what `find` has found against `limit`, or the finding's own."""

    name: str
    words: str
    find: Callable[[Throughput], _Finding]
    passes: Callable[[Any, Any], bool]
    limit: float | None = None


def criteria(throughput: Throughput) -> list[Criterion]:
    """What is required, in its order."""
    judged = []
    for bar in _BARS:
        if bar.find is _over_reference and not throughput.reference:
            continue
        finding = bar.find(throughput)
        status = finding.status or _status(bar, finding)
        judged.append(Criterion(bar.name, bar.words, status, finding.words, finding.value))
    return judged


def _status(bar: _Bar, finding: _Finding) -> str:
    limit = finding.limit if bar.limit is None else bar.limit
    if bar.passes(finding.value, limit):
        return PASS
    return FAIL


def _speedup(throughput: Throughput) -> _Finding:
    ratio = throughput.ratio("samples")
    if ratio is None:
        return _Finding("no run of the baseline", status=UNKNOWN)
    differences = throughput.differences()
    if differences:
        return _Finding(f"{ratio:.2f} times, but {differences[0]}", ratio, status=UNKNOWN)

    ours = throughput.known_rate("bench")
    theirs = throughput.known_rate("baseline")
    words = f"{ratio:.2f} times: {rate(ours)} against {rate(theirs)} samples/s"
    audio = throughput.ratio("audio_seconds")
    if audio is not None:
        words += f" ({audio:.2f} times in audio-s/s)"
    return _Finding(words, ratio)


def _over_reference(throughput: Throughput) -> _Finding:
    """How many times the samples/s of `throughput.reference`."""
    name = throughput.reference["name"]
    theirs = throughput.referred("samples")
    ours = throughput.figure("bench", "samples")
    if not theirs or ours is None:
        return _Finding(f"{name} has no rate to compare with", status=UNKNOWN)
    ratio = ours / theirs
    words = f"{ratio:.2f} times: {rate(ours)} against {rate(theirs)} samples/s of {name}"
    return _Finding(words, ratio)


def _share(key: str, missing: str) -> Callable[[Throughput], _Finding]:
    """A share of the benchmark; `missing` says why there may be none."""

    def find(throughput: Throughput) -> _Finding:
        share = throughput.figure("bench", key)
        if share is not None:
            return _Finding(percent(share), share)
        if key == "gpu" and not throughput.on_gpu:
            return _Finding("there is no GPU in this machine", status=UNKNOWN)
        return _Finding(missing, status=UNKNOWN)

    return find


def _clean_steps(throughput: Throughput) -> _Finding:
    runs = [*throughput.bench, *throughput.check]
    for run in runs:
        if not run.finished:
            why = run.failed or "did not come to its end"
            words = f"{run.name} after {run.done_steps} steps: {why}"
            return _Finding(words, float(run.done_steps), status=FAIL)
    steps = max(run.done_steps for run in throughput.bench)
    words = f"{len(runs)} run{'s' if len(runs) > 1 else ''} clean, the longest bench {steps} steps"
    lost = sum(run.lost_samples for run in runs)
    if lost:
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
    found = len(buckets) - len(missed)
    words = f"{found} of {len(buckets)}"

    batches = max(sum(step.get("batches", 1) for step in run.steps) for run in runs)
    hours = math.fsum(bucket.hours for bucket in buckets)
    rare = 0
    names = []
    for bucket in missed:
        share = bucket.hours / hours if hours else 1.0
        rare += share * batches < _EXPECTED_BATCHES
        names.append(f"{bucket.name} ({percent(share)} of the hours)")
    if names:
        words += f"; not in {batches} batches: {', '.join(names)}"
    return _Finding(words, float(found), float(len(buckets) - rare))


def _gap_to_hours(throughput: Throughput) -> _Finding:
    """The largest gap between a bucket's share of the audio and of the hours.

    Fails if any is wider than three standard deviations of random batches and one batch.
    """
    runs = [run for run in throughput.bench if run.steps]
    hours = math.fsum(bucket.hours for bucket in throughput.buckets)
    if not runs or not hours:
        return _Finding("no steps were recorded", status=UNKNOWN)
    steps = max(runs, key=lambda run: len(run.steps)).steps
    # A batch of another bucket may hold more or less audio: count in batches of the mean size.
    batches = sum(step.get("batches", 1) for step in steps)
    audio: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, (_, seconds) in step["buckets"].items():
            audio[name] += seconds
    total = math.fsum(audio.values()) or 1.0

    status = PASS
    gaps = []
    for bucket in throughput.buckets:
        share = bucket.hours / hours
        gap = audio[bucket.name] / total - share
        widest = 3 * math.sqrt(share * (1 - share) / batches) + 1 / batches
        if abs(gap) > widest + 1e-9:
            status = FAIL
        gaps.append((abs(gap), bucket.name, gap, share))
    size, name, gap, share = max(gaps)
    words = (
        f"largest gap {name}: {percent(share + gap)} of the audio, {percent(share)} of the hours"
    )
    return _Finding(words, size, status=status)


def _last_loss(throughput: Throughput) -> _Finding:
    run = (throughput.check or throughput.bench)[0]
    first, last = run.training_losses()
    if first is None or last is None or len(run.windows) < 2:
        return _Finding(f"{run.name} has too few lines of log", status=UNKNOWN)
    words = f"{first:.3f} to {last:.3f} in {run.done_steps} steps of {run.name}"
    return _Finding(words, last, first)


def _loss_against_baseline(throughput: Throughput) -> _Finding:
    if not throughput.baseline:
        return _Finding("no run of the baseline", status=UNKNOWN)
    bench = throughput.bench[0]
    baseline = throughput.baseline[0]
    # A step of the baseline has fewer samples: after as many steps it would have learned from less.
    samples = min(bench.samples, baseline.samples)
    ours, our_steps = bench.loss_after(samples)
    theirs, their_steps = baseline.loss_after(samples)
    if ours is None or theirs is None:
        return _Finding("no losses", status=UNKNOWN)
    words = (
        f"training loss {ours:.3f} against {theirs:.3f} after {samples:,.0f} samples"
        f" ({our_steps} and {their_steps} steps)"
    )
    # A negative loss has no share to be above by.
    return _Finding(words, ours, theirs + _COMPARABLE * abs(theirs))


_GPU = _share("gpu", "the GPU's counters could not be read")
_PADDING = _share("padding_audio_seconds", "no counts")
_SAME = "times the baseline's samples/s, same machine"
_REFERRED = "at least 2.4 times the rate of throughput.reference, measured elsewhere"
_CLEAN = f"{STEPS} steps without running out of memory, a hang or a stop"
_ALL = "every bucket that holds rows"
_RANDOM = "each within three standard deviations of random batches"
_FALLS = "last quarter of the steps below the first"
_CLOSE = f"at most {100 * _COMPARABLE:.0f} % above, after as many samples"
_BARS = (
    _Bar("Throughput", f"at least 2.4 {_SAME}", _speedup, ge, 2.4),
    _Bar("Throughput against the reference", _REFERRED, _over_reference, ge, 2.4),
    _Bar("GPU use", "above 85 %", _GPU, gt, 0.85),
    _Bar("Padding (seconds of audio)", "below 20 %", _PADDING, lt, 0.2),
    _Bar("Stability", _CLEAN, _clean_steps, ge, STEPS),
    _Bar("All buckets sampled", _ALL, _sampled_buckets, ge),
    _Bar("Buckets in proportion to hours", _RANDOM, _gap_to_hours, le),
    _Bar("Loss falls", _FALLS, _last_loss, lt),
    _Bar("Loss against the baseline", _CLOSE, _loss_against_baseline, le),
)


def percent(share: float) -> str:
    """`12.3 %`, with two digits of what is rare."""
    if 0 < abs(share) < 0.001:
        return f"{100 * share:.2f} %"
    return f"{100 * share:.1f} %"


def rate(value: float) -> str:
    """Three figures or more: `1,234`, `123`, `12.3`, `1.23`."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def result(throughput: Throughput, judged: list[Criterion]) -> dict[str, Any]:
    """All figures, for throughput.json."""
    roles = [role for role, _ in throughput.role_names]
    comparison = {}
    for key, measure in MEASURES.items():
        figures = {role: _figure(throughput, role, key) for role in roles}
        comparison[key] = {
            "name": measure.name,
            "kind": measure.kind,
            "higher_is_better": key in ("samples", "audio_seconds", "gpu", "cpu"),
            **figures,
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
        for run in throughput.runs[role]
    ]
    return {
        "machine": throughput.bench[0].machine,
        "differences": throughput.differences(),
        "comparison": comparison,
        "padding_units": UNIT_NAMES,
        "time_shares": {role: throughput.shares(role) for role in roles},
        "reference": throughput.reference or None,
        "buckets": [asdict(bucket) for bucket in throughput.buckets],
        "criteria": [asdict(criterion) for criterion in judged],
        "profile": next((run.profile for run in throughput.profile if run.profile), None),
        "runs": runs,
    }


def _figure(throughput: Throughput, role: str, key: str) -> dict[str, Any] | None:
    value = throughput.figure(role, key)
    if value is None:
        return None
    return {"value": value, "runs": throughput.figures(role, key)}
