"""Settings of the Hugging Face Trainer that a planned run cannot have.

The arguments on batch sizes, samplers, dispatching, workers and `ignore_data_skip` do nothing here:
the loader is read as it is.
"""

from __future__ import annotations

from transformers import Trainer

from millrace.asr.planning.loader import RankLoader
from millrace.common.errors import MillraceError

_WHERE = "PlannedTrainer"


def checked_loader(trainer: Trainer) -> RankLoader:
    """The loader of a trainer. Raises MillraceError for what would change which rows are read."""
    loader = trainer.train_dataset
    arguments = trainer.args
    if not isinstance(loader, RankLoader):
        problem = f"train_dataset is a {type(loader).__name__}, and not what open_loader gives"
        raise MillraceError(problem, _WHERE)
    if loader.dataset.transform is None:
        problem = "open_loader has no transform, which makes the model's inputs of a batch"
        raise MillraceError(problem, _WHERE)
    if trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1:
        problem = "ranks that share a model would get different batches"
        raise MillraceError(problem, _WHERE, "Use data parallelism only")
    evaluated = trainer.eval_dataset
    evaluated = evaluated.values() if isinstance(evaluated, dict) else [evaluated]
    if any(isinstance(dataset, RankLoader) for dataset in evaluated):
        problem = "eval_dataset is a loader, and the Trainer would make batches of its batches"
        raise MillraceError(problem, _WHERE, "Give a dataset of samples, or read it in a callback")
    if arguments.max_steps <= 0 and arguments.num_train_epochs % 1:
        problem = f"num_train_epochs is {arguments.num_train_epochs}"
        raise MillraceError(problem, _WHERE, "Give whole epochs, or max_steps")
    return loader
