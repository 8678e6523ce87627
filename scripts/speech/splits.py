"""Which split a recording belongs to: decided once, by hours, and never changed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

SPLITS = ("train", "validation", "test")
# The order in which the first recordings of a country open the splits.
_OPENING = ("train", "test", "validation")


def assign(
    new: Sequence[tuple[str, float]],
    hours: Mapping[str, float],
    counts: Mapping[str, int],
    fractions: Mapping[str, float],
) -> dict[str, str]:
    """Assign new recordings to splits so that the hours of all come close to `fractions`.

    `new` are (id, hours); `hours` and `counts` are what each split holds already; `fractions` sum to 1. From three
    recordings on every split with a fraction above 0 has at least one. The result is a pure function of its input.

    Long recordings are placed first, each where the sum over splits of (hours - target)^2 / target grows least
    (Pearson's chi-square: relative errors of small splits weigh more), so that the short ones even out the rest.
    """
    wanted = {split: fractions.get(split, 0.0) for split in SPLITS if fractions.get(split, 0.0) > 0}
    held = {split: float(hours.get(split, 0.0)) for split in wanted}
    total = sum(held.values()) + sum(max(length, 1e-6) for _, length in new)
    pending = sorted(((max(length, 1e-6), name) for name, length in new), key=lambda row: (-row[0], row[1]))
    result: dict[str, str] = {}
    # A split without any recording takes the longest that does not overfill it, or the shortest there is.
    empty = [split for split in _OPENING if split in wanted and not counts.get(split)]
    if "train" in empty and len(pending) < len(wanted) and not any(counts.values()):
        empty = empty[: len(pending)]
    for split in sorted(empty[: len(pending)], key=lambda split: wanted[split]):
        fitting = [row for row in pending if row[0] <= wanted[split] * total] or pending[-1:]
        _put(result, held, pending, fitting[0], split)
    for row in list(pending):
        _put(result, held, pending, row, min(wanted, key=lambda split: _growth(held, wanted, total, row[0], split)))
    return result


def believable_hours(recordings: Sequence[tuple[float, int]]) -> list[float]:
    """Hours of recordings of one format, given as (hours by their alignment, bytes of audio).

    One absurd time (milliseconds, a slip of the key) would make a recording outweigh all others, so none is taken for
    more than twice as long as the median of hours per byte says, and one without any time for as long as it says.
    """
    rates = [hours / size for hours, size in recordings if hours > 0 and size > 0]
    if not rates:
        return [hours for hours, _ in recordings]
    median = statistics.median_low(rates)
    return [round(min(hours, 2 * size * median) if hours > 0 else size * median, 6) for hours, size in recordings]


def _put(result: dict, held: dict, pending: list, row: tuple[float, str], split: str) -> None:
    pending.remove(row)
    result[row[1]] = split
    held[split] += row[0]


def _growth(held: Mapping, wanted: Mapping, total: float, length: float, split: str) -> float:
    target = wanted[split] * total
    before, after = held[split] - target, held[split] + length - target
    return (after * after - before * before) / target
