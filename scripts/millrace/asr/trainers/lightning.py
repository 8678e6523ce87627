"""Lightning's Trainer on the batches of a loader: its checkpoints, the length of epochs, and
fillers without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import lightning.pytorch as pl
import torch

from millrace.asr.planning.loader import RankLoader
from millrace.asr.trainers.weights import send_weights, take_weight


class PlannedData(pl.LightningDataModule):
    """The batches of a loader, which is opened where the ranks run.

        data = PlannedData(open_loader, "results/asr/buckets", workers=2, seconds=240)
        pl.Trainer(max_epochs=2).fit(model, data)

    Checkpoints hold the loader's state, and `fit(ckpt_path=…)` goes on at the next batch, with any
    number of ranks. Fillers give no gradient.
    """

    def __init__(self, open_loader: Callable[..., RankLoader], *args: Any, **options: Any) -> None:
        super().__init__()
        self._open = partial(open_loader, *args, **options)

    @cached_property
    def loader(self) -> RankLoader:
        """Opened where it is first asked for: after `setup`, where the ranks run."""
        loader = self._open()
        send_weights(loader)
        return loader

    def setup(self, stage: str) -> None:
        self.trainer.callbacks.insert(0, _NoGradientOfFillers())
        # Epochs differ in length, and the plan of the next one has to be asked for.
        self.trainer.reload_dataloaders_every_n_epochs = 1

    def train_dataloader(self) -> _Epoch:
        self.loader.set_epoch(self.trainer.current_epoch)
        if self.loader.steps_left == len(self.loader):
            # Resumed between two epochs, Lightning takes the last one as whole only if it had at
            # least as many batches as this one.
            progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
            progress.completed = max(progress.completed, len(self.loader))
        return _Epoch(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


class _Epoch:
    """What Lightning reads. Its state is empty: the data module has loaded the loader's before its
    length was asked for."""

    def __init__(self, loader: RankLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _NoGradientOfFillers(pl.Callback):
    weight = 1.0

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.weight = take_weight(batch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        if not self.weight:
            loss.register_hook(torch.zeros_like)
