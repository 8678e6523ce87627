"""A trainer that only notes the ids it reads; runs of both sides with kills."""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import numpy as np

from millrace.common import atomic
from millrace.image.producer import epochs
from millrace.image.producer.sentry import Times, Trainer
from millrace.image.records.reader import RecordReader
from millrace.image.records.record_set import RecordSet
from tests.image.record_sets import images_of

ROOT = Path(__file__).parents[3]


def read(folder: Path) -> np.ndarray:
    """The ids of an epoch, whose images and labels are compared with them."""
    records = RecordSet.open(folder.parent, folder.name)
    reader = RecordReader(records)
    ids = []
    for file, entry in enumerate(records.files):
        for start in range(0, entry.records, 5):
            block = reader.read(file, start, 5)
            problem = f"{records.path(file)} holds others' images"
            assert np.array_equal(block.images, images_of(block.ids)), problem
            assert np.array_equal(block.labels, block.ids % 3)
            ids.append(block.ids)
    return np.concatenate(ids)


def wait_for_epoch(side: Trainer, epoch: int) -> None:
    folder = epochs.folder_of(side.folder, epoch)
    side.wait(lambda: side.is_ready(epoch) or None, f"epoch {epoch} ({folder})")


def train(side: Trainer, notes: Path, top: int, seconds: float = 0.0) -> None:
    """Train the epochs that are not noted yet, as a trainer does that saves a checkpoint after each
    epoch."""
    notes.mkdir(exist_ok=True)
    start = len(list(notes.glob("*.npy")))
    side.want(top, start)
    for epoch in range(start, top):
        wait_for_epoch(side, epoch)
        ids = read(epochs.folder_of(side.folder, epoch))
        time.sleep(seconds)
        with atomic.replacing(notes / f"{epoch:04}.npy") as partial, open(partial, "wb") as handle:
            np.save(handle, ids)
        side.trained(epoch)


class FolderWatch(threading.Thread):
    """Samples, every 5 ms, how many epoch folders lie there, also those under way; `most` were at
    once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.most, self.samples, self.epochs = folder, 0, 0, set[int]()
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.005):
            names = [
                name for name in os.listdir(self.folder) if name.lstrip(".").startswith("train_")
            ]
            self.most, self.samples = max(self.most, len(names)), self.samples + 1
            self.epochs |= {int(name.split("_")[1]) for name in names if name[0] != "."}

    def __enter__(self) -> FolderWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


def run_with_kills(
    commands: dict[str, list[str]], kills: int, seed: int, log: Path
) -> dict[str, int]:
    """Run both sides to their end, each started again at once when it is killed; returns kills of
    each."""
    draw, done = random.Random(seed), dict.fromkeys(commands, 0)
    with log.open("wb") as output:

        def start(side: str) -> subprocess.Popen:
            return subprocess.Popen(commands[side], cwd=ROOT, stderr=output, stdout=output)

        sides = {side: start(side) for side in commands}
        try:
            while sum(done.values()) < kills and sides["trainer"].poll() is None:
                time.sleep(draw.uniform(0.1, 0.8))
                side = draw.choice(sorted(commands))
                if sides[side].poll() is None:
                    sides[side].kill()
                    sides[side].wait()
                    sides[side], done[side] = start(side), done[side] + 1
            for side, process in sides.items():
                assert process.wait(120) == 0, f"{side} failed: {log.read_text()[-3000:]}"
        finally:
            for process in sides.values():
                process.kill()
    return done


def assert_each_record_once(notes: Path, top: int, records: int) -> None:
    read = [np.load(notes / f"{epoch:04}.npy") for epoch in range(top)]
    assert len(list(notes.glob("*.npy"))) == top
    assert all(np.array_equal(np.sort(ids), np.arange(records)) for ids in read)
    assert len({ids.tobytes() for ids in read}) == top  # in another order each


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("folder", "notes", "top", "seconds"):
        parser.add_argument(name)
    args = parser.parse_args()
    clock = time.time
    time.time = lambda: clock() + 3600.0  # a host whose clock is an hour ahead
    logging.basicConfig(level="INFO", format="trainer %(message)s")
    with Trainer(args.folder, Times(0.1, 120.0)) as side:
        train(side, Path(args.notes), int(args.top), float(args.seconds))
