"""The Hugging Face Trainer on the batches of a loader: how long its epochs are, how it resumes, and
that fillers count nothing."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from millrace.asr.planning.loader import RankLoader
from millrace.asr.trainers.hf_settings import checked_loader
from millrace.asr.trainers.weights import send_weights, take_weight
from millrace.common.errors import MillraceError

_KEY = "millrace_loader"  # in a checkpoint's trainer_state.json


class PlannedTrainer(Trainer):
    """A Trainer whose `train_dataset` is `open_loader(…, transform=…)`, with batches of dicts.

        arguments = TrainingArguments("out", num_train_epochs=2)  # first: it makes the ranks
        loader = open_loader("results/asr/buckets", workers=2, transform=inputs)
        PlannedTrainer(model, arguments, train_dataset=loader).train()

    A run that is resumed goes on at the next batch, with any number of ranks. Fillers count
    nothing. Raises MillraceError for settings that would change which rows are read.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loader: RankLoader = checked_loader(self)
        self._start = 0  # updates before this call of train
        send_weights(self.loader)

    def get_train_dataloader(self) -> Any:
        """The loader as it is: prepared by Accelerate, it would be shared out a second time."""
        return self.loader

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir)) or True
        self._start = 0
        if self.state.global_step:
            # As every Trainer, a second call begins anew. What a loader had loaded before the
            # first one counts.
            self.loader.plan = self.loader.epoch_plans(0)
        if isinstance(resume_from_checkpoint, str | os.PathLike):
            self._start = self._load(Path(resume_from_checkpoint) / "trainer_state.json")
        return super().train(resume_from_checkpoint, *args, **options)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        weight = take_weight(inputs)
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if return_outputs:
            return (loss * weight, outputs)
        return loss * weight

    def _save_checkpoint(self, *args: Any) -> None:
        self.state.stateful_callbacks[_KEY] = self.loader.state_dict()
        super()._save_checkpoint(*args)

    def _load(self, file: Path) -> int:
        """Load the loader's state of a checkpoint; returns how many updates were done before."""
        try:
            saved = TrainerState.load_from_json(str(file))
            state = saved.stateful_callbacks[_KEY]
        except (OSError, ValueError, KeyError) as error:
            problem = f"there is no state of the loader ({error!r})"
            remedy = "Resume from another checkpoint: this one is not whole, or of another Trainer"
            raise MillraceError(problem, str(file), remedy) from None
        self.loader.load_state_dict(state)
        return saved.global_step

    # The Trainer takes all epochs to be as long as the first one, its own epoch to be
    # `global_step // len(loader)`, batches to be samples, and skips batches. The plan knows better.

    def set_initial_training_values(self, *args: Any) -> Any:
        epochs, updates, _, _, *others, max_steps = super().set_initial_training_values(*args)
        if self.args.max_steps > 0:
            epochs = self.loader.plan.epoch + max_steps
            steps = max_steps
        else:
            steps = self._start + self._updates_to_come()
        rows = self.loader.dataset.rows
        samples = rows * steps / self._updates(self.loader.whole_steps)
        return (epochs, updates, rows, samples, *others, steps)

    def _init_training_state(self, *args: Any) -> tuple[int, int]:
        super()._init_training_state(*args)
        is_over = self.loader.steps_left == 0
        return self.loader.plan.epoch + int(is_over), 0

    def _run_epoch(self, **values: Any) -> None:
        self.loader.set_epoch(values["epoch"])
        values["steps_in_epoch"] = self.loader.steps_left
        values["num_update_steps_per_epoch"] = self._updates(self.loader.steps_left)
        if self.args.max_steps <= 0:
            self.state.max_steps = self.state.global_step + self._updates_to_come()
        super()._run_epoch(**values)

    def _updates_to_come(self) -> int:
        """Those of the next pass, and about those of the epochs after it."""
        later_epochs = int(self.args.num_train_epochs) - self.loader.plan.epoch - 1
        of_this = self._updates(self.loader.steps_left)
        of_another = self._updates(self.loader.whole_steps)
        return of_this + later_epochs * of_another

    def _updates(self, steps: int) -> int:
        return math.ceil(steps / self.args.gradient_accumulation_steps)
