"""Which worker of which rank gave which sample: the first epoch of all ranks, counted; by what a
sample is known again, and which repeats only fill the last step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from millrace.audit.checks.records import Batch, Epoch, Sample
from millrace.audit.runner.probes import Seen

Place = tuple[int, int | None]  # rank, worker (None: the loader has no workers)


def share_of_rank(loader: Seen) -> int:
    """Samples that each rank takes: a DistributedSampler repeats some until all have as many."""
    return -(-loader["samples"] // loader["replicas"])


class Dataset(NamedTuple):
    """What one process read from the dataset, without sampler and workers."""

    iterable: bool  # a stream, or what is no DataLoader
    samples: list[Sample]
    stable: list[str]  # fields that were the same in a second pass
    complete: bool  # both passes came to their end
    all_drawn: bool  # the sampler leaves no sample out
    reordered: bool  # the second pass had another order
    shuffled_by: list[str]  # functions that were called
    frameworks: list[str]  # that may replace the sampler
    drawn_again: dict[str, int]  # how often the sampler draws rows, if more than once
    makes_batches: bool  # it is a stream of batches
    accelerated: bool = False  # accelerate has shared it out over ranks already
    rows: int | None = None  # its length, of one that is asked for samples


@dataclass(frozen=True)
class Shares:
    """Samples by the rank and worker that gave them, and how often the dataset holds each.

    Several samples may have one name, if nothing but a class is the same whenever they are read.
    """

    streams: dict[Place, list[str]]  # names of samples, in the order of the batches
    held: Counter[str]
    due: Counter[str]  # as often as the sampler of one process draws it, if that is more
    ranks: int
    largest_batch: int
    are_full: bool  # of a rank's batches one at most is smaller than the largest
    from_sampler: bool  # each batch was asked for by indices; a stream only names what it gave
    complete: bool  # `held` is all there is
    rows: int | None  # of the dataset; None if it was not read to its end

    @property
    def workers(self) -> int:
        """Of the rank that has most."""
        of_ranks = Counter(rank for rank, _ in self.streams)
        return max(of_ranks.values(), default=1)

    @property
    def total(self) -> Counter[str]:
        return _sum(map(Counter, self.streams.values()))

    @property
    def one_step(self) -> int:
        """Samples of one step of all ranks. Without a sampler each worker makes batches of its
        own."""
        makers = self.ranks if self.from_sampler else self.ranks * self.workers
        return makers * self.largest_batch

    @property
    def filling(self) -> int:
        """Repeated samples that are no bug: they make the last step of all ranks full.

        Of batches by length, or by group, it may be a whole batch that comes again.
        """
        missing = self.one_step - 1
        if self.from_sampler and self.are_full:
            missing = -len(self.held) % self.one_step
        return max(0, min(missing, self.held.total() - 1))

    def draws_with_replacement(self) -> bool:
        """Whether the sampler asked one rank for a sample more often than the dataset holds it.

        A sample that the dataset of rank 0 does not hold is none that is drawn twice: the dataset
        of another rank may hold others.
        """
        if not self.from_sampler:
            return False
        return any(map(self._exceeds, map(self._given_by, range(self.ranks))))

    def repeated_by_workers(self) -> Counter[str]:
        """Samples that several workers of one rank gave, by how often too often."""
        repeated: Counter[str] = Counter()
        for rank in range(self.ranks):
            workers = self._workers_of(rank)
            too_often = _sum(workers) - self.due
            for name, count in too_often.items():
                if sum(name in worker for worker in workers) > 1:
                    repeated[name] = max(repeated[name], count)
        return repeated

    def repeated_by_ranks(self) -> Counter[str]:
        """Samples that several ranks gave, by how often too often."""
        given = map(self._given_by, range(self.ranks))
        # What one rank repeats by itself is a matter of its workers: count it once here.
        return _sum(counts & self.due for counts in given) - self.due

    def hardly_repeats(self) -> bool:
        """Whether indices repeat only to fill the last step, so that they name samples by
        themselves."""
        repeated = self.repeated_by_workers() | self.repeated_by_ranks()
        return self.from_sampler and repeated.total() <= self.filling

    def gives_again(self) -> bool:
        """Whether one worker gave a sample more often than the dataset does by itself: it may draw
        with replacement."""
        return any(map(self._exceeds, map(Counter, self.streams.values())))

    def came_whole(self) -> bool:
        """Whether every sample of the dataset came, even if the time was over before the loader
        could say that it ends."""
        if self.rows is None:
            return False
        came = self.total & self.held
        return came.total() >= self.rows

    def lost(self) -> Counter[str]:
        return self.held - self.total

    def unknown(self) -> Counter[str]:
        """What came, but is none of the samples that the dataset gives by itself: batches that
        nobody could take apart, or samples that were padded or changed when they were collated."""
        total = self.total
        for name in self.held:
            del total[name]
        return total

    def _exceeds(self, given: Counter[str]) -> bool:
        """Whether a sample was given more often than the dataset holds it."""
        return any(count > max(1, self.held[name]) for name, count in given.items())

    def _workers_of(self, rank: int) -> list[Counter[str]]:
        return [Counter(names) for place, names in self.streams.items() if place[0] == rank]

    def _given_by(self, rank: int) -> Counter[str]:
        return _sum(self._workers_of(rank))


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    return sum(counts, Counter())


def count(epochs: list[Epoch], dataset: Dataset) -> Shares | None:
    """The shares of all ranks in one epoch; None if nothing tells one sample from another."""
    batches = [batch for epoch in epochs for batch in epoch.batches]
    held_keys = _held_keys(dataset)
    by_index = _known_by_index(batches, dataset, held_keys)
    if by_index or held_keys:
        return _shares(epochs, dataset, held_keys, by_index)
    shares = _shares(epochs, dataset, held_keys, by_index=True)
    return shares if shares.hardly_repeats() else None


def _shares(epochs: list[Epoch], dataset: Dataset, held_keys: list[str], by_index: bool) -> Shares:
    """The shares, where samples are known by their index, or by their content."""
    row_of = _rows(held_keys)
    streams: dict[Place, list[str]] = defaultdict(list)
    sizes: dict[int, list[int]] = defaultdict(list)  # of the batches of each rank
    for rank, epoch in enumerate(epochs):
        for batch in epoch.batches:
            keys = _keys(batch, dataset.stable, by_index)
            sizes[rank].append(len(keys))
            streams[rank, batch.worker] += [row_of.get(key, key) for key in keys]
    largest = max(chain([1], *sizes.values()))

    asked = [batch.indices for epoch in epochs for batch in epoch.batches]
    held = Counter(row_of.get(key, key) for key in held_keys)
    if by_index:  # the dataset holds each index once
        held = Counter(set().union(*streams.values()))
    names_are_rows = by_index or (dataset.complete and row_of)
    return Shares(
        streams=dict(streams),
        held=held,
        due=held | Counter(dataset.drawn_again) if names_are_rows else held,
        ranks=len(epochs),
        largest_batch=largest,
        are_full=_are_full(sizes.values(), largest),
        from_sampler=not dataset.iterable and all(indices is not None for indices in asked),
        complete=by_index or dataset.complete,
        rows=len(dataset.samples) if dataset.complete else None,
    )


def _are_full(sizes: Iterable[list[int]], largest: int) -> bool:
    """Whether of each rank's batches one at most is smaller than the largest."""
    smaller = (sum(size < largest for size in of_rank) for of_rank in sizes)
    return all(count <= 1 for count in smaller)


def _held_keys(dataset: Dataset) -> list[str]:
    """What tells the samples of the dataset apart; nothing if each read of them gives others."""
    if not dataset.stable:
        return []
    return [content_key(sample, dataset.stable) for sample in dataset.samples]


def _rows(keys: list[str]) -> dict[str, str]:
    """The names of samples in findings: their rows in the dataset, where contents say which."""
    if len(set(keys)) < len(keys):
        return {}
    return {key: str(row) for row, key in enumerate(keys)}


def _keys(batch: Batch, stable: list[str], by_index: bool) -> list[str]:
    """What tells the samples of a batch from others."""
    if by_index:
        return [str(index) for index in batch.indices or ()]
    return [content_key(sample, stable) for sample in batch.samples]


def _known_by_index(batches: list[Batch], dataset: Dataset, held_keys: list[str]) -> bool:
    """Whether a sample is known by its index, and not by its content."""
    if any(batch.indices is None for batch in batches):
        return False

    # Ids by the loader's sample_ids, and objects that a sampler hands out (cuts), are names by
    # themselves.
    indices = [index for batch in batches for index in batch.indices or ()]
    if indices and all(isinstance(index, str) for index in indices):
        return True

    # Where the dataset is asked for whole batches, no sample is seen by itself.
    if any(len(batch.indices or ()) != len(batch.samples) for batch in batches):
        return True

    if not dataset.stable:
        return False

    # Contents that all differ say more than indices, which may mean other samples on another rank.
    are_unique = len(set(held_keys)) == len(held_keys) > 0
    if are_unique and dataset.complete:
        return False
    return _means_the_same_everywhere(batches, dataset.stable)


def _means_the_same_everywhere(batches: list[Batch], stable: list[str]) -> bool:
    """Whether each index names one sample on all ranks, as far as contents can tell."""
    pairs = {
        (str(index), content_key(sample, stable))
        for batch in batches
        for index, sample in zip(batch.indices or (), batch.samples, strict=False)
    }
    return len(pairs) == len({index for index, _ in pairs})


def content_key(sample: Sample, stable: list[str]) -> str:
    """What identifies a sample: the whole, or else its fields that are not random."""
    if "" in stable or not set(stable) <= sample.keys():
        return sample[""]
    return " ".join(sample[name] for name in stable)


def draws_of(batches: list[Batch], stable: list[str]) -> list[list[Any]]:
    """The indices of each batch in order, or else what identifies each sample; nothing if they
    cannot be known again."""
    if all(batch.indices is not None for batch in batches):
        return [batch.indices or [] for batch in batches]
    samples = [sample for batch in batches for sample in batch.samples]
    are_known = stable and all(set(stable) <= sample.keys() for sample in samples)
    if are_known:
        return [[content_key(sample, stable)] for sample in samples]
    return []


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    """The samples of batches, in order."""
    return list(chain.from_iterable(batches))
