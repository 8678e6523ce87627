"""The comparison: figures follow from the files of the runs; criteria pass, fail or were not
measured."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from millrace.asr.throughput import criteria as judging
from millrace.asr.throughput.comparison import Throughput
from millrace.asr.throughput.criteria import FAIL, PASS, UNKNOWN, Criterion, criteria
from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.common.throughput.run import Run
from tests.asr.run_folders import BUCKETS, CPU, GPU, MadeUp, bucket_config

BASELINE = {
    "seconds": 0.55,
    "padding": 0.47,
    "mixed": True,
    "shares": {"data_wait": 0.6, "forward": 0.4},
}


def _throughput(folder: Path, buckets: bool = True, **runs: MadeUp | list[MadeUp]) -> Throughput:
    lists = {role: made if isinstance(made, list) else [made] for role, made in runs.items()}
    folders = {role: [str(run.write(folder)) for run in made] for role, made in lists.items()}
    return Throughput(folders, bucket_config(folder) if buckets else None)


def _judged(runs: Throughput, name: str) -> Criterion:
    """The criterion whose name begins so."""
    return next(one for one in criteria(runs) if one.name.startswith(name))


def _lines(path: Path) -> list[dict]:
    return [row for _, row, _ in jsonl.lines(path) if isinstance(row, dict)]


def test_reading_in_the_trainer_is_waiting_for_data(tmp_path: Path) -> None:
    runs = _throughput(tmp_path, bench=MadeUp("baseline", decode=0.25, **BASELINE))
    assert runs.shares("bench")["decode"] > 0
    assert runs.figure("bench", "waiting") == pytest.approx(0.6)


def test_repeats_give_their_median(tmp_path: Path) -> None:
    made = [MadeUp(f"bench_{n}", seed=n, seconds=0.2 + 0.01 * n) for n in range(3)]
    runs = _throughput(tmp_path, bench=made)
    rates = [run.rate("audio_seconds") for run in runs.bench]
    assert runs.figures("bench", "audio_seconds") == rates
    assert runs.figure("bench", "audio_seconds") == statistics.median(rates)
    assert runs.figure("baseline", "audio_seconds") is None
    runs.bench[1].facts.pop("use")
    assert runs.figure("bench", "cpu") is None, "one of them does not know it"


def _on_a_gpu(folder: Path, **changed: dict) -> Throughput:
    """Runs that meet all criteria, but for what is changed by role."""
    made = {
        "bench": {"gpu": 0.95},
        "baseline": {"gpu": 0.4, "loss": (3.0, 2.6), **BASELINE},
        "check": {"steps": 50, "log_steps": 5},
    }
    made = {
        role: {"machine": GPU, **facts, **changed.get(role, {})} for role, facts in made.items()
    }
    runs = {role: MadeUp(role, **facts) for role, facts in made.items()}
    return _throughput(folder, **runs)


def test_all_pass(tmp_path: Path) -> None:
    runs = _on_a_gpu(tmp_path)
    assert {criterion.status for criterion in criteria(runs)} == {PASS}
    assert runs.ratio("samples") > 3
    assert not runs.differences()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("Throughput", {"bench": {"seconds": 1.0}}),
        ("GPU use", {"bench": {"gpu": 0.84}}),
        ("Padding (seconds of audio)", {"bench": {"padding": 0.3}}),
        ("Stability", {"bench": {"steps": 60, "finished": False, "failed": "out of memory"}}),
        ("Stability", {"check": {"finished": False}}),
        ("Loss falls", {"check": {"loss": (2.0, 2.1)}}),
        ("Loss against", {"bench": {"loss": (3.2, 2.8)}}),
    ],
)
def test_each_criterion_can_fail(tmp_path: Path, name: str, changed: dict) -> None:
    assert _judged(_on_a_gpu(tmp_path, **changed), name).status == FAIL


def test_losses_below_zero_are_compared_and_one_line_tells_of_no_fall(tmp_path: Path) -> None:
    same = {"loss": (-1.0, -1.0)}
    runs = _on_a_gpu(tmp_path, bench=same, baseline=same)
    assert _judged(runs, "Loss against").status == PASS
    one_line = _throughput(tmp_path, bench=MadeUp("short", steps=5))
    assert _judged(one_line, "Loss falls").status == UNKNOWN


@pytest.mark.parametrize(
    ("reference", "status", "words"),
    [
        ({"samples_per_second": 40.0}, PASS, "samples/s of E1"),
        ({"samples_per_second": 900.0}, FAIL, "against 900 samples/s of E1"),
        ({"gpu_use": 0.588}, UNKNOWN, "E1 has no rate to compare with"),
    ],
)
def test_the_rate_is_held_against_the_reference(
    tmp_path: Path, reference: dict, status: str, words: str
):
    bench = [str(MadeUp("bench").write(tmp_path))]
    runs = Throughput({"bench": bench}, None, {"name": "E1", **reference})
    judged = _judged(runs, "Throughput against the reference")
    assert judged.status == status and words in judged.figure
    if status != UNKNOWN:
        ratio = runs.bench[0].rate("samples") / reference["samples_per_second"]
        assert judged.value == pytest.approx(ratio)
    assert not any("reference" in one.name for one in criteria(Throughput({"bench": bench}, None)))


def test_shares_of_time_are_the_mean_of_the_runs(tmp_path: Path) -> None:
    waits = (0.1, 0.2, 0.6)
    shares = [{"data_wait": wait, "forward": 1 - wait} for wait in waits]
    runs = _throughput(
        tmp_path, bench=[MadeUp(f"b{n}", shares=of, seed=n) for n, of in enumerate(shares)]
    )
    assert runs.shares("bench")["data_wait"] == pytest.approx(0.3)
    assert sum(runs.shares("bench").values()) == pytest.approx(1)


@pytest.mark.parametrize("role", ["bench", "baseline"])
def test_every_run_that_is_compared_has_to_share_the_machine(tmp_path: Path, role: str) -> None:
    lists = {name: [MadeUp(f"{name}_{n}") for n in range(2)] for name in ("bench", "baseline")}
    last = lists[role][-1]
    last.machine["cpu"] = "Another"
    runs = _throughput(tmp_path, **lists)
    assert runs.differences() == [f"cpu is Another in {last.name}, Some CPU in bench_0"]


SHARED = "device cpu cores model model_options precision tf32 gradient_checkpointing"


@pytest.mark.parametrize("name", [*SHARED.split(), "max_steps", "grad_acc", "lr"])
def test_runs_of_other_conditions_are_not_compared(tmp_path: Path, name: str) -> None:
    facts = {role: {name: f"{role} one"} for role in ("bench", "baseline")}
    runs = {role: MadeUp(role, facts=of, machine={**CPU, **of}) for role, of in facts.items()}
    judged = _judged(_throughput(tmp_path, **runs), "Throughput")
    assert judged.status == UNKNOWN
    assert judged.figure.endswith(f"{name} is baseline one in baseline, bench one in bench")


def test_samples_left_out_are_those_of_all_ranks_and_runs(tmp_path: Path) -> None:
    """steps.jsonl is rank 0's: the counts of the log are summed over the ranks."""
    made = [MadeUp("first", steps=200, world_size=2), MadeUp("second", steps=210, world_size=2)]
    runs = [run.write(tmp_path) for run in made]
    for run in runs:
        lines = _lines(run / "metrics.jsonl")
        lines[3]["counts"] |= {"unusable_missing": 2.0, "unusable_unreadable": 1.0}
        lines[7]["counts"] |= {"unusable_missing": 4.0, "unlearned_text_too_long": 8.0}
        jsonl.write_lines(run / "metrics.jsonl", lines)
    judged = _judged(Throughput({"bench": list(map(str, runs))}, None), "Stability")
    words = "2 runs clean, the longest bench 210 steps, 14 unusable samples left out"
    assert (judged.figure, judged.value) == (words, 210)


def test_with_bench_alone_what_needs_others_was_not_measured(tmp_path: Path) -> None:
    bench = MadeUp("bench", steps=50, recorded=False, held_out=None, omit=("flops", "padded_flops"))
    runs = _throughput(tmp_path, False, bench=bench)
    for name in ("Throughput", "Stability", "All buckets sampled", "Loss against"):
        assert _judged(runs, name).status == UNKNOWN, name
    assert (
        _judged(runs, "Loss falls").status
        == PASS
        == _judged(runs, "Padding (seconds of audio)").status
    )
    assert runs.ratio("samples") is None
    assert (
        runs.figure("bench", "padding_flops") is None is not runs.figure("bench", "padding_tokens")
    )
    bench.omit = ("audio_seconds", "padded_audio_seconds")
    assert (
        _judged(_throughput(tmp_path, bench=bench), "Padding (seconds of audio)").status == UNKNOWN
    )


@pytest.mark.parametrize(
    ("name", "made", "reason"),
    [
        ("GPU use", {}, "there is no GPU in this machine"),
        ("Throughput", {"baseline": {"world_size": 2}}, "ranks is 2 in baseline"),
    ],
)
def test_what_cannot_be_compared_is_not_judged(
    tmp_path: Path, name: str, made: dict, reason: str
) -> None:
    made = {"bench": {}, **made, "baseline": {**BASELINE, **made.get("baseline", {})}}
    runs = _throughput(tmp_path, **{role: MadeUp(role, **facts) for role, facts in made.items()})
    judged = [one for one in criteria(runs) if one.name.startswith(name)]
    assert judged and all(one.status == UNKNOWN and reason in one.figure for one in judged)


def test_losses_are_compared_after_as_many_samples(tmp_path: Path) -> None:
    """Our steps hold more samples: after as many steps we would have learned from more."""
    baseline = MadeUp("baseline", loss=(3.0, 1.5), **BASELINE)
    runs = _throughput(tmp_path, bench=MadeUp("bench", loss=(3.0, 1.0)), baseline=baseline)
    (ours,), (theirs,) = runs.bench, runs.baseline
    assert theirs.samples < 0.7 * ours.samples
    loss, steps = ours.loss_after(theirs.samples)
    seen = sum(line["counts"]["samples"] for line in ours.windows if line["step"] <= steps)
    assert steps < 200 and seen == pytest.approx(theirs.samples, rel=0.05)
    lines = [line for line in ours.windows if line["step"] <= steps]
    lines = lines[-(len(lines) // 4) :]
    expected = sum(line["loss"] * line["weight"] for line in lines) / sum(
        line["weight"] for line in lines
    )
    assert loss == pytest.approx(expected) and loss > ours.training_losses()[1]
    words = (
        f"training loss {loss:.3f} against {theirs.training_losses()[1]:.3f} after"
        f" {theirs.samples:,.0f}"
    )
    assert _judged(runs, "Loss against").figure == f"{words} samples ({steps} and 200 steps)"


def test_a_bucket_left_out_and_batches_drawn_by_samples_are_seen(tmp_path: Path) -> None:
    steps, config = MadeUp("bench").write(tmp_path) / "steps.jsonl", bucket_config(tmp_path)
    rows = _lines(steps)
    jsonl.write_lines(steps, [row for row in rows if row["bucket"] != "b_5_7"])
    runs = Throughput({"bench": [str(steps.parent)]}, config)
    judged = _judged(runs, "All buckets sampled")
    assert judged.status == FAIL and "b_5_7" in judged.figure
    assert _judged(runs, "Buckets in proportion").status == FAIL

    rng, counts = np.random.default_rng(0), np.array([rows for _, rows, _ in BUCKETS.values()])
    for row in rows:
        name = str(rng.choice(list(BUCKETS), p=counts / counts.sum()))
        row["bucket"], row["buckets"] = name, {name: [row["samples"], row["audio_seconds"]]}
    jsonl.write_lines(steps, rows)
    runs = Throughput({"bench": [str(steps.parent)]}, config)
    assert _judged(runs, "All buckets sampled").status == PASS
    assert _judged(runs, "Buckets in proportion to hours").status == FAIL


def test_a_bucket_too_rare_to_be_due_is_named_but_no_failure(tmp_path: Path) -> None:
    made, path = MadeUp("bench").write(tmp_path), bucket_config(tmp_path)
    config = jsonl.read(path)
    for name, hours, samples in (("b_15_20", 0.01, 2), ("b_20_30", 0.0, 0)):
        config["buckets"].append({"bucket_id": name, "hours": hours, "samples": samples})
    atomic.write_json(path, config)
    judged = _judged(Throughput({"bench": [str(made)]}, path), "All buckets sampled")
    assert judged.status == PASS and judged.figure.startswith("5 of 6; not in 200 batches: b_15_20")


def test_buckets_are_measured_from_their_own_steps(tmp_path: Path) -> None:
    runs = _throughput(tmp_path, bench=[MadeUp("bench_1"), MadeUp("bench_2", seed=9)])
    recorded = [step for run in runs.bench for step in run.steps]
    for bucket in runs.buckets:
        steps = [step for step in recorded if step["step"] > 10 and step["bucket"] == bucket.name]
        assert bucket.steps == len(steps) > 0
        assert bucket.step_seconds == statistics.median(step["seconds"] for step in steps)
        assert bucket.batch_size == int(240 / BUCKETS[bucket.name][2])
        assert bucket.peak_memory_bytes == max(step["peak_memory_bytes"] for step in steps)
        audio, seconds = (
            sum(step[name] for step in steps) for name in ("audio_seconds", "seconds")
        )
        assert bucket.audio_seconds_per_second == pytest.approx(audio / seconds)
    every = sum(step["audio_seconds"] for step in recorded)
    assert 3600 * sum(bucket.seen_hours for bucket in runs.buckets) == pytest.approx(every)


def test_cut_logs_are_read(tmp_path: Path) -> None:
    made = MadeUp("bench", steps=30).write(tmp_path)
    with open(made / "metrics.jsonl", "ab") as handle:
        handle.write(b'{"event": "eval", "step": 30, "metrics": {}}\n{"event": "train", "st')
    with open(made / "steps.jsonl", "ab") as handle:
        handle.write(b'{"step": 31, "seco')
    run = Run(made)
    assert len(run.windows) == 3 and len(run.steps) == 30
    rows = _lines(made / "metrics.jsonl")
    rows[1]["loss"] = None
    jsonl.write_lines(made / "metrics.jsonl", rows)
    assert Run(made).training_losses() == [pytest.approx(rows[place]["loss"]) for place in (0, 2)]


def test_what_cannot_be_read_names_file_and_remedy(tmp_path: Path) -> None:
    made = MadeUp("bench").write(tmp_path)
    with pytest.raises(MillraceError, match=r"--bench"):
        Throughput({"baseline": [str(made)], "bench": []}, None)
    (tmp_path / "b.json").write_text('{"buckets": [{"bucket_id": "b"}]}')
    with pytest.raises(MillraceError, match=r"b\.json: not a bucket configuration"):
        Throughput({"bench": [str(made)]}, tmp_path / "b.json")
    (made / "metrics.json").write_text('{"cut')
    with pytest.raises(MillraceError, match=r"metrics\.json: damaged"):
        Run(made)


def test_numbers_for_people() -> None:
    rates = {0.123: "0.12", 9.994: "9.99", 9.996: "10.0", 99.96: "100", 12345.6: "12,346"}
    assert {value: judging.rate(value) for value in rates} == rates
    shares = {0.0: "0.0 %", 0.0001: "0.01 %", 0.123: "12.3 %", 1.0: "100.0 %"}
    assert {value: judging.percent(value) for value in shares} == shares
