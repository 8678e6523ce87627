"""Training in the run's folder and the evaluation of a checkpoint, as steps call them: which keys
may change in a run, and whether ranks and GPUs are those configured."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.loading.h5 import locking
from millrace.common.training import devices, loop, run_folder
from millrace.common.training.ranks import Exchange, Ranks
from millrace.common.training.settings import LoopSettings
from millrace.music.models.config import CONFIGURATION, nested
from millrace.music.models.published import load_published
from millrace.music.sampling.windows import Geometry
from millrace.music.training.conf import Conf
from millrace.music.training.distances import parse_reduction
from millrace.music.training.evaluation import (
    Features,
    Share,
    embed,
    scored,
)
from millrace.music.training.metrics import means
from millrace.music.training.task import VersionTask

# What may change without making it another run: its length, speed, and where files lie.
_FREE = {
    "conf",
    "jobname",
    "path",
    "fabric.nnodes",
    "fabric.ngpus",
    "fabric.accelerator",
    "data.nworkers",
    "data.prefetch_factor",
    "data.persistent_workers",
    "data.pin_memory",
    "data.mp_context",
    "data.max_missing_fraction",
    "training.numepochs",
    "training.save_freq",
}


@devices.leaving_together()
def run(conf: Conf, folder: Path) -> dict[str, Any]:
    """Train in `folder`, from where the same run was left; the summary for metrics.json, on rank 0
    only."""
    ranks = check_ranks(conf)
    settings = loop_settings(conf)
    task = VersionTask(conf, folder)
    with contextlib.ExitStack() as stack:
        if ranks.is_main:
            log.info("HDF5 file locking: %s", locking())
            stack.enter_context(run_folder.held(folder))
            same = {key: conf[key] for key in sorted(conf) if not {key, key.split(".")[0]} & _FREE}
            run_folder.claim(folder, {**same, **task.state_dict()})
            write_configuration(conf, folder)
        stack.enter_context(contextlib.closing(task))
        result = loop.train(task, settings, folder)
    if not ranks.is_main:
        return {}
    return {
        **result.summary(),
        "parameters": result.model.parameter_count,
        "ranks": ranks.world_size,
    }


def write_configuration(conf: Conf, folder: Path) -> None:
    """The configuration as run, in the published form, beside the checkpoints."""
    atomic.write_text(folder / CONFIGURATION, yaml.safe_dump(nested(conf), sort_keys=False))


@devices.leaving_together()
def evaluate(conf: Conf, options: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a checkpoint on a split: means over all queries.

    Every rank must call it; the figures are those of rank 0, the others get {}.
    """
    ranks = check_ranks(conf)
    partition = options["partition"]
    fabric = devices.launch(ranks, loop_settings(conf))
    share = Share(Exchange(ranks.world_size), ranks.rank, fabric.device)
    model = load_published(options["checkpoint"]).to(fabric.device)
    # Features are those that this model takes, whatever the configuration says of another.
    conf = Conf({**conf, **model.config.keys()})
    features = Features(conf, [partition])
    cliques = features.cliques[partition]
    frame = model.config.frame_seconds
    strategy = options["redux"] or model.config.loss_redux_pos
    parse_reduction(strategy)

    def cut(frames: int) -> Geometry:
        length = max(1, min(frames, round(options["maxlen"] / frame)))
        return Geometry(length, model.config.shingle_frames, max(1, round(options["hop"] / frame)))

    with torch.inference_mode():
        most = conf["data.max_missing_fraction"]
        tracks = embed(model, cliques, features.reader, cut, share, most)
        figures = scored(tracks, strategy, share)
    facts = {
        "partition": partition,
        "redux": strategy,
        "queries": len(figures["MAP"]),
        "candidates": len(tracks),
        "left_out": len(cliques) - len(tracks),
    }
    if ranks.is_main:
        return {**facts, "figures": means(figures)}
    return {}


def check_ranks(conf: Conf) -> Ranks:
    """The ranks there are; MillraceError if the configuration means others, or GPUs that are not
    there."""
    ranks = Ranks.from_environment()
    nodes = conf["fabric.nnodes"]
    gpus = conf["fabric.ngpus"]
    if nodes * gpus != ranks.world_size:
        there = "1 process was" if ranks.world_size == 1 else f"{ranks.world_size} processes were"
        problem = (
            f"fabric.nnodes {nodes} x fabric.ngpus {gpus} make {nodes * gpus}, but {there} started"
        )
        remedy = "Start it on each node by python -m millrace.common.training.launch"
        remedy += f" --nproc-per-node {gpus} -m millrace.music.train_model"
        raise MillraceError(problem, remedy=remedy)
    if conf["fabric.accelerator"] == "cuda" and not torch.cuda.is_available():
        remedy = (
            "Set fabric.accelerator=cpu to train on the CPU, or auto; else mend driver or torch"
        )
        raise MillraceError(
            f"fabric.ngpus is {gpus}, but there is no CUDA device here", remedy=remedy
        )
    return ranks


def loop_settings(conf: Conf) -> LoopSettings:
    """The loop's settings of a configuration."""
    optim = conf.section("training")["optim"]
    return LoopSettings(
        epochs=conf["training.numepochs"],
        lr=optim["lr"],
        # The original's adam has no weight decay either.
        weight_decay=optim["wd"] if optim["name"] == "adamw" else 0.0,
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
