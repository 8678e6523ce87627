"""What a rank computes on, and in which precision: what `auto` means, TF32, fewer GPUs than ranks;
and how ranks start and leave together, by Lightning Fabric."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import signal
import warnings
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.processes import stay_on_loopback
from millrace.common.training.ranks import Exchange, Ranks, end_with_launcher
from millrace.common.training.settings import LoopSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# In errors of a collective whose other ranks are gone or silent.
_LOST = ("gloo", "NCCL", "Connection closed", "Connection reset", "Timed out waiting")
_EVALUATION_SECONDS = 24 * 3600.0  # the others wait at most so long for rank 0's tests
# Closed groups, kept until the process ends: DDP's reducer may hold the last reference, and would
# wait for gloo's threads with the interpreter's lock in its hands, which these may need.
_CLOSED: list[object] = []
_SOURCE = r"\[\S+\.cc:\d+\] "  # where in gloo's code


def kind_of(device: str) -> str:
    """cpu or cuda; auto is a GPU where there is one."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def auto_precision(device: str) -> str:
    """What the precision `auto` stands for on a device: bf16-mixed if it computes in it, else
    32-true."""
    has_bf16 = kind_of(device) == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if has_bf16 else "32-true"


def resolved(settings: LoopSettings) -> LoopSettings:
    """`settings` with the precision that `auto` stands for; rank 0 logs it."""
    if settings.precision != "auto":
        return settings
    settings = replace(settings, precision=auto_precision(settings.device))
    if Ranks.from_environment().is_main:
        name = kind_of(settings.device)
        if name == "cuda" and torch.cuda.is_available():
            name = torch.cuda.get_device_name()
        log.info("precision %s (auto, on %s)", settings.precision, name)
    return settings


def launch(ranks: Ranks, settings: LoopSettings, ddp: bool = False) -> Fabric:
    """A Fabric on this rank's device, its process group open (gloo on the CPU, nccl on GPUs).

    With `ddp` a lone process trains under DDP too, and so has its gradient buckets.

    Raises MillraceError where there are fewer GPUs than ranks.
    """
    # Takes seconds, and only training needs it: its loaders are also read without.
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
    from lightning_fabric.strategies import DDPStrategy

    end_with_launcher(signal.SIGKILL)
    settings = resolved(settings)
    device = kind_of(settings.device)
    _switch_tf32(settings.tf32)
    if device == "cuda" and torch.cuda.device_count() < ranks.local_world_size:
        gpus = counted(torch.cuda.device_count(), "GPU")
        problem = f"{counted(ranks.local_world_size, 'rank')} on this node, but {gpus}"
        raise MillraceError(problem, remedy="Start one rank per GPU, or set device to cpu")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    several = ranks.world_size > 1
    strategy = "auto"
    _check_launcher(several)
    if several and ranks.world_size == ranks.local_world_size:
        stay_on_loopback()
    if several or ddp:
        timeout = datetime.timedelta(seconds=settings.timeout_seconds)
        unused = bool(settings.find_unused_parameters)
        strategy = DDPStrategy(
            timeout=timeout, find_unused_parameters=unused, gradient_as_bucket_view=True
        )
    with warnings.catch_warnings():
        # Fabric would rather be a CUDA run, or be told by Slurm's variables how many tasks there
        # are.
        warnings.simplefilter("ignore")
        fabric = Fabric(
            accelerator=device,
            devices=ranks.local_world_size,
            num_nodes=ranks.world_size // ranks.local_world_size,
            precision=settings.precision,
            # Named, because Fabric takes a Slurm allocation for a launch by srun and refuses other
            # counts.
            plugins=[TorchElasticEnvironment() if several else LightningEnvironment()],
            strategy=strategy,
        )
        with peers(ranks, "the start of the ranks"):
            fabric.launch()
    # Until here a rank whose launcher is killed would wait for ranks that never come; now it can
    # save.
    end_with_launcher(0)
    return fabric


def _check_launcher(several: bool) -> None:
    """Raise MillraceError for processes that srun or another program has started as ranks.

    Rank 0 would open a store that listens on all interfaces, or each would train alone.
    """
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if not has_store and (several or tasks != "1"):
        remedy = "Start ranks with python -m millrace.common.training.launch, or torchrun"
        raise MillraceError("these ranks have not been started by a launcher", remedy=remedy)


def _switch_tf32(tf32: str) -> None:
    """Let GPUs compute so much of float32 in TF32, whatever torch's defaults are.

    By torch's older names too: it raises where the two differ, and Fabric asks by the older ones.
    """
    products = tf32 == "all"
    convolutions = tf32 != "none"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the older names will go
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cuda.matmul.fp32_precision = "tf32" if products else "ieee"
    for part in (torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        part.fp32_precision = "tf32" if convolutions else "ieee"


@contextlib.contextmanager
def leaving_together() -> Iterator[None]:
    """Ranks that end this block wait for each other, then close the process group.

    While rank 0 tests and saves alone, the others wait: NCCL's threads would take a rank that has
    left for one that is lost. After an error nobody waits. Does nothing where there is no group.
    """
    ranks = Ranks.from_environment()
    dist = torch.distributed
    try:
        yield
        if dist.is_initialized() and ranks.world_size > 1:
            if not ranks.is_main:
                end_with_launcher(signal.SIGKILL)  # it has saved, and would wait for nobody
            with peers(ranks, "the end of the run"):
                Exchange(ranks.world_size, _EVALUATION_SECONDS).wait(_EVALUATION_SECONDS)
    except (Exception, KeyboardInterrupt):
        _close_group(dist, is_whole=False)
        raise
    finally:
        _close_group(dist, is_whole=True)


def _close_group(dist: ModuleType, is_whole: bool) -> None:
    if not dist.is_initialized():
        return
    _CLOSED.append(dist.group.WORLD)
    if is_whole or dist.get_backend() == "gloo":
        dist.destroy_process_group()
    else:
        # An orderly end would wait for NCCL's work, which a lost rank never does.
        dist.distributed_c10d._abort_process_group()


def autocast(device_type: str, precision: str) -> contextlib.AbstractContextManager:
    """What Fabric's forward passes do in that precision, where there is no Fabric."""
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    if dtype and device_type == "cpu":
        dtype = torch.bfloat16  # Fabric has no other there
    if dtype:
        return torch.autocast(device_type, dtype=dtype)
    return contextlib.nullcontext()


@contextlib.contextmanager
def peers(ranks: Ranks, where: str) -> Iterator[None]:
    """Code inside talks to other ranks: raises MillraceError where one of them is gone or
    silent."""
    try:
        yield
    except RuntimeError as error:
        is_lost = isinstance(error, torch.distributed.DistError) or any(
            sign in str(error) for sign in _LOST
        )
        if ranks.world_size == 1 or not is_lost:
            raise
        cause = re.sub(_SOURCE, "", str(error)).partition(". ")[0]
        remedy = (
            "See the first error among the ranks; the same command goes on from the last checkpoint"
        )
        raise MillraceError(
            f"rank {ranks.rank} has lost another rank ({cause})", where, remedy
        ) from error
