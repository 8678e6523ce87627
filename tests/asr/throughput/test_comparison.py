"""The comparison: figures follow from the files of the runs; criteria pass, fail or say what was not
measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from millrace.asr.throughput.comparison import MEASURES, Figure, Measure, Throughput
from millrace.asr.throughput.criteria import FAIL, PASS, UNKNOWN, criteria, percent, rate, result
from millrace.asr.throughput.run import Run, first_quarter, last_quarter
from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from tests.asr.run_folders import BUCKETS, CPU, GPU, MadeUp, bucket_config

ALL = ("samples", "audio_seconds", "gpu", "cpu", "peak_memory", "waiting")
NAIVE = {"seconds": 0.55, "padding": 0.47, "mixed": True, "shares": {"data_wait": 0.6, "forward": 0.4}}


def _found(folder: Path, buckets: bool = True, **runs: MadeUp | list[MadeUp]) -> Throughput:
    folders = {
        role: [str(run.write(folder)) for run in (made if isinstance(made, list) else [made])]
        for role, made in runs.items()
    }
    return Throughput.read(folders, bucket_config(folder) if buckets else None)


def _measure(key: str) -> Measure:
    return next(measure for measure in MEASURES if measure.key == key)


def _statuses(found: Throughput) -> dict[tuple[str, str], str]:
    return {(criterion.group, criterion.name): criterion.status for criterion in criteria(found)}


def test_rates_padding_and_shares_are_sums_over_sums(tmp_path: Path) -> None:
    run = Run.read(MadeUp("bench", steps=40).write(tmp_path))
    lines = [row for _, row, _ in jsonl.lines(tmp_path / "bench" / "metrics.jsonl")]
    assert len(run.windows) == 4 and run.done_steps == 40
    seconds = sum(line["seconds"] for line in lines[1:])
    for count in ("samples", "audio_seconds"):
        assert run.rate(count) == pytest.approx(sum(line["counts"][count] for line in lines[1:]) / seconds)
    for unit in ("audio_seconds", "tokens", "flops"):
        useful = sum(line["counts"][unit] for line in lines)
        assert run.padding(unit) == pytest.approx(
            1 - useful / sum(line["counts"][f"padded_{unit}"] for line in lines)
        )
    assert run.shares["forward"] == pytest.approx(0.38) and run.shares["decode"] == 0
    assert run.rate("nothing") is None is run.padding("nothing")


def test_short_logs_keep_their_first_line(tmp_path: Path) -> None:
    run = Run.read(MadeUp("short", steps=20).write(tmp_path))
    assert run.steady == run.windows and len(run.steady_steps) == 20
    long = Run.read(MadeUp("long", steps=30).write(tmp_path))
    assert len(long.steady) == 2 and [step["step"] for step in long.steady_steps] == list(range(11, 31))


def test_decoding_in_the_trainer_is_taken_out_of_the_wait(tmp_path: Path) -> None:
    run = Run.read(MadeUp("naive", decode=0.25, **NAIVE).write(tmp_path))
    spent = sum(step["seconds"] for step in run.steady_steps)
    assert run.shares["decode"] == pytest.approx(0.55 * 0.25 * 190 / spent)
    assert run.shares["decode"] + run.shares["data_wait"] == pytest.approx(0.6)
    more = Run.read(MadeUp("more", decode=3.0, **NAIVE).write(tmp_path))
    assert more.shares["data_wait"] == 0 and more.shares["decode"] == pytest.approx(0.6)


def test_a_machine_that_was_busy_compares_nothing(tmp_path: Path) -> None:
    found = _found(
        tmp_path,
        bench=MadeUp("bench"),
        baseline=MadeUp("baseline", **NAIVE),
        ideal=MadeUp("ideal", seconds=0.5),
    )
    judged = [criterion for criterion in criteria(found) if criterion.name == "Throughput"]
    assert [criterion.status for criterion in judged] == [UNKNOWN, UNKNOWN]
    assert all("busy with other work" in criterion.figure for criterion in judged)


def test_repeats_give_median_and_range(tmp_path: Path) -> None:
    runs = [MadeUp(f"bench_{n}", seed=n, seconds=0.2 + 0.01 * n) for n in range(3)]
    found = _found(tmp_path, bench=runs)
    rates = [run.rate("audio_seconds") for run in found.bench]
    figure = found.figure("bench", _measure("audio_seconds"))
    assert (figure.value, figure.low, figure.high) == (statistics.median(rates), min(rates), max(rates))
    assert figure.window_median is None


def test_one_run_has_the_range_of_its_lines(tmp_path: Path) -> None:
    found = _found(tmp_path, bench=MadeUp("bench"))
    (run,), figure = found.bench, found.figure("bench", _measure("samples"))
    windows = [line["counts"]["samples"] / line["seconds"] for line in run.windows[1:]]
    assert figure.value == pytest.approx(run.rate("samples"))
    assert (figure.low, figure.high) == pytest.approx((min(windows), max(windows)))
    assert figure.window_median == pytest.approx(statistics.median(windows))
    assert Figure.of([1.0, None]) is None is Figure.of([])


def test_all_pass(tmp_path: Path) -> None:
    found = _found(
        tmp_path,
        bench=[MadeUp(f"bench_{n}", seed=n, machine=GPU, gpu=0.95) for n in range(2)],
        baseline=MadeUp("baseline", machine=GPU, gpu=0.4, held_out=1.25, **NAIVE),
        ideal=MadeUp("ideal", machine=GPU, gpu=0.97, seconds=0.19),
        check=MadeUp("check", steps=50, log_steps=5, machine=GPU),
    )
    assert set(_statuses(found).values()) == {PASS}
    assert found.ratio("samples") > 3 and 1.0 < found.headroom() < 1.15
    assert not found.differences()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (("required", "Throughput"), {"bench": {"seconds": 1.0}}),
        (("required", "GPU use"), {"bench": {"gpu": 0.84}}),
        (("project", "GPU use"), {"bench": {"gpu": 0.89}}),
        (("required", "Padding (seconds of audio)"), {"bench": {"padding": 0.3}}),
        (("required", "Stability"), {"bench": {"steps": 60, "finished": False, "failed": "out of memory"}}),
        (("required", "Stability"), {"check": {"finished": False}}),
        (("required", "Loss falls"), {"check": {"loss": (2.0, 2.1)}}),
        (("required", "Loss against the baseline"), {"bench": {"held_out": 1.4}}),
        (("project", "Waiting for data"), {"bench": {"shares": {"data_wait": 0.06, "forward": 0.94}}}),
    ],
)
def test_each_criterion_can_fail(tmp_path: Path, name: tuple[str, str], changed: dict) -> None:
    made = {
        "bench": {"machine": GPU, "gpu": 0.95},
        "baseline": {"machine": GPU, "gpu": 0.4, "held_out": 1.25, **NAIVE},
        "check": {"machine": GPU, "steps": 50, "log_steps": 5},
    }
    runs = {role: MadeUp(role, **{**facts, **changed.get(role, {})}) for role, facts in made.items()}
    found = _found(tmp_path, **runs)
    assert _statuses(found)[name] == FAIL


def test_without_a_gpu_its_use_was_not_measured_and_is_no_failure(tmp_path: Path) -> None:
    found = _found(tmp_path, bench=MadeUp("bench"), baseline=MadeUp("baseline", **NAIVE))
    told = {criterion.group: criterion for criterion in criteria(found) if criterion.name == "GPU use"}
    assert {criterion.status for criterion in told.values()} == {UNKNOWN}
    assert told["required"].figure == "there is no GPU in this machine" and not found.on_gpu


def test_with_bench_alone_what_needs_others_was_not_measured(tmp_path: Path) -> None:
    found = _found(tmp_path, buckets=False, bench=MadeUp("bench", steps=50, recorded=False, held_out=None))
    statuses = _statuses(found)
    for name in ("Throughput", "Stability", "All buckets sampled", "Loss against the baseline"):
        assert statuses["required", name] == UNKNOWN, name
    assert statuses["required", "Loss falls"] == PASS == statuses["required", "Padding (seconds of audio)"]
    assert found.headroom() is None is found.ratio("samples")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"machine": {**CPU, "cpu": "Another"}}, "cpu is Another in baseline"),
        ({"machine": {**CPU, "cores": 2.0}}, "cores is 2.0 in baseline"),
        ({"facts": {"precision": "bf16-mixed"}}, "precision is bf16-mixed in baseline, 32-true in bench"),
        ({"world_size": 2}, "ranks is 2 in baseline"),
    ],
)
def test_runs_that_differ_are_not_compared(tmp_path: Path, changed: dict, named: str) -> None:
    found = _found(tmp_path, bench=MadeUp("bench"), baseline=MadeUp("baseline", **NAIVE, **changed))
    assert any(named in difference for difference in found.differences())
    assert _statuses(found)["required", "Throughput"] == UNKNOWN


def test_losses_after_unequal_steps_are_not_compared(tmp_path: Path) -> None:
    found = _found(tmp_path, bench=MadeUp("bench"), baseline=MadeUp("baseline", steps=100, **NAIVE))
    assert _statuses(found)["required", "Loss against the baseline"] == UNKNOWN


def test_training_losses_stand_in_for_held_out_ones(tmp_path: Path) -> None:
    found = _found(
        tmp_path,
        bench=MadeUp("bench", held_out=None, loss=(3.0, 1.0)),
        baseline=MadeUp("baseline", held_out=None, loss=(3.0, 1.5), **NAIVE),
    )
    (told,) = [criterion for criterion in criteria(found) if criterion.name.startswith("Loss against")]
    assert told.status == PASS and told.figure.startswith("training loss")
    lines = found.bench[0].windows[-5:]
    weights = [line["weight"] for line in lines]
    expected = sum(line["loss"] * line["weight"] for line in lines) / sum(weights)
    assert found.bench[0].training_loss(last_quarter) == pytest.approx(expected)


def test_a_bucket_that_is_left_out_is_seen(tmp_path: Path) -> None:
    made = MadeUp("bench").write(tmp_path)
    rows = [row for _, row, _ in jsonl.lines(made / "steps.jsonl") if row["bucket"] != "b_5_7"]
    jsonl.write_lines(made / "steps.jsonl", rows)
    found = Throughput.read({"bench": [str(made)]}, bucket_config(tmp_path))
    told = {criterion.name: criterion for criterion in criteria(found)}
    assert told["All buckets sampled"].status == FAIL and "b_5_7" in told["All buckets sampled"].figure
    assert told["Buckets in proportion to hours"].status == FAIL


def test_a_bucket_too_rare_to_be_due_is_named_but_no_failure(tmp_path: Path) -> None:
    made = MadeUp("bench").write(tmp_path)
    path = bucket_config(tmp_path)
    config = jsonl.read(path)
    config["buckets"] += [
        {"bucket_id": "b_15_20", "hours": 0.01, "samples": 2},
        {"bucket_id": "b_20_30", "hours": 0.0, "samples": 0},
    ]
    atomic.write_json(path, config)
    (told,) = [
        c for c in criteria(Throughput.read({"bench": [str(made)]}, path)) if c.name == "All buckets sampled"
    ]
    assert told.status == PASS and told.figure.startswith("5 of 6; not in 200 batches: b_15_20")


def test_batches_drawn_by_samples_and_not_by_hours_are_seen(tmp_path: Path) -> None:
    made = MadeUp("bench").write(tmp_path)
    rng, names = np.random.default_rng(0), list(BUCKETS)
    shares = np.array([rows for _, rows, _ in BUCKETS.values()]) / sum(
        rows for _, rows, _ in BUCKETS.values()
    )
    rows = [row for _, row, _ in jsonl.lines(made / "steps.jsonl")]
    for row in rows:
        name = str(rng.choice(names, p=shares))
        row["bucket"], row["buckets"] = name, {name: [row["samples"], row["audio_seconds"]]}
    jsonl.write_lines(made / "steps.jsonl", rows)
    found = Throughput.read({"bench": [str(made)]}, bucket_config(tmp_path))
    assert _statuses(found)["required", "Buckets in proportion to hours"] == FAIL


def test_buckets_are_measured_from_their_own_steps(tmp_path: Path) -> None:
    found = _found(tmp_path, bench=[MadeUp("bench_1"), MadeUp("bench_2", seed=9)])
    for bucket in found.buckets:
        later = [step for run in found.bench for step in run.steps if step["step"] > 10]
        steps = [step for step in later if step["bucket"] == bucket.name]
        assert bucket.steps == len(steps) > 0
        assert bucket.seconds.value == statistics.median(step["seconds"] for step in steps)
        assert bucket.batch.value == int(240 / BUCKETS[bucket.name][2])
        assert bucket.peak_memory == max(step["peak_memory_bytes"] for step in steps)
        assert bucket.rate == pytest.approx(
            sum(step["audio_seconds"] for step in steps) / sum(step["seconds"] for step in steps)
        )
    every = sum(step["audio_seconds"] for run in found.bench for step in run.steps)
    assert sum(bucket.seen_seconds for bucket in found.buckets) == pytest.approx(every)


def test_cut_and_odd_logs_are_read(tmp_path: Path) -> None:
    made = MadeUp("bench", steps=30).write(tmp_path)
    with open(made / "metrics.jsonl", "ab") as handle:
        handle.write(b'{"event": "eval", "step": 30, "metrics": {}}\n[]\nnull\n{"event": "train", "st')
    with open(made / "steps.jsonl", "ab") as handle:
        handle.write(b'{"step": 31, "seco')
    run = Run.read(made)
    assert len(run.windows) == 3 and len(run.steps) == 30
    rows = [row for _, row, _ in jsonl.lines(made / "metrics.jsonl") if isinstance(row, dict)]
    rows[1]["loss"] = None
    jsonl.write_lines(made / "metrics.jsonl", rows)
    assert Run.read(made).training_loss(lambda lines: slice(0, lines)) is not None
    assert Run.read(made).training_loss(lambda lines: slice(0, lines)) == pytest.approx(
        sum(rows[n]["loss"] * rows[n]["weight"] for n in (0, 2)) / sum(rows[n]["weight"] for n in (0, 2))
    )


def test_what_cannot_be_read_names_file_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="no training step was logged"):
        Run.read(tmp_path / "nowhere")
    made = MadeUp("bench").write(tmp_path)
    with pytest.raises(MillraceError, match=r"--bench"):
        Throughput.read({"baseline": [str(made)], "bench": []}, None)
    (tmp_path / "b.json").write_text('{"buckets": [{"bucket_id": "b"}]}')
    with pytest.raises(MillraceError, match=r"b\.json: not a bucket configuration"):
        Throughput.read({"bench": [str(made)]}, tmp_path / "b.json")
    (made / "metrics.json").write_text('{"cut')
    with pytest.raises(MillraceError, match=r"metrics\.json: not JSON"):
        Run.read(made)


def test_a_run_without_audio_counts_has_no_such_figures(tmp_path: Path) -> None:
    omit = ("audio_seconds", "padded_audio_seconds", "tokens", "padded_tokens", "flops", "padded_flops")
    found = _found(tmp_path, bench=MadeUp("bench", omit=omit))
    assert found.figure("bench", _measure("audio_seconds")) is None
    assert found.figure("bench", _measure("padding_flops")) is None
    assert found.figure("bench", _measure("samples")) is not None
    assert _statuses(found)["required", "Padding (seconds of audio)"] == UNKNOWN


def test_the_result_is_json_with_every_measure(tmp_path: Path) -> None:
    found = _found(
        tmp_path,
        bench=MadeUp("bench"),
        baseline=MadeUp("baseline", **NAIVE),
        ideal=MadeUp("ideal", seconds=0.19),
    )
    told = json.loads(atomic.json_bytes(result(found, criteria(found))))
    assert set(ALL) <= set(told["comparison"])
    assert told["comparison"]["samples"]["ratio"] == pytest.approx(found.ratio("samples"))
    assert told["comparison"]["gpu"]["bench"] is None
    assert [bucket["name"] for bucket in told["buckets"]] == list(BUCKETS)
    assert [(run["role"], run["name"]) for run in told["runs"]] == [
        ("baseline", "baseline"),
        ("bench", "bench"),
        ("ideal", "ideal"),
    ]
    assert told["time_shares"]["bench"]["data_wait"] == pytest.approx(0.02)


def test_numbers_for_people() -> None:
    assert [rate(value) for value in (0.123, 9.994, 9.996, 99.96, 12345.6)] == [
        "0.12",
        "9.99",
        "10.0",
        "100",
        "12,346",
    ]
    assert [percent(value) for value in (0.0, 0.0001, 0.123, 1.0)] == ["0.0 %", "0.01 %", "12.3 %", "100.0 %"]
    assert [(first_quarter(n), last_quarter(n)) for n in (1, 8)] == [
        (slice(0, 1), slice(0, 1)),
        (slice(0, 2), slice(6, 8)),
    ]
