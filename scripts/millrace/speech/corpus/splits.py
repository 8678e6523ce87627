"""Which split, and which subset of train, a recording belongs to: decided once, by hours, and never
changed."""

from __future__ import annotations

import functools
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millrace.common.errors import MillraceError
from millrace.common.workflow.partitions import Assignment, Placement
from millrace.speech.corpus.country_folder import Country
from millrace.speech.corpus.given_splits import GivenSplit, GivenSplits
from millrace.speech.names import safe_name

SPLITS = ("train", "validation", "test")
# The order in which the first recordings of a country open the splits.
_OPENING = ("train", "test", "validation")
# What counts for a recording whose alignment has no usable time.
_LEAST_HOURS = 1e-6


def assign(
    new: Sequence[tuple[str, float]],
    hours: Mapping[str, float],
    counts: Mapping[str, int],
    fractions: Mapping[str, float],
) -> dict[str, str]:
    """Assign new recordings to splits so that the hours of all come close to `fractions`.

    `new` are (id, hours); `hours` and `counts` are what each split has already; `fractions` sum to
    1. From three recordings on every split with a fraction above 0 has one. A pure function of its
    input.

    Long recordings come first, each where the sum over splits of (hours - target)^2 / target grows
    least (Pearson's chi-square: relative errors of small splits weigh more); the short ones even
    out the rest.
    """
    lengths = {name: max(length, _LEAST_HOURS) for name, length in new}
    pending = sorted(lengths, key=lambda name: (-lengths[name], name))
    sums = {split: hours.get(split, 0.0) for split in SPLITS if fractions.get(split, 0.0) > 0}
    total = sum(sums.values()) + sum(lengths.values())
    targets = {split: fractions[split] * total for split in sums}

    result: dict[str, str] = {}
    for split in _to_open(targets, counts, len(pending)):
        # The longest that does not overfill the split, or the shortest there is.
        fitting = (name for name in pending if lengths[name] <= targets[split])
        name = next(fitting, pending[-1])
        pending.remove(name)
        sums[split] += lengths[name]
        result[name] = split

    for name in pending:
        growth = {
            split: _growth(sums[split] - target, lengths[name], target)
            for split, target in targets.items()
        }
        split = min(growth, key=lambda split: growth[split])
        sums[split] += lengths[name]
        result[name] = split
    return result


def _to_open(targets: Mapping[str, float], counts: Mapping[str, int], new: int) -> list[str]:
    """The splits without a recording that are to get one of the `new`, the smallest first."""
    empty = [split for split in _OPENING if split in targets and not counts.get(split)]
    return sorted(empty[:new], key=lambda split: targets[split])


def _growth(surplus: float, length: float, target: float) -> float:
    """By how much the error of a split grows that has `surplus` hours more than its target."""
    after = surplus + length
    return (after * after - surplus * surplus) / target


_LABELS = ("country", "video_id", "split", "subset_id")


def load(path: str | os.PathLike, partition_hours: float) -> Assignment:
    """The assignment file, or an empty table. MillraceError if it is damaged, or edited into
    nonsense."""
    assignment = Assignment(path, partition_hours, _LABELS)
    for placement in assignment.placements.values():
        fields = _contradiction(placement)
        if fields:
            labels = {"item": placement.item, "group": placement.group} | placement.labels
            shown = " and ".join(f"{name} {labels[name]!r}" for name in fields)
            raise MillraceError(
                f"{shown} do not agree",
                f"{assignment.path}, {placement.item}",
                "Restore the line from version control: a recording must not change its split",
            )
    return assignment


def _contradiction(placement: Placement) -> tuple[str, ...]:
    """The fields of a placement that cannot be true together; empty if all can."""
    country, video_id, split, subset = (placement.labels[name] for name in _LABELS)
    if type(country) is not str or placement.item != f"{country}/{video_id}":
        return "item", "country", "video_id"
    if split == "train":
        is_known = type(subset) is int and subset >= 0
        folder = f"train-{subset}"
    else:
        is_known = split in SPLITS and subset is None
        folder = split
    if not is_known or placement.group != f"{_folder_name(country)}-{folder}":
        return "country", "split", "subset_id", "group"
    return ()


_folder_name = functools.cache(safe_name)


def check_given(country: Country, assignment: Assignment, given: GivenSplits) -> None:
    """Raise MillraceError if a recording was placed in another split."""
    for recording in country.recordings.values() if given else ():
        wanted = given.of(country.name, recording.video_id)
        placed = assignment.get(recording.name)
        remedy = (
            "Mend speech.splits_file; or, if nothing was trained yet, delete the assignment's line"
        )
        if wanted and placed and placed.labels["split"] != wanted.split:
            there = placed.labels["split"]
            problem = f"{recording.name} is in {there} there, and in {wanted.split} here"
            raise MillraceError(problem, f"{assignment.path} and {wanted.place}", remedy)


class Rules(NamedTuple):
    """How new recordings are placed: shares of hours by split, hours of a subset of train; those
    that are `given` a split, and perhaps a subset, go there before the others are drawn."""

    fractions: Mapping[str, float]
    subset_hours: float
    given: GivenSplits


def place_new(
    country: Country,
    assignment: Assignment,
    placed: list[Placement],
    rules: Rules,
) -> None:
    """Place a country's new recordings in splits, subsets of train, and partitions.

    `placed` are the placements of the country, which are added to.
    """
    fractions, subset_hours, given = rules
    new = {}
    for recording in country.recordings.values():
        if assignment.get(recording.name) is None:
            new[recording.name] = recording
    wanted = {name: given.of(country.name, recording.video_id) for name, recording in new.items()}
    splits = {}
    if new:
        splits = _splits_of(new, placed, fractions, wanted)
    subsets = _Subsets(placed, subset_hours)
    for name, recording in sorted(new.items()):
        split = splits[name]
        group = f"{safe_name(country.name)}-{split}"
        subset = None
        if split == "train":
            subset = subsets.take(recording.hours, wanted[name])
            group += f"-{subset}"
        values = (country.name, recording.video_id, split, subset)
        labels = dict(zip(_LABELS, values, strict=True))
        placed.append(assignment.place(name, sys.intern(group), recording.hours, labels))


class _Subsets:
    """The hours of a country's subsets of train, of which the last one grows until it is full."""

    def __init__(self, placed: Sequence[Placement], most_hours: float) -> None:
        self._most_hours = most_hours
        self._hours: dict[int, float] = defaultdict(float)
        for placement in placed:
            if placement.labels["split"] == "train":
                self._hours[placement.labels["subset_id"]] += placement.cost

    def take(self, hours: float, given: GivenSplit | None) -> int:
        """The subset of a new recording, whose hours count from now on."""
        if given is not None and given.subset is not None:
            subset = given.subset
        else:
            subset = max(self._hours, default=1)
            if self._hours.get(subset) and self._hours[subset] + hours > self._most_hours:
                subset += 1
        self._hours[subset] += hours
        return subset


def _splits_of(
    new: Mapping,
    placed: Sequence[Placement],
    fractions: Mapping,
    wanted: Mapping[str, GivenSplit | None],
) -> dict[str, str]:
    """The split of each new recording of a country: the `wanted` one, or by hours."""
    hours: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for placement in placed:
        hours[placement.labels["split"]] += placement.cost
        counts[placement.labels["split"]] += 1
    splits: dict[str, str] = {}
    lengths: list[tuple[str, float]] = []
    for recording in new.values():
        given = wanted[recording.name]
        if given is None:
            lengths.append((recording.name, recording.hours))
            continue
        splits[recording.name] = given.split
        hours[given.split] += recording.hours
        counts[given.split] += 1
    splits |= assign(lengths, hours, counts, fractions)
    return splits
