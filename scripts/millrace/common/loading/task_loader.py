"""A task's batches as the training loop takes them, for whoever looks at a loader without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.common.training.ranks import Ranks
from millrace.common.training.task import Task


class TaskLoader:
    """The batches of `task` on this rank: every pass is the next epoch, as in training.

    `data_loader` is torch's, which runs the workers; the audit puts one that it listens to in its place.
    `ids` gives the ids of a batch's samples (the task's `batch_ids`). After `load_state_dict` the next pass
    goes on where `state_dict` was taken. `epochs`: so many are there now; after the last the first one comes.
    """

    def __init__(self, task: Task, ids: Callable[[Any], Any] | None = None, epochs: int = 0) -> None:
        self.task, self.ranks = task, Ranks.from_environment()
        loader = task.batch_loader(self.ranks.rank)
        loader.plan, self.data_loader = task.plan(0, self.ranks.world_size), loader.data_loader
        self._ids, self._epochs = ids or task.batch_ids, epochs
        # (epoch, step) of this pass and of the next one; copies of this loader share them.
        self._position = {"now": (0, 0), "next": (0, 0)}

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of `epoch`; if it is already, the step it begins with stays."""
        epoch = self._there(epoch)
        if self._position["next"][0] != epoch:
            self._position.update(now=(epoch, 0), next=(epoch, 0))

    def state_dict(self) -> dict[str, int]:
        """The epoch, and the step after the last batch that was handed out."""
        return dict(zip(("epoch", "step"), self._position["now"], strict=True))

    def load_state_dict(self, state: dict[str, int]) -> None:
        place = (state["epoch"], state["step"])
        self._position.update(now=place, next=place)

    def sample_ids(self, batch: Any) -> list:
        """The ids of the samples of a batch; none for one that has no part in the loss."""
        return self._ids(batch).tolist()

    def __len__(self) -> int:
        return self.task.steps_per_epoch(self._position["now"][0], self.ranks.world_size)

    def __iter__(self) -> Iterator[Any]:
        epoch, step = self._position["next"]
        self._position.update(now=(epoch, step), next=(self._there(epoch + 1), 0))
        self.task.batch_loader(self.ranks.rank).data_loader = self.data_loader
        for batch in self.task.loader(epoch, step, self.ranks.rank, self.ranks.world_size):
            step += 1
            self._position["now"] = (epoch, step)
            yield batch

    def _there(self, epoch: int) -> int:
        return epoch % self._epochs if self._epochs else epoch
