"""What the pipeline had to reach (the seed's success criteria, and the project's own), and whether it did."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from millrace.asr.throughput.comparison import MEASURES, UNIT_NAMES, Statistic, Throughput
from millrace.asr.throughput.run import Run, first_quarter, last_quarter

PASS, FAIL, UNKNOWN = "pass", "fail", "not measured"
STEPS = 200
# A loss this much above another is still called comparable: two seeds differ by as much in so short runs.
COMPARABLE = 1.05
# Batches from memory can't be slower than batches that are read and decoded; so much is chance.
_QUIET = 0.75
# A bucket that was to have this many batches and has none was left out; with fewer, chance may have it so.
_EXPECTED_BATCHES = 3.0


@dataclass(frozen=True)
class Criterion:
    """`figure` is what was found, in words with numbers; `value` the number that was held against `bar`."""

    group: str
    name: str
    bar: str
    status: str
    figure: str
    value: float | None = None


def criteria(found: Throughput) -> list[Criterion]:
    """The list, in the seed's order, then the project's own bars."""
    seed, own = "seed", "project"
    gpu = found.figure("bench", _measure("gpu"))
    padding = found.figure("bench", _measure("padding_audio_seconds"))
    wait = found.figure("bench", _measure("waiting"))
    no_gpu = "there is no GPU in this machine" if not found.on_gpu else "the GPU's counters could not be read"
    return [
        _faster(found, seed, 2.4),
        _share(seed, "GPU use", "above 85 %", gpu, lambda value: value > 0.85, no_gpu),
        _share(
            seed, "Padding (seconds of audio)", "below 20 %", padding, lambda value: value < 0.2, "no counts"
        ),
        _stable(found, seed),
        _covered(found, seed),
        _proportional(found, seed),
        _falls(found, seed),
        _comparable(found, seed),
        _faster(found, own, 3.0),
        _share(own, "GPU use", "above 90 %", gpu, lambda value: value > 0.9, no_gpu),
        _share(
            own, "Waiting for data", "below 5 % of the time", wait, lambda value: value < 0.05, "no times"
        ),
    ]


def _measure(key: str) -> Any:
    return next(measure for measure in MEASURES if measure.key == key)


def _faster(found: Throughput, group: str, bar: float) -> Criterion:
    name, told = "Throughput", f"at least {bar:g} times the naive pipeline's samples/s, same machine"
    ratio, audio = found.ratio("samples"), found.ratio("audio_seconds")
    if ratio is None:
        return Criterion(group, name, told, UNKNOWN, "no run of the naive pipeline")
    if differences := found.differences():
        return Criterion(group, name, told, UNKNOWN, f"{ratio:.2f} times, but {differences[0]}", ratio)
    headroom = found.headroom()
    if headroom is not None and headroom < _QUIET:
        busy = f"the ideal loader reached {headroom:.2f} times Millrace's audio-s/s: the machine was busy with other work"
        return Criterion(group, name, told, UNKNOWN, f"{ratio:.2f} times, but {busy}", ratio)
    new, old = (found.figure(role, _measure("samples")).value for role in ("bench", "baseline"))
    figure = f"{ratio:.2f} times: {rate(new)} against {rate(old)} samples/s"
    if audio is not None:
        figure += f" ({audio:.2f} times in audio-s/s)"
    return Criterion(group, name, told, PASS if ratio >= bar else FAIL, figure, ratio)


def _share(group: str, name: str, bar: str, figure: Statistic | None, passes: Any, why_not: str) -> Criterion:
    if figure is None:
        return Criterion(group, name, bar, UNKNOWN, why_not)
    status = PASS if passes(figure.value) else FAIL
    return Criterion(group, name, bar, status, percent(figure.value), figure.value)


def _stable(found: Throughput, group: str) -> Criterion:
    name, bar = "Stability", f"{STEPS} steps without running out of memory, a hang or a stop"
    runs = [*found.bench, *found.check]
    broken = [
        (run.name, run.done_steps, run.failed or "did not come to its end")
        for run in runs
        if not run.finished
    ]
    if broken:
        run, steps, why = broken[0]
        return Criterion(group, name, bar, FAIL, f"{run} after {steps} steps: {why}", float(steps))
    steps = max(run.done_steps for run in found.bench)
    figure = f"{len(runs)} run{'s' if len(runs) > 1 else ''} clean, the longest bench {steps} steps"
    if lost := sum(run.lost_samples or 0 for run in runs):
        figure += f", {lost} unusable samples left out"
    return Criterion(group, name, bar, PASS if steps >= STEPS else UNKNOWN, figure, float(steps))


def _covered(found: Throughput, group: str) -> Criterion:
    name, bar = "All buckets sampled", "every bucket that holds rows"
    runs = [run for run in (*found.check, *found.bench) if run.steps]
    holding = [bucket for bucket in found.buckets if bucket.rows]
    if not runs or not holding:
        return Criterion(group, name, bar, UNKNOWN, "no steps were recorded")
    seen = {bucket for run in runs for step in run.steps for bucket in step["buckets"]}
    missed = [bucket for bucket in holding if bucket.name not in seen]
    batches = max(sum(step.get("batches", 1) for step in run.steps) for run in runs)
    hours = math.fsum(bucket.hours for bucket in holding)
    due = (
        [bucket for bucket in missed if bucket.hours / hours * batches >= _EXPECTED_BATCHES]
        if hours
        else missed
    )
    figure = f"{len(holding) - len(missed)} of {len(holding)}"
    if missed:
        names = ", ".join(
            f"{bucket.name} ({percent(bucket.hours / hours)} of the hours)" for bucket in missed
        )
        figure += f"; not in {batches} batches: {names}"
    return Criterion(group, name, bar, FAIL if due else PASS, figure, float(len(holding) - len(missed)))


def _proportional(found: Throughput, group: str) -> Criterion:
    """Each bucket's share of the audio within three standard deviations (and one batch) of its share of the
    hours."""
    name, bar = "Buckets in proportion to hours", "each within three standard deviations of random batches"
    run = max((run for run in found.bench if run.steps), key=lambda run: len(run.steps), default=None)
    hours = math.fsum(bucket.hours for bucket in found.buckets)
    if run is None or not hours:
        return Criterion(group, name, bar, UNKNOWN, "no steps were recorded")
    batches, shares = sum(step.get("batches", 1) for step in run.steps), bucket_shares(run)
    # A batch of another bucket may hold more or less audio: count in batches of the mean size.
    off = {
        bucket.name: (shares.get(bucket.name, 0.0) - bucket.hours / hours, bucket.hours / hours)
        for bucket in found.buckets
    }
    worst, (gap, due) = max(off.items(), key=lambda pair: (abs(pair[1][0]), pair[0]))
    fits = all(
        abs(gap) <= 3 * math.sqrt(due * (1 - due) / batches) + 1 / batches + 1e-9 for gap, due in off.values()
    )
    figure = f"largest gap {worst}: {percent(due + gap)} of the audio, {percent(due)} of the hours"
    return Criterion(group, name, bar, PASS if fits else FAIL, figure, abs(gap))


def bucket_shares(run: Run) -> dict[str, float]:
    """Share of the audio that a run has seen, by bucket."""
    sums: dict[str, float] = {}
    for step in run.steps:
        for bucket, (_, seconds) in step["buckets"].items():
            sums[bucket] = sums.get(bucket, 0.0) + seconds
    whole = math.fsum(sums.values())
    return {bucket: seconds / whole for bucket, seconds in sums.items()} if whole else {}


def _falls(found: Throughput, group: str) -> Criterion:
    name, bar = "Loss falls", "last quarter of the steps below the first"
    run = (found.check or found.bench)[0]
    first, last = run.training_loss(first_quarter), run.training_loss(last_quarter)
    if first is None or last is None or len(run.windows) < 2:
        return Criterion(group, name, bar, UNKNOWN, f"{run.name} has too few lines of log")
    figure = f"{first:.3f} to {last:.3f} in {run.done_steps} steps of {run.name}"
    return Criterion(group, name, bar, PASS if last < first else FAIL, figure, last)


def _comparable(found: Throughput, group: str) -> Criterion:
    name, bar = (
        "Loss against the naive pipeline",
        f"at most {100 * (COMPARABLE - 1):.0f} % above, after as many steps",
    )
    if not found.baseline:
        return Criterion(group, name, bar, UNKNOWN, "no run of the naive pipeline")
    new, old = found.bench[0], found.baseline[0]
    if new.done_steps != old.done_steps:
        figure = f"{new.name} has {new.done_steps} steps, {old.name} {old.done_steps}"
        return Criterion(group, name, bar, UNKNOWN, figure)
    kind, ours, theirs = "held-out", new.held_out_loss(), old.held_out_loss()
    if ours is None or theirs is None:
        kind, ours, theirs = "training", new.training_loss(last_quarter), old.training_loss(last_quarter)
    if ours is None or theirs is None:
        return Criterion(group, name, bar, UNKNOWN, "no losses")
    # A negative loss has no share to be above by.
    fits = ours <= theirs + (COMPARABLE - 1) * abs(theirs)
    figure = f"{kind} loss {ours:.3f} against {theirs:.3f} after {new.done_steps} steps"
    return Criterion(group, name, bar, PASS if fits else FAIL, figure, ours)


def percent(share: float) -> str:
    """`12.3 %`."""
    return f"{100 * share:.2f} %" if 0 < abs(share) < 0.001 else f"{100 * share:.1f} %"


def rate(value: float) -> str:
    """Three figures or more: `1,234`, `123`, `12.3`, `1.23`."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def result(found: Throughput, judged: list[Criterion]) -> dict[str, Any]:
    """All of it as JSON."""
    comparison = {}
    for measure in MEASURES:
        figures = {role: found.figure(role, measure) for role, _ in found.role_names}
        comparison[measure.key] = {
            "name": measure.name,
            "kind": measure.kind,
            "higher_is_better": measure.higher_is_better,
            **{role: figure.as_dict() if figure else None for role, figure in figures.items()},
            "ratio": found.ratio(measure.key),
        }
    runs = [
        (role, run)
        for role in ("baseline", "bench", "ideal", "check", "profile")
        for run in getattr(found, role)
    ]
    return {
        "machine": found.bench[0].machine,
        "differences": found.differences(),
        "comparison": comparison,
        "padding_units": UNIT_NAMES,
        "time_shares": {role: found.shares(role) for role, _ in found.role_names},
        "headroom": found.headroom(),
        "buckets": [_bucket(bucket, found) for bucket in found.buckets],
        "criteria": [asdict(criterion) for criterion in judged],
        "profile": next((run.profile for run in found.profile if run.profile), None),
        "runs": [
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
            for role, run in runs
        ],
    }


def _bucket(bucket: Any, found: Throughput) -> dict[str, Any]:
    facts = {name: getattr(bucket, name) for name in ("name", "hours", "rows", "steps", "padding", "rate")}
    for name in ("seconds", "batch"):
        figure = getattr(bucket, name)
        key = {"seconds": "step_seconds", "batch": "batch_size"}[name]
        facts[key] = {"median": figure.value, "low": figure.low, "high": figure.high} if figure else None
    facts["audio_seconds_per_second"] = facts.pop("rate")
    facts["seen_hours"] = bucket.seen_seconds / 3600
    return {**facts, "peak_memory_bytes": bucket.peak_memory}
