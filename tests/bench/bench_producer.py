"""An epoch made by the producer against a plain copy of the same bytes (`shutil.copyfile`).

    python -m tests.bench.bench_producer --folder /tmp/bench  (writes 5.5 GB, and removes them)

Both sides take turns in one process, into the page cache and, with `os.sync` at their end, to the
disk.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from millrace.common import cli
from millrace.image.producer import epochs
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.records.record_file import record_writer
from millrace.image.records.record_set import RecordSet

FILES, RECORDS, SIDE, POOL, RUNS = 12, 1000, 224, 10, 7


def make_records(root: Path) -> RecordSet:
    """Record files of noise, sorted by name, as a converter leaves them."""
    (root / "train").mkdir()
    random, written = np.random.default_rng(0), []
    for number in range(FILES):
        path = root / f"train/train-{number:05d}-of-{FILES:05d}.h5"
        images = random.integers(0, 256, (RECORDS, SIDE, SIDE, 3), np.uint8)
        with record_writer(path, RECORDS, (SIDE, SIDE)) as writer:
            writer.append(images, [0] * RECORDS, range(number * RECORDS, (number + 1) * RECORDS))
        written.append(writer.file)
    counts, size = [FILES * RECORDS], (SIDE, SIDE)
    RecordSet(root / "train", "train", ["noise"], written, counts, size=size).write()
    return RecordSet.open(root)


def timed(work: Callable[[], None], with_sync: bool) -> tuple[float, float]:
    """Seconds that passed, and of CPU."""
    os.sync()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if with_sync:
        os.sync()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as name:
        root = Path(name)
        records = make_records(root)
        maker, copied = EpochMaker(records, root, POOL, 42), root / "copied"

        def copy() -> None:
            copied.mkdir()
            for file in records.files:
                shutil.copyfile(records.folder / file.name, copied / file.name)

        for with_sync in (False, True):
            ratios = []
            for epoch in range(1, RUNS + 1):
                made = timed(lambda epoch=epoch: maker.make(epoch, lambda _: None), with_sync)
                epochs.remove(root, epoch)
                plain = timed(copy, with_sync)
                shutil.rmtree(copied)
                ratios.append((plain[0] / made[0], plain[1] / made[1]))
            walls, cpus = zip(*ratios, strict=True)
            what = "to the disk" if with_sync else "into the page cache"
            rate = (
                f"{statistics.median(walls):.2f} of the copy's rate ({min(walls):.2f} to"
                f" {max(walls):.2f})"
            )
            print(f"{what}: {rate}, CPU {statistics.median(cpus):.2f}")


if __name__ == "__main__":
    main()
