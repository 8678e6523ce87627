"""Epochs and batches, as the probes noted them."""

from __future__ import annotations

from typing import Any, NamedTuple

from millrace.audit.checks.findings import Ranks, Seen

Sample = dict[str, str]  # a digest for each field; the field "" is the whole sample


class Draws(NamedTuple):
    """Random generators of the process that made a batch: digests of their states by name."""

    pid: int
    seed: int | None  # of the worker
    start: dict[str, str]  # when the worker began; empty if nobody knows
    after: dict[str, str]  # when the batch was made

    @classmethod
    def parse(cls, note: Seen) -> Draws | None:
        if not note.get("samples") or "random" not in note:
            return None
        return cls(note["pid"], note.get("seed"), note.get("start") or {}, note["random"])


class Batch(NamedTuple):
    """One batch, as the loop received it."""

    digest: str
    size: int  # samples
    worker: int | None
    indices: list[Any] | None  # what the sampler asked for; None for a stream
    samples: list[Sample]  # the batch itself as the only sample, if its samples are not known
    draws: Draws | None  # None if nobody saw how it was made

    @classmethod
    def parse(cls, note: Seen) -> Batch:
        return cls(
            digest=note["batch"],
            size=note["size"],
            worker=note["worker"],
            indices=note.get("indices"),
            samples=note.get("samples") or [{"": note["batch"]}],
            draws=Draws.parse(note),
        )


def parse(notes: list[Seen]) -> list[Batch]:
    return [Batch.parse(note) for note in notes]


class Epoch(NamedTuple):
    """What one rank received in one epoch."""

    batches: list[Batch]
    ended: bool  # False: only its beginning was read
    length: int | None  # of the loader, as it says


def epochs_of(ranks: Ranks) -> list[list[Epoch]]:
    """The epochs of each rank, of the loader alone."""
    return [
        [Epoch(parse(each["notes"]), each["ended"], each.get("length")) for each in rank["plain"]]
        for rank in ranks
    ]
