"""The comparison: figures follow from the files of the runs; criteria pass, fail or were not
measured."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.asr.throughput.comparison import MEASURES, Comparison, rate
from millrace.asr.throughput.criteria import FAIL, PASS, UNKNOWN, Criterion, criteria
from millrace.common import jsonl
from tests.asr.run_folders import BUCKETS, CPU, bucket_config, write_runs
from tests.refusals import refused


def _read(folders: dict[str, Path], buckets: Path) -> Comparison:
    metrics = {role: str(run / "metrics.json") for role, run in folders.items()}
    return Comparison.read(str(buckets), **metrics)


def _comparison(folder: Path, **changed: dict) -> Comparison:
    return _read(write_runs(folder, **changed), bucket_config(folder))


def _judged(comparison: Comparison, name: str) -> Criterion:
    """The criterion whose name begins so."""
    return next(one for one in criteria(comparison) if one.name.startswith(name))


def test_all_pass(tmp_path):
    comparison = _comparison(tmp_path)
    assert {criterion.status for criterion in criteria(comparison)} == {PASS}
    assert comparison.ratio(MEASURES[0]) > 3
    assert comparison.difference() == ""


def test_each_line_of_the_comparison_is_its_own_figure(tmp_path):
    comparison = _comparison(tmp_path, bench={"gpu": 0.0})
    figures = {measure.key: measure.of(comparison.bench) for measure in MEASURES}
    of_tokens = 1 - 13 * (1 - figures["padding"]) / 13.2
    assert figures["padding_tokens"] == pytest.approx(of_tokens)
    assert figures["waiting"] == pytest.approx(0.02) and figures["padding_flops"] is None
    ratios = {measure.key: comparison.ratio(measure) for measure in MEASURES}
    assert (ratios["gpu"], ratios["padding_flops"]) == (0.0, None)
    idle = replace(comparison, baseline=comparison.bench)
    assert idle.ratio(next(measure for measure in MEASURES if measure.key == "gpu")) is None


@pytest.mark.parametrize(
    "name, changed",
    [
        ("Throughput", {"bench": {"seconds": 0.45}}),
        ("GPU use", {"bench": {"gpu": 0.85}}),
        ("Padding (seconds of audio)", {"bench": {"padding": 0.22}}),
        ("Stability", {"bench": {"steps": 60, "finished": False, "failed": "out of memory"}}),
        ("Stability", {"check": {"finished": False}}),
        ("Loss against", {"bench": {"loss": (3.2, 2.8)}}),
        ("Loss against", {"bench": {"loss": (2.11, 2.11)}, "baseline": {"loss": (2.0, 2.0)}}),
    ],
)
def test_each_criterion_can_fail(tmp_path, name, changed):
    assert _judged(_comparison(tmp_path, **changed), name).status == FAIL


@pytest.mark.parametrize(
    "name, changed, reason",
    [
        ("GPU use", {"bench": {"gpu": None}}, "there is no GPU"),
        ("Throughput", {"baseline": {"world_size": 2}}, "ranks is 2 in baseline, 1 in bench"),
        ("Stability", {"bench": {"steps": 60}}, "60 steps, clean"),
        ("Padding", {"bench": {"omit": ("padded_audio_seconds",)}}, "no counts"),
    ],
)
def test_what_was_not_measured_is_not_judged(tmp_path, name, changed, reason):
    judged = _judged(_comparison(tmp_path, **changed), name)
    assert judged.status == UNKNOWN and reason in judged.figure


SHARED = "device cpu cores model model_options precision tf32 gradient_checkpointing"


@pytest.mark.parametrize("name", [*SHARED.split(), "max_steps", "grad_acc", "lr"])
def test_runs_of_other_conditions_are_not_compared(tmp_path, name):
    facts = {role: {name: f"{role} one"} for role in ("bench", "baseline")}
    changed = {role: {"facts": of, "machine": {**CPU, **of}} for role, of in facts.items()}
    judged = _judged(_comparison(tmp_path, **changed), "Throughput")
    assert judged.status == UNKNOWN
    assert judged.figure.endswith(f"{name} is baseline one in baseline, bench one in bench")


@pytest.mark.parametrize("ours, theirs", [(-1.0, -1.0), (2.09, 2.0)])
def test_losses_up_to_5_percent_above_pass_also_below_zero(tmp_path, ours, theirs):
    losses = {"bench": {"loss": (ours, ours)}, "baseline": {"loss": (theirs, theirs)}}
    assert _judged(_comparison(tmp_path, **losses), "Loss").status == PASS


def test_samples_left_out_are_those_of_all_ranks_and_runs(tmp_path):
    """steps.jsonl is rank 0's: the counts of the log are summed over the ranks."""
    folders = write_runs(tmp_path)
    for role in ("bench", "check"):
        path = folders[role] / "metrics.jsonl"
        lines = jsonl.whole_lines(path)
        lines[3]["counts"] |= {"unusable_missing": 2.0, "unusable_unreadable": 1.0}
        lines[7]["counts"] |= {"unusable_missing": 4.0, "unlearned_text_too_long": 8.0}
        jsonl.write_lines(path, lines)
    words = _judged(_read(folders, bucket_config(tmp_path)), "Stability").figure
    assert words == "200 steps, clean, 14 unusable samples left out"


def test_losses_are_compared_after_as_many_samples(tmp_path):
    """Our steps hold more samples: after as many steps we would have learned from more."""
    comparison = _comparison(tmp_path, baseline={"loss": (3.0, 1.5)})
    ours, theirs = comparison.bench, comparison.baseline
    assert theirs.samples < 0.7 * ours.samples
    loss, steps = ours.loss_after(theirs.samples)
    seen = sum(line["counts"]["samples"] for line in ours.windows if line["step"] <= steps)
    assert steps < 200 and seen == pytest.approx(theirs.samples, rel=0.05)
    lines = [line for line in ours.windows if line["step"] <= steps]
    lines = lines[-(len(lines) // 4) :]
    weight = sum(line["weight"] for line in lines)
    assert loss == pytest.approx(sum(line["loss"] * line["weight"] for line in lines) / weight)
    their_loss, their_steps = theirs.loss_after(theirs.samples)
    words = f"training loss {loss:.3f} against {their_loss:.3f} after {theirs.samples:,.0f}"
    expected = f"{words} samples ({steps} and 200 steps)"
    assert their_steps == 200 and _judged(comparison, "Loss against").figure == expected


def _leave_out(bucket: str, run: Path) -> None:
    """Take the steps of a bucket out of a run."""
    path = run / "steps.jsonl"
    steps = [step for step in jsonl.whole_lines(path) if step["bucket"] != bucket]
    jsonl.write_lines(path, steps)


def test_a_bucket_left_out_is_named(tmp_path):
    folders = write_runs(tmp_path)
    for role in ("bench", "check"):
        _leave_out("b_5_7", folders[role])
    judged = _judged(_read(folders, bucket_config(tmp_path)), "All buckets sampled")
    assert (judged.status, judged.figure) == (FAIL, "4 of 5, not b_5_7")

    # One without rows has no steps.
    judged = _judged(_read(folders, bucket_config(tmp_path, b_5_7=0)), "All buckets sampled")
    assert (judged.status, judged.figure) == (PASS, "4 of 4")


def test_a_bucket_that_only_the_check_has_met_is_sampled(tmp_path):
    folders = write_runs(tmp_path)
    _leave_out("b_5_7", folders["bench"])
    assert (
        _judged(_read(folders, bucket_config(tmp_path)), "All buckets sampled").figure == "5 of 5"
    )


def test_buckets_are_measured_from_their_own_steps(tmp_path):
    comparison = _comparison(tmp_path)
    recorded = comparison.bench.steps
    for bucket in comparison.buckets:
        steps = [step for step in recorded if step["step"] > 10 and step["bucket"] == bucket.name]
        assert bucket.steps == len(steps) > 0
        assert bucket.step_seconds == statistics.median(step["seconds"] for step in steps)
        assert bucket.peak_memory_bytes == max(step["peak_memory_bytes"] for step in steps)
        audio = sum(step["audio_seconds"] for step in steps)
        padded = sum(step["padded_audio_seconds"] for step in steps)
        seconds = sum(step["seconds"] for step in steps)
        assert bucket.audio_seconds_per_second == pytest.approx(audio / seconds)
        assert bucket.padding == pytest.approx(1 - audio / padded)
    every = sum(step["audio_seconds"] for step in recorded)
    assert 3600 * sum(bucket.seen_hours for bucket in comparison.buckets) == pytest.approx(every)
    assert [bucket.name for bucket in comparison.buckets] == list(BUCKETS)


def test_what_cannot_be_read_names_file_and_remedy(tmp_path):
    folders = write_runs(tmp_path)
    damaged = tmp_path / "b.json"
    damaged.write_text('{"buckets": [{"bucket_id": "b"}]}')
    with refused(r"b\.json: not a bucket configuration"):
        _read(folders, damaged)
    (folders["bench"] / "metrics.json").write_text('{"cut')
    with refused(r"metrics\.json: damaged"):
        _read(folders, bucket_config(tmp_path))


def test_rates_for_people():
    rates = {0.123: "0.12", 9.994: "9.99", 9.996: "10.0", 99.96: "100", 12345.6: "12,346"}
    assert {value: rate(value) for value in rates} == rates
