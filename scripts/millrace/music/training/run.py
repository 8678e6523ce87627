"""A training run in its folder: checked against the ranks there are, trained, and what it came to."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.loading.h5 import locking
from millrace.common.training import loop, run_folder
from millrace.music.models.config import nested
from millrace.music.models.published import CONFIGURATION
from millrace.music.training.conf import Conf
from millrace.music.training.settings import check_ranks, loop_settings
from millrace.music.training.task import VersionTask

# What may change without making it another run: its length, speed, and where files lie.
_FREE = {
    *("conf", "jobname", "path", "fabric.nnodes", "fabric.ngpus", "fabric.accelerator"),
    *("data.nworkers", "data.prefetch_factor", "data.persistent_workers", "data.pin_memory"),
    *("data.mp_context", "data.max_open_files", "data.max_missing_fraction", "data.prefer"),
    *("training.numepochs", "training.save_freq"),
}


def run(conf: Conf, folder: Path) -> dict[str, Any]:
    """Train in `folder`, from where the same run was left; the summary for metrics.json, on rank 0 only."""
    ranks, settings = check_ranks(conf), loop_settings(conf)
    if ranks.is_main:
        log.info("HDF5 file locking: %s", locking())
    task = VersionTask(conf, folder)
    with contextlib.ExitStack() as stack:
        if ranks.is_main:
            stack.enter_context(run_folder.held(folder))
            same = {key: conf[key] for key in sorted(conf) if not {key, key.split(".")[0]} & _FREE}
            run_folder.claim(folder, {**same, **task.state_dict()})
            write_configuration(conf, folder)
            left_out = {name: part.left_out for name, part in task.features.cliques.items()}
            atomic.write_json(folder / "left_out.json", left_out)
        stack.enter_context(contextlib.closing(task))
        result = loop.train(task, settings, folder)
    if not ranks.is_main:
        return {}
    return {**result.summary(), "parameters": result.model.parameter_count, "ranks": ranks.world_size}


def write_configuration(conf: Conf, folder: Path) -> None:
    """The configuration as run, in the published form, beside the checkpoints."""
    content = {**nested(conf), "model": conf.model.as_section()}
    atomic.write_text(folder / CONFIGURATION, yaml.safe_dump(content, sort_keys=False))
