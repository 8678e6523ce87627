"""Splits: close to the fractions, never empty from three on, and a pure function of the input."""

import random

import pytest

from millrace.speech.corpus import splits

FRACTIONS = {"train": 0.9, "validation": 0.05, "test": 0.05}


def grow(lengths: list[float], steps: list[int], fractions: dict = FRACTIONS) -> dict[str, float]:
    """Assign recordings batch by batch; return the hours per split."""
    hours, counts, done = dict.fromkeys(fractions, 0.0), dict.fromkeys(fractions, 0), 0
    for size in steps:
        batch = [(str(n), lengths[n]) for n in range(done, min(done + size, len(lengths)))]
        assigned = splits.assign(batch, hours, counts, fractions)
        assert set(assigned) == {name for name, _ in batch}
        for name, split in assigned.items():
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
    assert splits.assign([("a", 1.0)], {}, {}, FRACTIONS) == {"a": "train"}
    assert splits.assign([("b", 1.0)], {"train": 1.0}, {"train": 1}, FRACTIONS)["b"] != "train"
    assert sorted(splits.assign([("a", 1.0), ("b", 1.0)], {}, {}, FRACTIONS).values()) == [
        "test",
        "train",
    ]


def test_a_fraction_of_zero_gets_nothing():
    sums = grow([0.1] * 50, [50], {"train": 0.9, "validation": 0.1, "test": 0.0})
    assert sums["test"] == 0 and sums["validation"] > 0


def test_order_of_the_input_does_not_matter():
    new = [(f"r{n}", 0.1 + n % 7 / 10) for n in range(40)]
    assert splits.assign(new, {}, {}, FRACTIONS) == splits.assign(new[::-1], {}, {}, FRACTIONS)


def test_recordings_without_hours_are_assigned_too():
    assert set(splits.assign([(str(n), 0.0) for n in range(5)], {}, {}, FRACTIONS).values()) == set(
        FRACTIONS
    )
