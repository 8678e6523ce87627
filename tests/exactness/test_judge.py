"""The suite itself: faults that are drawn on purpose get their verdicts, and the shortest plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exactness.adapters import About
from tests.exactness.plans import COLUMNS, Plan, random_plans
from tests.exactness.suite import Bench, Draw, judge


class Numbers:
    """A loader over range(samples) that resumes exactly, or with one fault."""

    def __init__(self, setting, place, fault: str) -> None:
        self.fault, self.place = fault, place
        self.size, self.ids = setting.batch_size, list(range(setting.samples))
        if fault == "pads":
            self.ids.append(0)
        if fault == "drops the last":
            self.ids.pop()
        self.done, self.resumed, self.epoch = 0, False, 0

    def batches(self, epoch):
        if epoch != self.epoch:
            self.epoch, self.done, self.resumed = epoch, 0, False
        ids = self.ids[self.done :]
        if self.resumed and self.fault == "loses" and ids:
            ids = ids[1:]
        if self.resumed and self.fault == "repeats" and self.done:
            ids = [self.ids[self.done - 1], *ids]
        if self.resumed and self.fault == "re-orders":
            ids = ids[::-1]
        if self.resumed and self.fault == "crashes":
            ids = [ids[len(ids)]]
        step = self.size * self.place.world_size
        for start in range(0, len(ids), step):
            self.done += len(ids[start : start + step])
            yield ids[start : start + step][self.place.rank :: self.place.world_size]
        self.done = len(self.ids)

    def state(self):
        # As of a sampler that workers have drawn from.
        ahead = 2 * self.size if self.fault == "counts two batches too many" else 0
        return {"epoch": self.epoch, "done": self.done + ahead, "workers": self.place.workers}

    def restore(self, state) -> None:
        if self.fault == "refuses" and state["workers"] != self.place.workers:
            raise ValueError(f"saved with {state['workers']} workers, not {self.place.workers}")
        self.epoch, self.done, self.resumed = state["epoch"], state["done"], True
        if self.fault == "forgets the second epoch" and self.epoch == 1:
            self.done = 0

    def close(self) -> None: ...


class Faulty:
    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.ABOUT = About(fault, ("pytest",), "", "", COLUMNS)

    def write(self, folder: Path, samples: int) -> None: ...

    def open(self, setting, place) -> Numbers:
        return Numbers(setting, place, self.fault)


def bench(fault: str) -> Bench:
    return Bench(Faulty(fault))


@pytest.mark.parametrize("text", ["12/4/2 1x0:1 1x0", "25/3/2 2x1:1+2!1 2x2:end 2x2", "8/2/1 1x0"])
def test_a_plan_is_read_back_from_its_line(text):
    assert str(Plan.parse(text)) == text


@pytest.mark.parametrize("text", ["12/4/1 1x0:1", "12/4/1 1x0 1x0", "12/4/1 1x0:x 1x0", "12/4 1x0"])
def test_a_line_that_is_no_plan_is_refused(text):
    with pytest.raises(ValueError, match=r"stop|invalid|expected|not enough"):
        Plan.parse(text)


def test_plans_are_those_of_their_seed_and_of_their_column():
    plans = [*random_plans(300, seed=3)]
    assert plans == [*random_plans(300, seed=3)]
    assert plans != [*random_plans(300, seed=4)]
    assert [plan.column for plan in plans] == [*COLUMNS] * 100
    launches = [launch for plan in plans for launch in plan.launches]
    stops = [launch.stop for launch in launches if launch.stop is not None]
    assert {launch.ranks for launch in launches} == {1, 2, 3, 4, 8}
    assert {launch.workers for launch in launches} == {0, 1, 2, 3, 4}
    assert any(stop.unsaved for stop in stops)
    assert any(stop.batches is None for stop in stops)
    assert any(stop.batches == 0 for stop in stops)


CASES = [
    # fault, plan, verdict, samples that are lost and repeated
    ("none", "12/2/2 2x0:2 2x0:1+1 2x0", "exact 0 0"),
    ("none", "12/2/2 2x0:2!1 2x1:end 1x0", "exact 0 0"),
    # What was read after the last save counts as not read.
    ("none", "12/2/1 1x0:3!2 1x0", "exact 0 0"),
    ("none", "12/2/1 1x0:3!2 1x0:1!1 1x0", "exact 0 0"),
    ("counts two batches too many", "12/2/1 1x0:3 1x0", "lost 4 0"),
    ("pads", "12/2/1 1x0:2 1x0", "exact 0 0"),
    ("drops the last", "12/2/1 1x0:2 1x0", "exact 0 0"),
    ("loses", "12/2/1 1x0:2 1x0", "lost 1 0"),
    ("loses", "12/2/1 1x0:2 2x0", "lost 1 0"),
    ("repeats", "12/2/1 1x0:2 1x0", "repeated 0 1"),
    ("re-orders", "12/2/1 1x0:2 1x0", "re-ordered 0 0"),
    ("re-orders", "12/2/1 1x0:2 1x1", "re-ordered 0 0"),
    ("re-orders", "12/2/1 1x0:2 2x0", "exact 0 0"),
    ("refuses", "12/2/1 1x0:2 1x1", "refused 0 0"),
    ("refuses", "12/2/1 1x0:2 1x0", "exact 0 0"),
    ("crashes", "12/2/1 1x0:2 1x0", "crashed 0 0"),
    ("forgets the second epoch", "12/2/2 1x0:2 1x0", "exact 0 0"),
    ("forgets the second epoch", "12/2/2 1x0:1+2 1x0", "repeated 0 4"),
]


@pytest.mark.parametrize("fault, plan, expected", CASES)
def test_a_fault_gets_its_verdict(fault, plan, expected):
    verdict = bench(fault).judged(Plan.parse(plan))
    assert f"{verdict.name} {verdict.lost} {verdict.repeated}" == expected


@pytest.mark.parametrize(
    "fault, plan, shortest",
    [
        ("loses", "96/4/2 2x2:3!2 2x2:1+2 2x2", "4/2/1 1x0:0 1x0"),
        ("forgets the second epoch", "60/8/2 2x1:1+2 2x1:1 2x1", "4/2/2 1x0:1+1 1x0"),
        ("refuses", "60/3/2 2x2:3 2x1:1 2x2", "4/2/1 1x1:0 1x0"),
    ],
)
def test_the_shortest_plan_with_a_verdict_is_found(fault, plan, shortest):
    loader = bench(fault)
    plan = Plan.parse(plan)
    assert str(loader.shortest(plan, loader.judged(plan))) == shortest


def test_a_result_counts_verdicts_by_column_and_names_the_shortest_plan():
    result = judge("loses", Faulty("loses"), Draw(9, processes=1))
    assert {column: sum(counts.values()) for column, counts in result["counts"].items()} == {
        "same": 3,
        "workers": 3,
        "ranks": 3,
    }
    losing = [column for column, counts in result["counts"].items() if "lost" in counts]
    assert losing and result["samples"]["lost"] >= 2 and result["samples"]["repeated"] == 0
    assert {line["column"] for line in result["failing"] if line["verdict"] == "lost"} == {*losing}
    assert all(line["plan"].startswith("4/2/1 1x0:") for line in result["failing"])
