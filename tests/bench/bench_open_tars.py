"""Raw samples of tars in shuffled order: open_tars, webdataset, and the storage's positioned reads.

    python -m tests.bench.bench_open_tars --folder /tmp/bench  (writes 1.4 GB, and removes them)

24,000 members in 4 tars, a jpg and a cls for each sample, in the page cache. Both loaders have two
workers, which live on; each round times a whole epoch of each, and plain positioned reads of the
same members in the order of the epoch, by one process.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import torch
import webdataset

from millrace.common import cli
from millrace.tars.loader import TarLoader, open_tars
from tests.bench.bench_tar_index import noises, write_members

BATCH, BUFFER, WORKERS = 32, 1000, 2
TARS, SAMPLES, MEAN_SIZE = 4, 3000, 110_000
ROUNDS = 5
OURS, PEER, STORAGE = "open_tars", "webdataset", "positioned reads"


def write_tars(folder: Path) -> list[str]:
    """Tars of samples, each a picture of noise and a class."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = noises(MEAN_SIZE)

    def members(number: int) -> Iterator[tuple[str, bytes]]:
        for sample in range(SAMPLES):
            yield f"{number}-{sample:06d}.jpg", next(pictures)
            yield f"{number}-{sample:06d}.cls", b"%d" % (sample % 1000)

    paths = [folder / f"bench-{number}.tar" for number in range(TARS)]
    for number, path in enumerate(paths):
        write_members(path, members(number))
    return [str(path) for path in paths]


def peer_of(paths: list[str]) -> torch.utils.data.DataLoader:
    """webdataset as it is used: tars in random order, a shuffling buffer, batches of workers."""
    dataset = webdataset.WebDataset(paths, shardshuffle=len(paths)).shuffle(BUFFER)
    batches = dataset.batched(BATCH, collation_fn=list)
    return torch.utils.data.DataLoader(
        batches, batch_size=None, num_workers=WORKERS, persistent_workers=True
    )


def addresses(loader: TarLoader) -> list[tuple[int, int, int]]:
    """(tar, offset, size) of all members in the order of the epoch."""
    members = [loader.samples.members_of(rows)[0] for rows in loader.plan.batches(0)]
    columns = [np.concatenate(column).tolist() for column in zip(*members, strict=True)]
    return list(zip(columns[0], columns[2], columns[3], strict=True))


def read_all(paths: list[str], members: list[tuple[int, int, int]]) -> None:
    """Read members by plain positioned reads."""
    files = [os.open(path, os.O_RDONLY) for path in paths]
    for tar, offset, size in members:
        os.pread(files[tar], size, offset)
    for file in files:
        os.close(file)


def cpu_seconds() -> float:
    """CPU time of this process and its workers so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(spent.user + spent.system for spent in times)


def measured(way: Callable[[int], object], round_number: int) -> tuple[float, float]:
    """Samples per second, and microseconds of CPU per sample."""
    cpu = cpu_seconds()
    began = time.perf_counter()
    way(round_number)
    seconds = time.perf_counter() - began
    samples = TARS * SAMPLES
    return samples / seconds, 1e6 * (cpu_seconds() - cpu) / samples


def epoch_of(loader: TarLoader, epoch: int) -> None:
    loader.set_epoch(epoch)
    for _ in loader:
        pass


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder / "bench_open_tars"
    warnings.simplefilter("ignore")
    paths = write_tars(folder)
    loader = open_tars(paths, batch_size=BATCH, workers=WORKERS)
    peer = peer_of(paths)
    members = addresses(loader)
    ways = {
        OURS: lambda epoch: epoch_of(loader, epoch),
        PEER: lambda epoch: sum(1 for _ in peer),
        STORAGE: lambda epoch: read_all(paths, members),
    }
    results = {name: [] for name in ways}
    for round_number in range(ROUNDS + 1):
        for name, way in ways.items():
            result = measured(way, round_number)
            # The first round starts workers and fills the page cache.
            if round_number:
                results[name].append(result)
    loader.close()
    shutil.rmtree(folder)

    load = os.getloadavg()[0]
    print(f"samples/s, medians of {ROUNDS}; load of the machine at the end {load:.1f}")
    for name, values in results.items():
        rates, cpu = zip(*values, strict=True)
        ratios = [ours[0] / rate for ours, rate in zip(results[OURS], rates, strict=True)]
        print(
            f"{name:17} {statistics.median(rates):9,.0f} (from {min(rates):,.0f} to"
            f" {max(rates):,.0f}), {statistics.median(cpu):.0f} us of CPU for each; open_tars is"
            f" {statistics.median(ratios):.2f} times that"
        )


if __name__ == "__main__":
    main()
