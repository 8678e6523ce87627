"""Ranks of gloo that read a loader, are killed, and go on in another number: every row once."""

from __future__ import annotations

import json
import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from millrace.asr.planning.loader import current_rank, open_loader
from millrace.common import atomic
from tests.asr.audio_tars import corpus
from tests.asr.trainers.killed_runs import Launch, wait_for
from tests.forks import start_ranks

KILLS = int(os.environ.get("MILLRACE_KILLS", "5"))
ROWS, EPOCHS = 96, 2


def read_on(folder: Path, launch: Launch) -> None:
    """Read from the last checkpoint on; each step is one, with the rows up to there."""
    if launch.ranks > 1:
        dist.init_process_group("gloo")
    rank, world_size = current_rank()
    loader = open_loader(folder / "buckets", launch.workers, seconds=0.7)
    file = folder / "checkpoint.json"
    rows = {str(epoch): [] for epoch in range(EPOCHS)}
    if file.exists():
        saved = json.loads(file.read_text())
        loader.load_state_dict(saved["state"])
        rows = saved["rows"]

    steps = 0
    for epoch in range(loader.plan.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            if steps == launch.killed_at and rank == world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            of_ranks = [[] for _ in range(world_size)]
            of_ranks[rank] = [] if batch.filler else batch.rows.tolist()
            if world_size > 1:
                dist.all_gather_object(of_ranks, of_ranks[rank])
            rows[str(epoch)] += [row for part in of_ranks for row in part]
            if rank == 0:
                atomic.write_json(file, {"state": loader.state_dict(), "rows": rows})
            steps += 1
    loader.close()


@pytest.mark.long
def test_ranks_that_are_killed_again_and_again_read_every_row_of_each_epoch_once(tmp_path):
    corpus(tmp_path, members=ROWS // 3)
    changes = 0
    for number in range(KILLS):
        draw = random.Random(number)
        (tmp_path / "checkpoint.json").unlink(missing_ok=True)
        launches = [
            Launch(draw.randint(1, 6), draw.randint(0, 6), draw.randint(0, 2))
            for _ in range(draw.randint(1, 4))
        ]
        for launch in [*launches, Launch(draw.randint(1, 6))]:
            ranks = start_ranks(
                launch.ranks, partial(read_on, tmp_path, launch), tmp_path / "errors.txt"
            )
            changes += wait_for(ranks)
        saved = json.loads((tmp_path / "checkpoint.json").read_text())
        for epoch in range(EPOCHS):
            assert sorted(saved["rows"][str(epoch)]) == list(range(ROWS)), f"plan {number}"
        assert len(json.dumps(saved["state"])) < 1000
    assert changes >= KILLS
