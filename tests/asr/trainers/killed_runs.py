"""A run that is killed again and again and resumed with other ranks, and what it has trained on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.forks import LIMIT_SECONDS, start_ranks


class Launch(NamedTuple):
    """One launch of a run: its ranks, and the update before which they are killed (-1: never)."""

    ranks: int
    killed_at: int = -1
    workers: int = 0


class Log:
    """What one rank trains on, a line for each batch."""

    def __init__(self, folder: Path, killed_at: int) -> None:
        rank = os.environ.get("RANK", "0")
        self.rank, self.killed_at = rank, killed_at
        self.file = open(folder / f"rows-{rank}.jsonl", "a", buffering=1)  # noqa: SIM115

    def write(self, update: int, batch: dict[str, Any]) -> None:
        """Note a batch that is trained on after `update` updates; die if that is the time."""
        if update == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        weight = batch.get("loss_weight", 1.0)
        self.file.write(json.dumps([update, batch["epoch"], batch["rows"].tolist(), weight]) + "\n")


class Tiny(torch.nn.Module):
    """A model of one weight on what `inputs` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, **others: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.line(x).square().mean()}


def inputs(batch: Any) -> dict[str, Any]:
    """What the trainers get of a batch."""
    x = batch.audio.mean(dim=1, keepdim=True)
    return {"x": x, "rows": torch.from_numpy(batch.rows), "epoch": batch.epoch}


def trained_rows(
    folder: Path,
    launches: Sequence[Launch],
    work: Callable[[Path, Launch], None],
    saved_update: Callable[[Path], int],
) -> dict[int, list[int]]:
    """The rows by epoch that count after all launches: those up to the checkpoint that the next
    launch goes on from. Fillers' count nothing."""
    for launch in launches:
        update = saved_update(folder)
        for file in folder.glob("rows-*.jsonl"):
            lines = [line for line in file.read_text().splitlines() if json.loads(line)[0] < update]
            file.write_text("".join(f"{line}\n" for line in lines))
        ranks = start_ranks(launch.ranks, partial(work, folder, launch), folder / "errors.txt")
        assert wait_for(ranks) == (launch.killed_at >= 0)
    rows = defaultdict(list)
    for file in folder.glob("rows-*.jsonl"):
        for line in file.read_text().splitlines():
            _, epoch, batch, weight = json.loads(line)
            rows[epoch] += batch if weight else []
    return {epoch: sorted(rows[epoch]) for epoch in sorted(rows)}


def wait_for(ranks: list[Any]) -> bool:
    """Until all ranks have ended; once one is killed, so are the others, as by a launcher. Returns
    whether that was so; a rank that fails by itself fails the test."""
    end = time.monotonic() + LIMIT_SECONDS
    while any(rank.exitcode is None for rank in ranks) and time.monotonic() < end:
        if any(rank.exitcode for rank in ranks):
            break
        time.sleep(0.02)
    # The peers of a rank that is gone fail too, but after it.
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        # With its workers, which would otherwise live until they notice.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.join(LIMIT_SECONDS)
    assert codes == [0] * len(ranks) or -signal.SIGKILL in codes, codes
    return -signal.SIGKILL in codes
