"""The batches of a run as its training would get them, for the audit, which does not train; and its
model without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from millrace.common.training.ranks import Ranks
from millrace.common.training.task import Task


class TaskLoader:
    """The batches of `task` on this rank: every pass is the next epoch, as in training.

    `data_loader` is torch's, which runs the workers; the audit puts one that it listens to in its
    place. `ids` gives the ids of a batch's samples (the task's `batch_ids`). After
    `load_state_dict` the next pass goes on where `state_dict` was taken. `epochs`: so many are
    there now; after the last the first one comes. `names` gives those of the recordings that it
    reads.
    """

    def __init__(
        self,
        task: Task,
        ids: Callable[[Any], Any] | None = None,
        epochs: int = 0,
        names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.task = task
        self.ranks = Ranks.from_environment()
        loader = task.batch_loader(self.ranks.rank)
        loader.plan = task.plan(0, self.ranks.world_size)
        self.data_loader = loader.data_loader
        self.recordings = names
        self._ids = ids or task.batch_ids
        self._epochs = epochs
        # (epoch, step) of this pass, of the next one and of a state; copies of this loader share
        # them.
        self._position: dict[str, tuple[int, int]] = {}
        self._move((0, 0))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; if it is already, the step it begins with stays."""
        epoch = self._there(epoch)
        if self._position["next"][0] != epoch:
            self._move((epoch, 0))

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the step after the last batch that was handed out; the next epoch after
        its end."""
        epoch, step = self._position["state"]
        return {"epoch": epoch, "step": step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._move((state["epoch"], state["step"]))

    def _move(self, place: tuple[int, int]) -> None:
        self._position.update(now=place, next=place, state=place)

    def sample_ids(self, batch: Any) -> list:
        """The ids of the samples of a batch; none for one that has no part in the loss."""
        return self._ids(batch).tolist()

    def __len__(self) -> int:
        return self.task.steps_per_epoch(self._position["now"][0], self.ranks.world_size)

    def __iter__(self) -> Iterator[Any]:
        rank = self.ranks.rank
        world_size = self.ranks.world_size
        epoch, step = self._position["next"]
        self._position["now"] = (epoch, step)
        self._position["next"] = (self._there(epoch + 1), 0)
        self.task.batch_loader(rank).data_loader = self.data_loader
        for batch in self.task.loader(epoch, step, rank, world_size):
            step += 1
            place = (epoch, step)
            self._position.update(now=place, state=place)
            yield batch
        self._position["state"] = self._position["next"]

    def _there(self, epoch: int) -> int:
        return epoch % self._epochs if self._epochs else epoch


class HeldOut:
    """A split that no gradient sees, of which only the recordings are looked at: it gives no
    batches."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.recordings = names

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class TaskModel(torch.nn.Module):
    """The model of a task as its loop calls it, without weights: it takes shapes and gives
    shapes."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        with torch.device("meta"):
            self.model = task.build_model()

    def training_step(self, batch: Any, step: int) -> torch.Tensor:
        return self.task.training_step(self.model, batch.to(torch.device("meta")))[0]
