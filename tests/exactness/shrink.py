"""The shortest plan that still shows a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.exactness.plans import SIZES, SMALL_SIZES, Launch, Plan, Stop

MOST_TRIES = 40


def shortest(plan: Plan, shows: Callable[[Plan], bool]) -> Plan:
    """A plan of which no simpler neighbour shows it any more, after at most MOST_TRIES runs."""
    tried = {plan}
    tries = 0
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for simpler in sorted(set(simpler_plans(plan)), key=lambda plan: plan.size):
            if simpler in tried or tries == MOST_TRIES:
                continue
            tried.add(simpler)
            tries += 1
            if shows(simpler):
                plan, is_shorter = simpler, True
                break
    return plan


def simpler_plans(plan: Plan) -> Iterator[Plan]:
    """Plans in the same column with one thing less: a stop, an epoch, ranks, workers, samples,
    batches."""
    for simpler in _neighbours(plan):
        if simpler.column == plan.column and simpler.size < plan.size:
            yield simpler


def _neighbours(plan: Plan) -> Iterator[Plan]:
    launches = plan.launches
    for number in range(len(launches) - 1):
        yield plan._replace(launches=launches[:number] + launches[number + 1 :])
    for samples in (*SMALL_SIZES, *SIZES):
        yield plan._replace(samples=samples)
    yield plan._replace(batch_size=2)
    if plan.epochs > 1:
        yield plan._replace(epochs=plan.epochs - 1)

    for ranks, workers in ((1, None), (2, None), (None, 0), (None, 1), (None, 2)):
        yield plan._replace(launches=tuple(_in(launch, ranks, workers) for launch in launches))
    for number, launch in enumerate(launches):
        for simpler in _simpler_launches(launch):
            changed = (*launches[:number], simpler, *launches[number + 1 :])
            yield plan._replace(launches=changed)


def _in(launch: Launch, ranks: int | None, workers: int | None) -> Launch:
    ranks = launch.ranks if ranks is None else ranks
    workers = launch.workers if workers is None else workers
    return launch._replace(ranks=ranks, workers=workers)


def _simpler_launches(launch: Launch) -> Iterator[Launch]:
    for fewer in (1, 2):
        yield launch._replace(ranks=fewer)
    for fewer in (0, 1):
        yield launch._replace(workers=fewer)
    stop = launch.stop
    if stop is None:
        return
    yield launch._replace(stop=stop._replace(unsaved=0))
    if stop.epochs:
        yield launch._replace(stop=stop._replace(epochs=stop.epochs - 1))
    if stop.batches is None:
        return
    for batches in (0, 1, 2, stop.batches - 1):
        if stop.unsaved <= batches < stop.batches:
            yield launch._replace(stop=Stop(stop.epochs, batches, stop.unsaved))
