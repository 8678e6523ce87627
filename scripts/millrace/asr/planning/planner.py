"""Which batch comes at which step on which rank, and how the rest of an epoch is planned for other
ranks: a pure function of (seed, epoch, world size)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from millrace.asr.planning.batches import Batches, fill_last_step
from millrace.asr.planning.cut import BatchBudget, Cut, batch_cost, cut_bucket
from millrace.asr.planning.plan import ChosenSteps, Plan
from millrace.common import hashing
from millrace.common.errors import MillraceError, counted

WINDOW = 20_000
_MOST_RANKS = 1 << 20  # a plan has a batch for each
# Steps whose batches are matched in cost together: enough that their costs lie close.
_STEPS_PER_GROUP = 64
# Purposes of keys: no draw is made twice.
_SHUFFLE = 1
_DEAL = 2
_REPLAN = 3


def plan_epoch(
    durations: Sequence[np.ndarray],
    budgets: Sequence[BatchBudget] | BatchBudget,
    seed: int,
    epoch: int,
    world_size: int,
    window: int | None = WINDOW,
) -> Plan:
    """Plan an epoch over buckets whose rows last `durations[bucket]` seconds, in the order of its
    file.

    Inside a bucket: seeded shuffle, sort by duration inside windows of `window` rows (None: no
    sort), cut at the bucket's budget. The batches of a step come from one bucket and cost about the
    same; the steps of every bucket are spread over the epoch. The remaining batches are matched
    across buckets; if they do not fill the last steps, the most expensive of them are split
    (`split_batches`), and if there are too few rows for that, batches are repeated as fillers. A
    row that alone is over the budget makes a batch of its own. Raises MillraceError for no rows,
    and for durations not finite and above 0.

    >>> durations = [np.array([2.5, 3.0, 1.0])]
    >>> plan = plan_epoch(durations, BatchBudget(seconds=6.0), 42, epoch=0, world_size=1)
    >>> sorted(np.concatenate(list(plan.batches(rank=0))).tolist())
    [0, 1, 2]
    """
    lengths = [np.ascontiguousarray(bucket, np.float32) for bucket in durations]
    if isinstance(budgets, BatchBudget):
        budgets = [budgets] * len(lengths)
    if len(budgets) != len(lengths):
        problem = f"{len(budgets)} budgets for {len(lengths)} buckets"
        raise MillraceError(problem, "batch budgets")
    check_rows(lengths, world_size, window)
    cuts = [
        cut_bucket(bucket, budget, hashing.key(seed, epoch, _SHUFFLE, number), window)
        for number, (bucket, budget) in enumerate(zip(lengths, budgets, strict=True))
    ]
    key = hashing.key(seed, epoch, _DEAL)
    return _assign_steps(_join(cuts, world_size), world_size, seed, epoch, key)


def plan_rest(
    whole: Callable[[int], Plan], spans: Sequence[tuple[int, int]], world_size: int
) -> Plan:
    """Plan what is left of an epoch after `spans`: (world size, steps done) of each stretch of it.

    `whole` gives the plan of the whole epoch for a number of ranks. The last stretch is replanned
    only if its world size differs: else go on in that plan at its step.
    """
    worlds = [world for world, _ in spans] + [world_size]
    plan = whole(worlds[0])
    for (_, steps), world in zip(spans, worlds[1:], strict=True):
        if world != plan.world_size:
            plan = replan(plan, steps, world)
    return plan


def replan(plan: Plan, done_steps: int, world_size: int) -> Plan:
    """The rows of an epoch not seen after `done_steps` steps of `plan`, for another number of
    ranks.

    Pure in its arguments; batches stay as cut, but for splits. After the last step it is a plan of
    no steps. Raises MillraceError for steps that `plan` does not have.
    """
    if not 0 <= done_steps <= len(plan) or world_size < 1:
        ranks = counted(world_size, "rank")
        problem = f"there is nothing to plan after step {done_steps} of {len(plan)} for {ranks}"
        raise MillraceError(problem, f"epoch {plan.epoch}", "Begin the next epoch")
    # Batches not yet used, without fillers.
    counts = np.diff(plan.offsets)
    done = done_steps * plan.world_size
    has_rows = counts[done:] > 0
    unused = np.flatnonzero(has_rows) + done
    bucket = np.asarray(plan.bucket[unused])
    group = np.zeros(len(unused), np.int64)
    batches_per_group = _STEPS_PER_GROUP * world_size
    for number in np.unique(bucket):
        of_bucket = np.flatnonzero(bucket == number)
        numbers = np.arange(len(of_bucket))
        group[of_bucket] = numbers // batches_per_group
    table = Batches(
        rows=plan.rows,
        start=np.asarray(plan.offsets[unused]),
        count=np.asarray(counts[unused]),
        longest=np.asarray(plan.longest[unused]),
        seconds=np.asarray(plan.seconds[unused]),
        bucket=bucket,
        group=group,
    )
    key = hashing.key(plan.seed, plan.epoch, _REPLAN, done_steps, world_size, len(plan.spans))
    rest = _assign_steps(table, world_size, plan.seed, plan.epoch, key)
    rest.spans = (*plan.spans, (plan.world_size, done_steps))
    return rest


def every_bucket_first(plan: Plan) -> ChosenSteps:
    """The same steps in another order: first a step of every bucket, the rarest one's before all
    others."""
    buckets = plan.bucket.reshape(len(plan), plan.world_size)
    counts = np.bincount(plan.bucket, minlength=1)
    first: list[int] = []
    for bucket in np.argsort(counts, kind="stable"):
        is_of_bucket = (buckets == bucket).any(axis=1)
        steps = np.flatnonzero(is_of_bucket)
        is_there = (buckets[first] == bucket).any()
        if len(steps) and not is_there:
            first.append(int(steps[0]))
    others = np.setdiff1d(np.arange(len(plan)), first)
    return ChosenSteps([(plan, step) for step in [*first, *others.tolist()]])


def check_rows(lengths: Sequence[np.ndarray], world_size: int, window: int | None) -> None:
    """Raise MillraceError for rows and numbers that `plan_epoch` cannot plan."""
    if not 1 <= world_size <= _MOST_RANKS or (window is not None and window < 1):
        problem = f"there is no plan for world size {world_size} and window {window}"
        remedy = f"Give 1 to {_MOST_RANKS:,} ranks, and a window from 1"
        raise MillraceError(problem, "batch plan", remedy)
    if not any(map(len, lengths)):
        remedy = "See rejects.jsonl of the buckets"
        raise MillraceError("there are no rows to plan", "batch plan", remedy)
    for number, bucket in enumerate(lengths):
        where = f"bucket {number}"
        is_right = np.isfinite(bucket) & (bucket > 0)
        if not is_right.all():
            problem = "a duration is not finite and above 0"
            raise MillraceError(problem, where, "Build the buckets again")
        if len(bucket) > 0xFFFFFFFF:
            problem = f"{len(bucket)} rows are too many for one bucket"
            raise MillraceError(problem, where, "Add edges")


def _join(cuts: list[Cut], world_size: int) -> Batches:
    """The batches of all buckets; row numbers count over all buckets."""
    lengths = [len(cut.rows) for cut in cuts]
    firsts = _ends(np.array(lengths))
    kind = np.int32 if firsts[-1] < 1 << 31 else np.int64
    rows = np.empty(firsts[-1], kind)
    groups = []
    starts = []
    counts = []
    for cut, first in zip(cuts, firsts.tolist(), strict=False):
        own = rows[first : first + len(cut.rows)]
        own[:] = cut.rows
        own += kind(first)
        starts.append(cut.starts + first)
        counts.append(_lengths(cut.starts, len(cut.rows)))
        groups.append(_groups(cut, world_size))
    numbers = np.arange(len(cuts), dtype=np.int16)
    return Batches(
        rows=rows,
        start=np.concatenate(starts),
        count=np.concatenate(counts),
        longest=np.concatenate([cut.longest for cut in cuts]).astype(np.float32),
        seconds=np.concatenate([cut.seconds for cut in cuts]),
        bucket=np.repeat(numbers, [len(cut.starts) for cut in cuts]),
        group=np.concatenate(groups).astype(np.int64),
    )


def _ends(lengths: np.ndarray) -> np.ndarray:
    """int64: 0, and where each of the parts ends that lie one after the other."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _lengths(starts: np.ndarray, end: int) -> np.ndarray:
    """The lengths of parts that begin at `starts` and lie one after the other, up to `end`."""
    return np.diff(np.append(starts, end))


def _groups(cut: Cut, world_size: int) -> np.ndarray:
    """The group of every batch: as many windows as make about 64 steps."""
    windows = int(cut.windows.max(initial=0)) + 1
    per_window = max(1.0, len(cut.starts) / windows)
    windows_per_group = round(_STEPS_PER_GROUP * world_size / per_window)
    return cut.windows // max(1, windows_per_group)


def _assign_steps(table: Batches, world: int, seed: int, epoch: int, key: np.uint64) -> Plan:
    """Assign batches to steps of `world` batches of about equal cost, and order the steps of the
    epoch."""
    steps, phase, left = _steps_of_buckets(table, world, key)

    # What remains of all buckets fills the last steps, matched in cost across buckets.
    if len(left):
        whole, left = _add_rows(steps, left, table.count, world)
        steps = steps[whole]
        phase = phase[whole]
    table, left, fillers, splits = fill_last_step(table, left, world)
    cost = batch_cost(table.count[left], table.longest[left])
    by_cost = left[np.lexsort((left, cost))]
    mixed = by_cost.reshape(-1, world)

    steps = _in_order(steps, phase, mixed, table.bucket, key)
    return _assemble(table, steps, fillers, seed, epoch, splits)


def _steps_of_buckets(
    table: Batches, world: int, key: np.uint64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps [n, world] of one bucket each, their phases in its order, and the batches left."""
    # Match costs inside the groups of a bucket first, then what remains inside the bucket.
    cost = batch_cost(table.count, table.longest)
    every = np.arange(len(cost))
    one_group = np.zeros_like(table.group)
    near, left = _match_costs(every, table.bucket, table.group, cost, world)
    far, left = _match_costs(left, table.bucket, one_group, cost, world)

    # A bucket's groups follow each other, their steps in random order; steps over several groups go
    # anywhere.
    groups = int(table.group.max(initial=0)) + 1
    first_near = near[:, 0]
    first_far = far[:, 0]
    phase_near = _draw(key, first_near) + table.group[first_near]
    phase_far = _draw(key, first_far) * groups
    phase = np.concatenate([phase_near, phase_far])
    return np.concatenate([near, far]), phase, left


def _in_order(
    steps: np.ndarray, phase: np.ndarray, mixed: np.ndarray, bucket: np.ndarray, key: np.uint64
) -> np.ndarray:
    """All steps in the order of the epoch: every bucket's spread evenly over it, and the mixed
    ones anywhere."""
    first = steps[:, 0]
    spread = _spread(phase, bucket[first], first, key)
    anywhere = _draw(key, mixed[:, 0])
    place = np.concatenate([spread, anywhere])
    order = np.argsort(place, kind="stable")
    steps = np.concatenate([steps, mixed])[order]

    # Which rank gets which batch of a step is drawn, so that no rank has the most expensive all the
    # time.
    numbers = steps.astype(np.uint64).ravel()
    draw = hashing.mix(numbers ^ ~key).reshape(steps.shape)
    ranks = np.argsort(draw, axis=1, kind="stable")
    return np.take_along_axis(steps, ranks, axis=1)


def _match_costs(
    ids: np.ndarray, bucket: np.ndarray, group: np.ndarray, cost: np.ndarray, world: int
) -> tuple[np.ndarray, np.ndarray]:
    """Steps [n, world] of batches next to each other in cost, inside (bucket, group); the cheapest
    remain."""
    order = np.lexsort((ids, cost[ids], group[ids], bucket[ids]))
    ids = ids[order]
    is_first = np.ones(len(ids), bool)
    other_bucket = np.diff(bucket[ids]) != 0
    other_group = np.diff(group[ids]) != 0
    is_first[1:] = other_bucket | other_group
    starts = np.flatnonzero(is_first)
    counts = _lengths(starts, len(ids))

    place = _places(starts, counts)
    remaining = np.repeat(counts % world, counts)
    is_matched = place >= remaining
    return ids[is_matched].reshape(-1, world), ids[~is_matched]


def _places(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The place of every element in its part: 0, 1, ..."""
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def _add_rows(
    steps: np.ndarray, left: np.ndarray, counts: np.ndarray, world: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the steps that stay, and the batches left, with those of the steps broken up."""
    # Steps with the most rows are broken up until what is left has a row for every batch of whole
    # steps.
    rows = counts[steps].sum(axis=1)
    order = np.argsort(-rows, kind="stable")
    taken = 0
    have = int(counts[left].sum())
    whole_steps = math.ceil(len(left) / world)
    while taken < len(order) and have < (whole_steps + taken) * world:
        have += int(rows[order[taken]])
        taken += 1
    broken_up = steps[order[:taken]].ravel()
    left = np.concatenate([left, broken_up])
    return np.sort(order[taken:]), left


def _draw(key: np.uint64, ids: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) for every id."""
    of_ids = hashing.mix(ids.astype(np.uint64))
    bits = hashing.mix(of_ids ^ key) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _spread(phase: np.ndarray, bucket: np.ndarray, ids: np.ndarray, key: np.uint64) -> np.ndarray:
    """Places in [0, 1) of steps: each bucket's evenly over the epoch, in the order of `phase`."""
    order = np.lexsort((ids, phase, bucket))
    starts = np.flatnonzero(np.diff(bucket[order], prepend=-1))
    counts = _lengths(starts, len(order))
    slot = _places(starts, counts) + _draw(~key, ids[order])
    slots = np.repeat(counts, counts)
    place = np.empty(len(order))
    place[order] = slot / slots
    return place


def _assemble(
    table: Batches, steps: np.ndarray, fillers: dict[int, int], seed: int, epoch: int, splits: int
) -> Plan:
    """The plan whose batch k = step * world + rank is `steps[step, rank]`, its rows in the order of
    use."""
    ids = steps.ravel()
    counts = table.count[ids]
    offsets = _ends(counts)
    rows = np.empty(offsets[-1], table.rows.dtype)
    # In pieces: the index arrays are four times the size of the rows.
    for low in range(0, len(ids), 1 << 16):
        high = min(low + (1 << 16), len(ids))
        start = offsets[low]
        end = offsets[high]
        moved = table.start[ids[low:high]] - offsets[low:high]
        shift = np.repeat(moved, counts[low:high])
        rows[start:end] = table.rows[shift + np.arange(start, end)]
    place: dict[int, int] = {}
    if fillers:
        place = {batch: at for at, batch in enumerate(ids.tolist())}
    pairs = sorted((place[filler], place[source]) for filler, source in fillers.items())
    return Plan(
        world_size=steps.shape[1],
        seed=seed,
        epoch=epoch,
        rows=rows,
        offsets=offsets,
        longest=table.longest[ids],
        seconds=table.seconds[ids],
        bucket=table.bucket[ids],
        fillers=np.array(pairs, np.int64).reshape(-1, 2),
        split_batches=splits,
    )
