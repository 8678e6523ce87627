"""Epochs and batches, as the probes noted them."""

from __future__ import annotations

from typing import Any, NamedTuple

Sample = dict[str, str]  # a digest for each field; the field "" is the whole sample
States = dict[str, str]  # digests of the states of random generators, by name


class Batch(NamedTuple):
    """One batch, as the loop received it, and what was seen of the process that made it."""

    batch: str  # its digest
    size: int  # samples
    worker: int | None
    indices: list[Any] | None  # what the sampler asked for; None for a stream
    samples: list[Sample]  # the batch itself as the only sample, if its samples are not known
    start: States  # when the worker began; empty if nobody knows
    random: States  # when the batch was made; empty if nobody saw how
    seed: int | None = None  # of the worker
    pid: int = 0


class Epoch(NamedTuple):
    """What one rank received in one epoch."""

    batches: list[Batch]
    ended: bool  # False: only its beginning was read
    length: int | None  # of the loader, as it says


class Reading(NamedTuple):
    """The epochs of one rank, of the loader alone."""

    plain: list[Epoch]
