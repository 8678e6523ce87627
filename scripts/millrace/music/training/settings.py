"""What a configuration means for the training loop, and for the ranks that must be there."""

from __future__ import annotations

import torch

from millrace.common.errors import MillraceError
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings
from millrace.music.training.conf import Conf


def check_ranks(conf: Conf) -> Ranks:
    """The ranks there are; MillraceError if the configuration means others, or GPUs that are not there."""
    ranks = Ranks.from_environment()
    nodes, gpus, device = conf["fabric.nnodes"], conf["fabric.ngpus"], conf["fabric.accelerator"]
    if nodes * gpus != ranks.world_size:
        there = "1 process was" if ranks.world_size == 1 else f"{ranks.world_size} processes were"
        problem = f"fabric.nnodes {nodes} x fabric.ngpus {gpus} make {nodes * gpus}, but {there} started"
        launcher = f"python -m millrace.common.training.launch --nproc-per-node {gpus}"
        remedy = f"Start it by srun --ntasks-per-node={gpus}, or without Slurm by {launcher} "
        remedy += "-m millrace.music.train_model"
        raise MillraceError(problem, remedy=remedy)
    if device == "cuda" and not torch.cuda.is_available():
        remedy = "Set fabric.accelerator=cpu to train on the CPU, or auto; else mend driver or torch"
        raise MillraceError(f"fabric.ngpus is {gpus}, but there is no CUDA device here", remedy=remedy)
    return ranks


def loop_settings(conf: Conf) -> LoopSettings:
    """The loop's settings of a configuration."""
    optimiser = "training.optim"
    decays = conf[f"{optimiser}.name"] == "adamw"  # the original's adam has no weight decay either
    return LoopSettings(
        epochs=conf["training.numepochs"],
        lr=conf[f"{optimiser}.lr"],
        weight_decay=conf[f"{optimiser}.wd"] if decays else 0.0,
        lr_scheduler_type="constant",
        warmup_ratio=0.0,
        max_grad_norm=0.0,
        precision={"32": "32-true"}.get(conf["fabric.precision"], conf["fabric.precision"]),
        log_steps=100,
        save_steps=0,
        save_total_limit=2,
        eval_at_start=1,
        seed=conf["seed"],
        device=conf["fabric.accelerator"],
    )
