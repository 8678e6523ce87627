"""Splits: close to the fractions, never empty from three on, and a pure function of the input."""

import random
from pathlib import Path

import pytest

from millrace.common.workflow.partitions import Assignment
from millrace.speech.corpus import splits
from millrace.speech.corpus.country_folder import Country, Recording
from millrace.speech.corpus.given_splits import GivenSplit, GivenSplits

FRACTIONS = {"train": 0.9, "validation": 0.05, "test": 0.05}


def assigned(recordings: list[tuple[str, float]]) -> dict[str, str]:
    """The splits of the first recordings, of these names and hours."""
    return splits.assign(recordings, {}, {}, FRACTIONS)


def grow(lengths: list[float], steps: list[int], fractions: dict = FRACTIONS) -> dict[str, float]:
    """Assign recordings batch by batch; return the hours per split."""
    hours, counts, done = dict.fromkeys(fractions, 0.0), dict.fromkeys(fractions, 0), 0
    for size in steps:
        batch = [(str(n), lengths[n]) for n in range(done, min(done + size, len(lengths)))]
        added = splits.assign(batch, hours, counts, fractions)
        assert set(added) == {name for name, _ in batch}
        for name, split in added.items():
            hours[split] += lengths[int(name)]
            counts[split] += 1
        done += len(batch)
        if done >= 3:
            assert all(counts[split] for split, share in fractions.items() if share > 0), (
                done,
                counts,
            )
    return hours


@pytest.mark.parametrize("mode", ["one batch", "one by one", "mixed"])
@pytest.mark.parametrize("spread", ["even", "long tail"])
@pytest.mark.parametrize("seed", range(5))
def test_hours_are_within_a_fifth_of_the_fractions_from_100_recordings_on(mode, spread, seed):
    rng = random.Random(seed)
    count = rng.choice([100, 150, 250])
    draw = {
        "even": lambda: rng.uniform(0.05, 0.25),
        "long tail": lambda: min(rng.lognormvariate(0, 0.8), 6),
    }
    lengths = [draw[spread]() for _ in range(count)]
    mixed = [rng.choice([1, 7, 30]) for _ in range(count)]
    steps = {"one batch": [count], "one by one": [1] * count, "mixed": mixed}[mode]
    sums = grow(lengths, steps)
    total = sum(sums.values())
    for split, share in FRACTIONS.items():
        assert abs(sums[split] / total / share - 1) <= 0.2, (split, sums)


def test_one_recording_is_train_and_the_second_is_not():
    assert assigned([("a", 1.0)]) == {"a": "train"}
    assert splits.assign([("b", 1.0)], {"train": 1.0}, {"train": 1}, FRACTIONS)["b"] != "train"
    assert sorted(assigned([("a", 1.0), ("b", 1.0)]).values()) == [
        "test",
        "train",
    ]
    # Where none fits into a held-out split, the shortest goes there.
    new = [("long", 2.0), ("short", 1.0)]
    assert assigned(new) == {"long": "train", "short": "test"}


def test_a_fraction_of_zero_gets_nothing():
    sums = grow([0.1] * 50, [50], {"train": 0.9, "validation": 0.1, "test": 0.0})
    assert sums["test"] == 0 and sums["validation"] > 0


def test_order_of_the_input_does_not_matter():
    new = [(f"r{n}", 0.1 + n % 7 / 10) for n in range(40)]
    assert assigned(new) == assigned(new[::-1])


def test_recordings_without_hours_are_assigned_too():
    assert set(splits.assign([(str(n), 0.0) for n in range(5)], {}, {}, FRACTIONS).values()) == set(
        FRACTIONS
    )


def placed(
    folder: Path,
    hours: dict[str, float],
    given: dict[str, GivenSplit],
    fractions: dict[str, float],
    is_one_by_one: bool = False,
) -> dict[str, tuple[str, int | None]]:
    """Split and subset of the recordings of a new country, whose subsets of train hold an hour."""
    country = Country("malta", "mt")
    labels = ("country", "video_id", "split", "subset_id")
    assignment = Assignment(folder / "assignment.jsonl", 10, labels)
    known = GivenSplits({("malta", name): each for name, each in given.items()})
    rules = splits.Rules(fractions, 1.0, known)
    placements = []
    for name, length in hours.items():
        country.recordings[name] = Recording("malta", name, length)
        if is_one_by_one:
            splits.place_new(country, assignment, placements, rules)
    splits.place_new(country, assignment, placements, rules)
    rows = [placement.labels for placement in placements]
    return {row["video_id"]: (row["split"], row["subset_id"]) for row in rows}


@pytest.mark.parametrize("given", [{}, {"a": GivenSplit("train", 1, "")}], ids=["drawn", "given"])
def test_a_subset_of_train_is_closed_before_a_recording_would_overfill_it(tmp_path, given):
    hours = {"a": 0.6, "b": 0.6, "c": 0.4, "d": 2.0}
    subsets = placed(tmp_path, hours, given, {"train": 1.0})
    assert [subsets[name][1] for name in "abcd"] == [1, 2, 2, 3]


def test_a_recording_that_alone_overfills_a_subset_is_in_the_first_one(tmp_path):
    assert placed(tmp_path, {"a": 2.0, "b": 0.1}, {}, {"train": 1.0}) == {
        "a": ("train", 1),
        "b": ("train", 2),
    }


def test_what_is_given_a_split_counts_for_what_is_drawn(tmp_path):
    hours = {str(number): 1.0 for number in range(10)}
    given = {"0": GivenSplit("test", None, ""), "1": GivenSplit("test", None, "")}
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    drawn = placed(tmp_path, hours, given, fractions).values()
    assert [split for split, _ in drawn].count("test") == 2


def test_a_split_with_a_recording_of_an_earlier_run_is_not_opened_again(tmp_path):
    hours = {"a": 8.0, "b": 1.0, "c": 0.5, "d": 0.5}
    names = {"a": "train", "b": "validation", "c": "test"}
    given = {name: GivenSplit(split, None, "") for name, split in names.items()}
    fractions = {"train": 0.8, "validation": 0.1, "test": 0.1}
    assert placed(tmp_path, hours, given, fractions, is_one_by_one=True)["d"] == ("test", None)


def test_a_split_that_is_given_with_the_country_comes_before_one_without():
    of_all, of_malta = GivenSplit("train", 1, ""), GivenSplit("test", None, "")
    given = GivenSplits({("", "a"): of_all, ("malta", "a"): of_malta})
    assert given.of("malta", "a") == of_malta and given.of("italy", "a") == of_all
