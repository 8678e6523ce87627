"""Batches of versions: anchors with others of their cliques, read and augmented where this runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from millrace.common.errors import MillraceError
from millrace.common.loading.bad_samples import BadSample
from millrace.common.loading.plan import BatchRequest, Plan
from millrace.common.loading.slots import BatchSlots, require_room
from millrace.common.training import seeding
from millrace.music.features.decisions import check_values
from millrace.music.features.reader import FeatureError
from millrace.music.features.track import Refused
from millrace.music.sampling.cliques import Cliques
from millrace.music.sampling.windows import Geometry, ShingleReader

log = logging.getLogger("millrace")
_MOST_SAID = 20  # unreadable tracks that one worker names; all are counted
_MOST_UNREADABLE = 100  # cliques in a row without one readable track


@dataclass
class TrackBatch:
    """x float32 (B, S, C, T), cc and ii int64 (B,): first all anchors, then the second version of
    each, ...

    `bad` lists tracks that could not be read: another version of their clique took their place.
    """

    step: int
    x: Tensor
    cc: Tensor
    ii: Tensor
    n_per_class: int
    epoch: int = 0
    filler: bool = False
    bad: list[BadSample] = field(default_factory=list)

    @property
    def planned(self) -> int:
        return len(self.ii)

    def to(self, device: torch.device, non_blocking: bool = False) -> TrackBatch:
        return replace(
            self,
            x=self.x.to(device, non_blocking=non_blocking),
            cc=self.cc.to(device, non_blocking=non_blocking),
            ii=self.ii.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> TrackBatch:
        return replace(self, x=self.x.pin_memory())


class Drawing(NamedTuple):
    """How versions are drawn: so many of each anchor's clique, and how probably the anchor itself
    is one of the others."""

    seed: int
    n_per_class: int = 4
    p_samesong: float = 0.0


class CliqueDataset:
    """One rank's batches for BatchLoader; every draw is a function of seed, epoch and anchor.

    A worker opens its own files. A track that cannot be read is replaced by another of its clique,
    said once by each worker, and counted; never by zeros.
    """

    transform: Callable[[TrackBatch], TrackBatch] | None = None

    def __init__(
        self,
        cliques: Cliques,
        reader: ShingleReader,
        geometry: Geometry,
        drawing: Drawing,
        rank: int = 0,
        augment: Callable[[Tensor, np.random.Generator], Tensor] | None = None,
    ) -> None:
        self.cliques = cliques
        self.reader = reader
        self.geometry = geometry
        self.seed = drawing.seed
        self.n_per_class = drawing.n_per_class
        self.p_samesong = drawing.p_samesong
        self.rank = rank
        self.augment = augment
        self.plan: Plan | None = None
        self._said: set[int] = set()

    @property
    def rows(self) -> int:
        return len(self.cliques) * self.n_per_class

    def __len__(self) -> int:
        return len(self.plan or ())

    def __getstate__(self) -> dict:
        return {**self.__dict__, "plan": None, "_said": set()}

    def new_slots(self, workers: int, per_worker: int) -> BatchSlots | None:
        """None: batches cross in memory of their own, for which there must be room."""
        anchors = 0
        if self.plan:
            anchors = len(self.plan.batch(0, self.rank))
        length, size, step, _ = self.geometry
        further = max(0, math.ceil((length - size) / step))
        shingles = 1 + further
        values = shingles * size * self.reader.contract.bins
        bytes_each = self.n_per_class * values * np.dtype(np.float32).itemsize
        batches = workers * max(per_worker - 2, 1)
        require_room(batches * anchors * bytes_each)
        return None

    def check(self, batch: TrackBatch) -> None:
        """Raise MillraceError if features are NaN, decibels or below 0, or are no float32 (B, S, C,
        T)."""
        try:
            check_values([batch.x.numpy()])
        except Refused as refused:
            # A short window may be silent.
            if refused.reason != "constant":
                remedy = "The model takes linear magnitudes of a CQT"
                raise MillraceError(str(refused), f"step {batch.step}", remedy) from None
        expected = (len(batch.ii), self.reader.contract.bins, self.geometry.size)
        is_right = (batch.x.shape[0], *batch.x.shape[2:]) == expected
        if batch.x.dtype != torch.float32 or not is_right:
            problem = f"shingles are {batch.x.dtype} {tuple(batch.x.shape)}"
            remedy = "The model takes float32 (B, S, bins, frames)"
            raise MillraceError(problem, f"step {batch.step}", remedy)

    def place(self, row: int, message: str) -> str:
        """The id of a recording."""
        return self.reader.windows.index.id(int(self.cliques.tracks[row]))

    def load(self, request: BatchRequest, slots: BatchSlots | None = None) -> TrackBatch:
        """Read the versions of the anchors of one step."""
        bad: list[BadSample] = []
        groups = [self._group(int(anchor), request.epoch, bad) for anchor in request.rows]
        order = [group[slot] for slot in range(self.n_per_class) for group in groups]
        rows = np.array([row for row, _ in order])
        return TrackBatch(
            request.step,
            x=torch.stack([shingles for _, shingles in order]),
            cc=torch.from_numpy(self.cliques.cliques[rows]),
            ii=torch.from_numpy(self.cliques.ids[rows]),
            n_per_class=self.n_per_class,
            epoch=request.epoch,
            filler=request.filler,
            bad=bad,
        )

    def _group(self, anchor: int, epoch: int, bad: list[BadSample]) -> list[tuple[int, Tensor]]:
        """(row, shingles) of n_per_class versions: the anchor, then others in random order, few of
        them repeated in turn. Of a clique that cannot be read at all, the next one's."""
        own = anchor
        for _ in range(_MOST_UNREADABLE):
            group = self._readable(self._versions(own, epoch), epoch, bad)
            if group:
                return group
            own = self.cliques.members(own).stop % len(self.cliques)
        problem = f"no track of {_MOST_UNREADABLE} cliques in a row can be read"
        remedy = "Build the index again, or bring the files"
        raise MillraceError(problem, str(bad[-1].message), remedy)

    def _versions(self, anchor: int, epoch: int) -> list[int]:
        """The anchor, then the others of its clique in random order; itself among them by
        chance."""
        draws = seeding.generator(self.seed, "versions", epoch, int(self.cliques.ids[anchor]))
        others = [row for row in self.cliques.members(anchor) if row != anchor]
        if draws.random() < self.p_samesong:
            others.append(anchor)
        order = draws.permutation(len(others))
        return [anchor, *(others[place] for place in order)]

    def _readable(
        self, versions: list[int], epoch: int, bad: list[BadSample]
    ) -> list[tuple[int, Tensor]]:
        """(row, shingles) of n_per_class of the versions; none if no version can be read."""
        group: list[tuple[int, Tensor]] = []
        while versions and len(group) < self.n_per_class:
            row = versions[0]
            if group:
                others = versions[1:] or versions
                row = others[(len(group) - 1) % len(others)]
            try:
                shingles = self._shingles(versions[0], row, len(group), epoch)
            except FeatureError as error:
                self._report(row, error)
                bad.append(BadSample(row, int(self.cliques.ids[row]), error.reason, str(error)))
                versions = [version for version in versions if version != row]
                continue
            group.append((row, shingles))
        return group if versions else []

    def _report(self, row: int, error: FeatureError) -> None:
        """Say once that a track cannot be read."""
        if row in self._said or len(self._said) >= _MOST_SAID:
            return
        self._said.add(row)
        log.warning("replaced by another of its clique: %s", error)

    def _shingles(self, anchor: int, row: int, slot: int, epoch: int) -> Tensor:
        """Of a window that ends within the track if it can."""
        frames = int(self.cliques.frames[row])
        hop = float(self.cliques.hops[row])
        address = (epoch, int(self.cliques.ids[anchor]), slot)
        whole = self.reader.length(frames, hop)
        usable = min(whole, self.geometry.longest or whole)
        spare = max(usable - self.geometry.length, 0)
        draws = seeding.generator(self.seed, "start", *address)
        start = int(draws.integers(0, spare + 1))
        track = int(self.cliques.tracks[row])
        shingles = torch.from_numpy(self.reader.read(track, frames, hop, start, self.geometry))
        if self.augment is None:
            return shingles
        return self.augment(shingles, seeding.generator(self.seed, "augment", *address))
