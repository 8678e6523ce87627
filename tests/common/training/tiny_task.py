"""A small sequence task for tests of the loop, and a command that trains it: `-m
tests.common.training.tiny_task runs.json`.

runs.json is a list of runs, done one after the other: {"folder", "settings", "task"}.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from millrace.common import atomic, cli, jsonl
from millrace.common.errors import MillraceError
from millrace.common.training import seeding
from millrace.common.training.loop import Result, train
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import Task

WIDTH = 4


class TinyModel(torch.nn.Module):
    """Predicts the running mean of each sequence's first feature. Dropout draws from the ambient
    generator."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.into = torch.nn.Linear(WIDTH, 8)
        self.gru = torch.nn.GRU(8, 8, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)
        self.dropout = torch.nn.Dropout(dropout)
        self.out = torch.nn.Linear(8, 1)
        self.checkpointed = 0

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointed = 1

    def _hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.tanh(self.into(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointed and self.training:
            self.checkpointed += 1
            hidden = checkpoint(self._hidden, x, use_reentrant=False)
        else:
            hidden = self._hidden(x)
        return self.out(self.norm(self.gru(hidden)[0])).squeeze(-1)


@dataclass
class TinyBatch:
    ids: np.ndarray
    x: torch.Tensor
    y: torch.Tensor
    mask: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> TinyBatch:
        parts = (self.x, self.y, self.mask)
        moved = (part.to(device, non_blocking=non_blocking) for part in parts)
        return TinyBatch(self.ids, *moved)


class TinyDataset(Dataset):
    """Whole batches by (epoch, ids); a sample's sequence derives from its id, its noise from epoch
    and id."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __getitem__(self, address: tuple[int, list[int]]) -> TinyBatch:
        epoch, ids = address
        rows = []
        for number in ids:
            draw = seeding.generator(7, number)
            x = draw.normal(size=(int(draw.integers(3, 10)), WIDTH)).astype(np.float32)
            y = np.cumsum(x[:, 0]) / np.arange(1, len(x) + 1, dtype=np.float32)
            noise = (
                seeding.generator(self.seed, epoch, number).normal(size=x.shape).astype(np.float32)
            )
            rows.append((x + 0.01 * noise, y))
        longest = max((len(x) for x, _ in rows), default=0)
        batch = TinyBatch(
            np.array(ids, dtype=np.int64),
            torch.zeros(len(rows), longest, WIDTH),
            torch.zeros(len(rows), longest),
            torch.zeros(len(rows), longest),
        )
        for place, (x, y) in enumerate(rows):
            batch.x[place, : len(x)] = torch.from_numpy(x)
            batch.y[place, : len(x)] = torch.from_numpy(y)
            batch.mask[place, : len(x)] = 1
        return batch


def _same(batch: TinyBatch) -> TinyBatch:
    return batch


def _stopped_by_launcher(number: int) -> None:
    """Have the launcher (or, without one, oneself) signalled, and wait until the signal has come
    back."""
    come: list[int] = []
    before = signal.getsignal(number)
    signal.signal(number, lambda *args: (come.append(number), before(*args)))
    os.kill(os.getppid() if "RANK" in os.environ else os.getpid(), number)
    while not come:
        time.sleep(0.001)
    signal.signal(number, before)


@dataclass
class TinyTask(Task):
    """`size` samples in batches of `batch`.

    `fault` happens once, in optimiser step `at_step` on `fault_rank`, while it is computed: "kill"
    (SIGKILL to itself), "orphan" (SIGKILL to the launcher), "TERM" or "USR1" (sent to the launcher,
    or itself where there is none), "nan" (a loss), "weightless" (a batch of weight 0 whose loss is
    nan).
    """

    size: int = 37
    batch: int = 3
    seed: int = 42
    dropout: float = 0.1
    workers: int = 0
    fault: str = ""
    at_step: int = 0
    fault_rank: int = 0
    steps_too_many: int = 0
    skip_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.now = 0
        self.faulted = False

    def build_model(self) -> torch.nn.Module:
        return TinyModel(self.dropout)

    def _done(self, spans: tuple) -> int:
        return sum(world * steps for world, steps in spans) * self.batch

    def steps_per_epoch(self, epoch: int, world_size: int, spans: tuple = ()) -> int:
        left = self.size - self._done(spans)
        return -(-left // (self.batch * world_size)) + self.steps_too_many

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: tuple = ()
    ) -> Iterator[TinyBatch]:
        order = seeding.generator(self.seed, "order", epoch).permutation(self.size)[
            self._done(spans) :
        ]
        addresses = []
        for step in range(
            start_step, self.steps_per_epoch(epoch, world_size, spans) - self.steps_too_many
        ):
            first = (step * world_size + rank) * self.batch
            ids = [
                number
                for number in order[first : first + self.batch].tolist()
                if number not in self.skip_ids
            ]
            addresses.append((epoch, ids))
        several = (
            {"worker_init_fn": seeding.start_worker, "persistent_workers": False}
            if self.workers
            else {}
        )
        loader = DataLoader(
            TinyDataset(self.seed),
            None,
            sampler=addresses,
            num_workers=self.workers,
            collate_fn=_same,
            **several,
        )
        yield from loader

    def batch_ids(self, batch: TinyBatch) -> np.ndarray:
        return batch.ids

    def training_step(
        self, model: torch.nn.Module, batch: TinyBatch
    ) -> tuple[torch.Tensor, float, dict]:
        due = (
            self.fault
            and self.now + 1 == self.at_step
            and int(os.environ.get("RANK", 0)) == self.fault_rank
        )
        due, self.faulted = due and not self.faulted, self.faulted or due
        if due and self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if due and self.fault == "orphan":
            os.kill(os.getppid(), signal.SIGKILL)
        if due and self.fault in ("TERM", "USR1"):
            _stopped_by_launcher(getattr(signal, f"SIG{self.fault}"))
        weight = float(batch.mask.sum())
        loss = (((model(batch.x) - batch.y) ** 2) * batch.mask).sum() / weight
        if due and self.fault in ("nan", "weightless"):
            loss = loss * float("nan")
        if due and self.fault == "weightless":
            weight = 0.0
        return (
            loss,
            weight,
            {"frames": float(batch.mask.sum()), "padded_frames": float(batch.mask.numel())},
        )

    def on_step(self, step: int) -> None:
        self.now = step

    def evaluate(self, model: torch.nn.Module, fabric: Fabric) -> dict[str, float]:
        torch.rand(3)  # a careless evaluation draws from the ambient generator
        batch = fabric.to_device(TinyDataset(0)[(0, list(range(1000, 1010)))])
        error = (((model(batch.x) - batch.y) ** 2) * batch.mask).sum() / batch.mask.sum()
        return {"mse": float(error)}

    def state_dict(self) -> dict:
        return {"size": self.size}

    def load_state_dict(self, state: dict) -> None:
        if state["size"] != self.size:
            raise MillraceError(
                f"the plan is of {state['size']} samples, there are now {self.size}"
            )


def run(folder: Path, settings: dict, task: dict) -> Result:
    """Train a tiny task as a lane's step would, and write metrics.json last."""
    tiny = TinyTask(**{"seed": settings.get("seed", 42), **task})
    tiny.now = _first_step(folder)
    defaults = {
        "lr": 0.01,
        "log_steps": 1,
        "save_steps": 2,
        "tensorboard": 0,
        "log_ids": 1,
        "device": "cpu",
    }
    result = train(tiny, LoopSettings(**{**defaults, **settings}), folder, tiny.on_step)
    ranks = Ranks.from_environment()
    if ranks.is_main:
        summary = {**result.summary(), "digest": result.digest, "resumed_step": result.resumed_step}
        atomic.write_json(folder / "metrics.json", summary)
        torch.save(
            {name: tensor.clone() for name, tensor in result.model.state_dict().items()},
            folder / "model.pt",
        )
    atomic.write_json(
        folder / f"rank.{ranks.rank}.json", {"digest": result.digest, "task": asdict(tiny)}
    )
    return result


def _first_step(folder: Path) -> int:
    try:
        name = (folder / "checkpoints" / "last").read_text().strip()
        return jsonl.read(folder / "checkpoints" / name / "checkpoint.json")["step"]
    except OSError:
        return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs")
    return parser


@cli.step(make_parser)
def main(args: argparse.Namespace) -> None:
    """Do the runs of a file."""
    torch.set_num_threads(1)
    for each in jsonl.read(args.runs):
        run(Path(each["folder"]), each.get("settings", {}), each.get("task", {}))


if __name__ == "__main__":
    raise SystemExit(main())
