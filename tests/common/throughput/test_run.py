"""A run's figures as its files tell them: which lines and steps count, and over which ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.common import atomic, jsonl
from millrace.common.throughput.run import Run
from tests.refusals import refused


def window(step: int, seconds: float, samples: int, **more: Any) -> dict[str, Any]:
    """A line of metrics.jsonl; a tenth of its audio is padding."""
    counts = {"samples": samples, "audio_seconds": 9.0, "padded_audio_seconds": 10.0}
    share = {"data_wait": 0.25, "forward": 0.75}
    line = {
        "event": "train",
        "step": step,
        "seconds": seconds,
        "counts": counts,
        "time_share": share,
    }
    return line | {"loss": float(step), "weight": float(samples), "world_size": 2} | more


def written(
    folder: Path, *windows: dict[str, Any], steps: Any = (), facts: Any = None, ended: bool = True
) -> Run:
    jsonl.write_lines(folder / "metrics.jsonl", windows)
    jsonl.write_lines(folder / "steps.jsonl", steps)
    if facts is not None:
        atomic.write_json(folder / "throughput.json", facts)
    if ended:
        atomic.write_json(folder / "metrics.json", {"optimizer_steps": 9})
    return Run(folder)


def test_the_first_of_three_lines_is_not_steady_and_the_padding_is_of_all(tmp_path):
    first = window(
        2, 105.0, 10, counts={"samples": 10, "audio_seconds": 2.0, "padded_audio_seconds": 20.0}
    )
    waiting = {"data_wait": 0.65, "forward": 0.35}
    lines = [first, window(4, 5.0, 10, time_share=waiting), window(6, 15.0, 30)]
    steps = [{"step": step, "seconds": 5.0} for step in range(1, 7)]
    run = written(tmp_path / "a", *lines, steps=steps)
    assert run.rate("samples") == 40 / 20
    assert run.padding("audio_seconds") == pytest.approx(1 - 20 / 40)
    assert [step["step"] for step in run.steady_steps] == [3, 4, 5, 6]
    assert run.shares["data_wait"] == pytest.approx(0.35)
    assert sum(run.shares.values()) == pytest.approx(1.0) and run.samples == 50.0
    two = written(tmp_path / "b", *lines[:2], steps=steps)
    assert two.rate("samples") == 20 / 110 and len(two.steady_steps) == 6


@pytest.mark.parametrize("place", ["windows", "steps"])
def test_the_peak_of_memory_is_the_highest_that_any_file_tells(tmp_path, place):
    peaks = {name: 70 if name == place else 30 for name in ("windows", "steps")}
    lines = [window(1, 1.0, 1, peak_memory_bytes=peaks["windows"]), window(2, 1.0, 1)]
    steps = [{"step": 1, "seconds": 1.0, "peak_memory_bytes": peaks["steps"]}]
    run = written(tmp_path, *lines, steps=steps)
    assert run.peak_memory == 70


def test_losses_are_means_of_units_over_a_quarter_of_the_lines(tmp_path):
    lines = [window(step, 1.0, 10, loss=float(step), weight=float(step)) for step in range(1, 9)]
    lines[3]["loss"] = None
    run = written(tmp_path, *lines)
    assert run.loss_after(99.0) == (8.0, 8)
    lines += [window(step, 1.0, 10, loss=float(step), weight=float(step)) for step in range(9, 11)]
    run = written(tmp_path / "longer", *lines)
    assert run.loss_after(999.0) == (pytest.approx((81 + 100) / 19), 10)
    # 34 samples end in the fourth line, less than half of which is inside.
    assert (
        run.loss_after(34.0) == (3.0, 3)
        and run.loss_after(35.0)[1] == 4
        and run.loss_after(1.0)[1] == 1
    )


def test_what_a_run_lost_and_whether_it_came_to_its_end(tmp_path):
    line = window(2, 2.0, 11)
    line["counts"] |= {"unusable_damaged": 2.0, "unusable_text_too_long": 1.0}  # of all ranks
    run = written(tmp_path / "a", line)
    assert run.lost_samples == 3 and run.finished and run.done_steps == 2 and run.world_size == 2
    failed = written(tmp_path / "b", window(2, 2.0, 11), facts={"failed": "out of memory"})
    assert not failed.finished and failed.failed == "out of memory" and failed.lost_samples == 0
    assert not written(tmp_path / "c", window(2, 2.0, 11), ended=False).finished
    with refused(r"no training step .* --forcerun \S+/d/metrics.json$"):
        written(tmp_path / "d", {"event": "eval", "step": 1, "seconds": 1.0})


def test_logs_that_a_kill_has_cut_are_read(tmp_path):
    written(tmp_path, window(1, 1.0, 1), window(2, 1.0, 1), steps=[{"step": 1, "seconds": 1.0}])
    with open(tmp_path / "metrics.jsonl", "ab") as handle:
        handle.write(b'{"event": "eval", "step": 2, "metrics": {}}\n{"event": "train", "st')
    with open(tmp_path / "steps.jsonl", "ab") as handle:
        handle.write(b'{"step": 31, "seco')
    run = Run(tmp_path)
    assert len(run.windows) == 2 and len(run.steps) == 1


def test_a_count_that_a_line_lacks_or_that_took_no_time_has_no_rate(tmp_path):
    some = [window(1, 1.0, 1), window(2, 1.0, 1, counts={"samples": 1})]
    run = written(tmp_path / "a", *some)
    assert run.rate("samples") == 1.0
    assert run.rate("audio_seconds") is None and run.padding("audio_seconds") is None
    assert written(tmp_path / "b", window(1, 0.0, 1)).rate("samples") is None


def test_steps_are_all_steady_if_none_is_later_than_the_first_line(tmp_path):
    lines = [window(step, 1.0, 1) for step in (2, 4, 6)]
    steps = [{"step": step, "seconds": 1.0} for step in (1, 2)]  # the rest was lost
    assert written(tmp_path, *lines, steps=steps).steady_steps == steps
