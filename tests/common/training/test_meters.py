"""Clock and meters: no time is lost between laps, shares and padding are what they say."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from millrace.common.training.meters import APART, PHASES, Clock, Window, figures, seconds_between
from millrace.common.training.ranks import Exchange
from millrace.common.training.task import MicroBatch


def test_laps_leave_no_gap():
    begin = time.perf_counter()
    clock = Clock()
    for _ in range(3000):  # folds on the way
        clock.lap("forward")
        clock.lap("backward")
    time.sleep(0.02)
    clock.lap("data_wait")
    spent = clock.restart()
    end = time.perf_counter()
    assert set(spent) == {"forward", "backward", "data_wait"}
    assert spent["data_wait"] >= 0.02 and 0.02 <= sum(spent.values()) <= end - begin
    time.sleep(0.01)
    clock.lap("idle")
    # What passed between the last lap and the restart belongs to the next window.
    spent = clock.restart()
    assert spent.keys() == {"idle"} and spent["idle"] >= 0.01 and clock.restart() == {}


def test_an_event_of_a_gpu_tells_milliseconds():
    event: Any = SimpleNamespace(elapsed_time=lambda end: 1500.0)
    assert seconds_between(event, event) == 1.5


def test_figures_of_two_ranks():
    pairs = ((30.0, 40.0), (50.0, 60.0))
    ranks = [
        {"samples": 3.0, "audio_seconds": a, "padded_audio_seconds": padded} for a, padded in pairs
    ]
    laps = {
        "data_wait": 1.0,
        "forward": 2.0,
        "backward": 4.0,
        "idle": 1.0,
        "setup": 25.0,
        "save": 100.0,
        "evaluate": 50.0,
    }
    found = figures([*ranks, {}], laps)
    assert found["seconds"] == 8.0
    assert found["counts"] == {"audio_seconds": 80.0, "padded_audio_seconds": 100.0, "samples": 6.0}
    assert found["per_second"]["samples"] == 0.75 and found["per_second"]["audio_seconds"] == 10.0
    assert found["padding"] == {"audio_seconds": pytest.approx(0.2)}
    assert tuple(found["time_share"]) == PHASES and not set(APART) & set(PHASES)
    assert sum(found["time_share"].values()) == pytest.approx(1.0)
    assert found["time_share"]["backward"] == 0.5


def test_nothing_seen_is_no_division_by_zero():
    found = figures([{"frames": 0.0, "padded_frames": 0.0}], {})
    assert found["padding"] == {} and found["per_second"]["frames"] == 0.0
    assert set(found["time_share"].values()) == {0.0}


class BesideAnother(Exchange):
    """What rank 0 of two hears: its own values, and those of a rank 1 that are given."""

    def __init__(self, other: Any) -> None:
        super().__init__(1)
        self.other = other

    def gathered(self, value: Any) -> list[Any]:
        return [value, self.other]


def micro_batch(size: int, weight: float, **counts: float | torch.Tensor) -> MicroBatch:
    batch = MicroBatch(None, np.arange(size))
    batch.weight, batch.counts = weight, counts
    return batch


def test_a_window_sums_all_batches_of_all_ranks_and_begins_anew():
    window = Window(torch.device("cpu"))
    for _ in range(2):
        window.add(
            torch.tensor(3.0),
            micro_batch(
                2, 4.0, samples=2, right=torch.tensor(2.0**24), frames=10, padded_frames=20
            ),
        )
        window.add(
            torch.tensor(5.0),
            micro_batch(1, 12.0, right=torch.tensor([1.0]), frames=30, padded_frames=60),
        )
        window.add(torch.tensor(float("nan")), micro_batch(0, 0.0))
        line = window.close(Exchange(1))
        assert (line["loss"], line["weight"]) == ((3.0 * 4 + 5.0 * 12) / 16, 16.0)
        assert line["counts"] == {
            "frames": 40.0,
            "padded_frames": 80.0,
            "right": 2.0**24 + 1,
            "samples": 3.0,
        }
        assert line["padding"] == {"frames": 0.5}
    assert window.close(Exchange(1))["loss"] is None

    time.sleep(0.01)
    window.clock.lap("forward")
    window.add(torch.tensor(3.0), micro_batch(2, 4.0, frames=10, padded_frames=20))
    line = window.close(
        BesideAnother((21.0, 3.0, {"samples": 5.0, "frames": 20.0, "padded_frames": 20.0}))
    )
    assert (line["loss"], line["weight"]) == ((3.0 * 4 + 21.0) / 7, 7.0)
    assert line["counts"] == {"frames": 30.0, "padded_frames": 40.0, "samples": 7.0}
    assert line["time_share"]["forward"] > 0.9
    assert line["per_second"]["samples"] == pytest.approx(7.0 / line["seconds"])


def test_a_window_goes_on_with_the_sums_of_all_ranks_that_saved_it():
    parts = []
    for loss, weight in ((2.0, 3.0), (4.0, 1.0)):
        window = Window(torch.device("cpu"))
        window.add(torch.tensor(loss), micro_batch(1, weight))
        parts.append(window.state_dict())
    window = Window(torch.device("cpu"))
    window.load(parts)
    window.add(torch.tensor(10.0), micro_batch(1, 6.0))
    assert window.close(Exchange(1))["loss"] == pytest.approx((2.0 * 3 + 4.0 * 1 + 10.0 * 6) / 10)
    window.load([])  # rank 1, when rank 0 took up all
    assert window.close(Exchange(1))["loss"] is None
