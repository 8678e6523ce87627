"""`open_loader`: the loader of a bucket folder for training code outside of Millrace; which rank it
serves, and how it goes on after a resume."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.epochs import Basis, EpochPlans, digest
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import path_of, whole
from millrace.common.loading.loader import BatchDataset, BatchLoader


def open_loader(  # noqa: PLR0913 - each is a choice of users, by its name
    bucket_dir: str | os.PathLike,
    workers: int = 0,
    seconds: float = 240.0,
    seed: int = 42,
    world_size: int | None = None,
    split: str = "train",
    *,
    rank: int | None = None,
    tar_root: str | os.PathLike | None = None,
    **options: Any,
) -> BatchLoader:
    """Batches of at most `seconds` of padded audio, those of this rank; `options` are
    BucketedDataset's.

        from millrace import open_loader

        for batch in open_loader("results/asr/buckets", seconds=60):
            print(batch.audio.shape, batch.lengths.tolist(), batch.transcripts[0])

    Rank and world size are those of `current_rank`; what is given must agree with them. `tar_root`
    is the folder that tars were moved to. Raises MillraceError.
    """
    bucket_dir = path_of("bucket_dir", bucket_dir)
    if tar_root is not None:
        tar_root = path_of("tar_root", tar_root)
    place = checked_place(rank, world_size)
    seed = whole("seed", seed)
    budget = BatchBudget(seconds)
    table = RowTable.open(bucket_dir, split=split, tar_root=tar_root)
    durations = table.durations()
    basis: Basis = {
        "split": split,
        "seconds": float(seconds),
        "seed": seed,
        "buckets": _digest(table, durations),
    }
    plans = EpochPlans(durations, budget, seed, place.world_size, basis)
    return RankLoader(BucketedDataset(table, rank=place.rank, **options), workers, plans)


def current_rank() -> tuple[int, int]:
    """Rank and world size: of the initialised process group, else RANK and WORLD_SIZE, else 0 of 1.

    Raises MillraceError if the environment names only one of the two, or numbers that do not fit.
    """
    running = _running()
    return running.rank, running.world_size


class RankLoader(BatchLoader):
    """The batches of one rank, whose state any number of ranks can go on from.

        from millrace import open_loader

        loader = open_loader("results/asr/buckets", seconds=1)
        for batch in loader:
            state = loader.state_dict()  # JSON; after this batch
            break
        resumed = open_loader("results/asr/buckets", seconds=1)  # with any ranks and workers
        resumed.load_state_dict(state)
        print(resumed.steps_left, "batches are left")

    `load_state_dict` of a state by other ranks plans the rest of its epoch: the next pass has the
    rows that were not handed out, each once; passes after it are whole. It raises MillraceError for
    a state of other rows, budget or seed.

    Read in another rank than it was opened for, it is refused: each sample would come twice. That
    is where ranks start later than the loader, as in a script that Lightning starts again for each
    GPU.
    """

    def __init__(
        self, dataset: BatchDataset, workers: int, plans: EpochPlans, **options: Any
    ) -> None:
        super().__init__(dataset, workers, plans=plans, **options)
        self.epoch_plans = plans

    @property
    def steps_left(self) -> int:
        """Batches of the next pass, which begins in the middle after `load_state_dict`."""
        return len(self.plan) - (self._resume_at or 0)

    @property
    def whole_steps(self) -> int:
        """Steps of an epoch that these ranks do alone; about those of other epochs too."""
        spans = [*self.plan.spans, (self.plan.world_size, len(self.plan))]
        batches = sum(ranks * steps for ranks, steps in spans)
        return math.ceil(batches / self.plan.world_size)

    def __len__(self) -> int:
        """Steps of the epoch, those that were done with other ranks included."""
        return sum(steps for _, steps in self.plan.spans) + len(self.plan)

    def state_dict(self) -> dict[str, Any]:
        """Where in which plan the loader stands, and what that rests on: a few hundred bytes."""
        return self.epoch_plans.state(self.plan, self._position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        plan, step = self.epoch_plans.resumed(state)
        self.plan = plan
        self._position = self._resume_at = step

    def __iter__(self) -> Iterator[Any]:
        opened = _Place(self._dataset.rank, self.epoch_plans.world_size, "as opened")
        running = _running()
        if running.source and opened[:2] != running[:2]:
            remedy = (
                "Open the loader where the ranks run: after init_process_group, in train_dataloader"
            )
            raise MillraceError(
                f"the loader was opened for {opened}, but this is {running}", remedy=remedy
            )
        if self._resume_at is None and self.plan.spans:
            self.plan = self.epoch_plans(self.plan.epoch)
        yield from super().__iter__()


# Rows whose ids take part in the digest of buckets: those of all would be gigabytes to read.
_DIGESTED_ROWS = 1024


def _digest(table: RowTable, durations: list[np.ndarray]) -> str:
    """A digest of the durations of all rows and of the ids of some that are spread over them."""
    count = min(_DIGESTED_ROWS, len(table))
    spread = np.linspace(0, len(table) - 1, count).astype(np.int64)
    ids = [row.sample_id for row in table.rows(spread)]
    return digest([*durations, np.array(ids, np.uint64)])


class _Place(NamedTuple):
    """A rank, and what says that it is one; "" if nothing does."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source or 'one process'})"


def _running() -> _Place:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return _Place(dist.get_rank(), dist.get_world_size(), "torch.distributed")
    texts = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")}
    # Some clusters say WORLD_SIZE=1 to a process that is alone.
    if texts in ({"RANK": "", "WORLD_SIZE": ""}, {"RANK": "", "WORLD_SIZE": "1"}):
        return _Place(0, 1, "")
    numbers = [int(text) for text in texts.values() if text.isdecimal()]
    if len(numbers) == 2 and numbers[0] < numbers[1]:
        rank, world_size = numbers
        return _Place(rank, world_size, "RANK and WORLD_SIZE")
    environment = ", ".join(f"{name}={text or '(unset)'}" for name, text in texts.items())
    remedy = (
        "Start ranks with torchrun, open the loader after init_process_group, or unset both for one"
        " rank"
    )
    raise MillraceError(
        f"the environment does not say which rank this is ({environment})", remedy=remedy
    )


def checked_place(rank: int | None, world_size: int | None) -> _Place:
    """This rank, as given and as it runs. Raises MillraceError if they differ."""
    rank = None if rank is None else whole("rank", rank)
    world_size = None if world_size is None else whole("world_size", world_size)
    running = _running()
    if running.source:
        given = _Place(
            running.rank if rank is None else rank,
            running.world_size if world_size is None else world_size,
            "as given",
        )
        if given[:2] == running[:2]:
            return running
        remedy = (
            "Leave out rank and world_size; for other divisions use plan_epoch (docs/python.md)"
        )
        raise MillraceError(
            f"the loader is asked for {given}, but this is {running}", remedy=remedy
        )
    count = 1 if world_size is None else world_size
    if rank is None and count > 1:
        remedy = "Give rank as well, or leave out both: then the ranks that run count"
        raise MillraceError(
            f"world_size is {count}, and nothing says which rank this is", remedy=remedy
        )
    if not 0 <= (rank or 0) < count:
        raise MillraceError(
            f"there is no rank {rank or 0} of {count}", remedy="Give rank from 0 and world_size"
        )
    return _Place(rank or 0, count, "")
