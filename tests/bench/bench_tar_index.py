"""Indexing a tar, cold and warm, in interleaved runs: ours, tarfile and `tar -tR`.

    python -m tests.bench.bench_tar_index --folder /tmp/bench  (writes 1.9 GB, and removes them)

Cold means that the page cache was dropped (as root) or the file was evicted (POSIX_FADV_DONTNEED).
Bytes read are those of /proc/self/io, thus what the storage gave.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from millrace.asr.tars.scan import scan
from millrace.common import cli

MEMBERS, MEAN_SIZE = 13_500, 140_000
NAMES = [f"./{number // 1000:03d}/clip_{number:08d}.flac" for number in range(MEMBERS)]


def noises(mean_size: int) -> Iterator[bytes]:
    """Noise without end, in pieces of 0.6 to 1.4 times `mean_size` bytes."""
    rng = np.random.default_rng(0)
    noise = rng.bytes(1 << 22)
    while True:
        size = int(mean_size * rng.uniform(0.6, 1.4))
        start = int(rng.integers(0, 1 << 21))
        yield noise[start : start + size]


def write_members(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """A tar whose bytes are on the disk, not a hole."""
    with open(path, "wb") as handle:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            handle.write(info.tobuf(tarfile.GNU_FORMAT) + content)
            handle.write(bytes(-len(content) % 512))
        handle.write(bytes(1024))
        os.fsync(handle.fileno())


def evict(path: Path) -> None:
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    time.sleep(0.2)


def storage_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def with_tarfile(path: Path) -> int:
    with tarfile.open(path, "r:") as tar:
        return len(tar.getmembers())


def with_tar(path: Path) -> int:
    return subprocess.run(["tar", "-tRf", str(path)], capture_output=True, check=True).stdout.count(
        b"\n"
    )


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "bench_tar_index.tar"
    ways = {
        "ours": lambda path: len(scan(path).names),
        "ours, 1 chain": lambda path: len(scan(path, 1).names),
        "tarfile": with_tarfile,
    }
    if shutil.which("tar"):
        ways["tar -tR"] = with_tar
    try:
        write_members(path, zip(NAMES, noises(MEAN_SIZE), strict=False))
        size = f"{MEMBERS} members, {path.stat().st_size / 1e9:.2f} GB"
        print(f"{size}, medians of {args.rounds} interleaved rounds")
        for state in ("cold", "warm"):
            seconds = {name: [] for name in ways}
            pages = {name: [] for name in ways}
            for _ in range(args.rounds):
                for name, way in ways.items():
                    (evict if state == "cold" else way)(path)
                    before, started = storage_bytes(), time.perf_counter()
                    count = way(path)
                    seconds[name].append(time.perf_counter() - started)
                    pages[name].append((storage_bytes() - before) / 4096 / MEMBERS)
                    assert count >= MEMBERS, (name, count)
            ours = statistics.median(seconds["ours"])
            for name, times in seconds.items():
                middle, pairs = statistics.median(times), zip(times, seconds["ours"], strict=True)
                ratio = statistics.median(other / mine for other, mine in pairs)
                line = f"{state} {name:14s} {MEMBERS / middle:9,.0f} members/s  "
                line += f"{middle / ours:5.2f}x our time (median of pairs {ratio:.2f}x)"
                if not name.startswith("tar -"):  # another process reads there
                    line += f", {statistics.median(pages[name]):.3f} x 4 KiB read a member"
                print(line)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
