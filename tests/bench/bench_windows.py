"""Random windows of CQT features, warm, one file, interleaved runs: ours, h5py, whole tracks,
pread.

    python -m tests.bench.bench_windows --folder /tmp/bench  (writes 0.2 GB, and removes them)

Every way gives float32 (C, T). `touched` rows also sum every window up: a window of mapped float32
is a view, of which nothing is read before it is used. Raw pread reads the same bytes of [T, C] into
an array. Times are CPU time, so that other programs of the machine disturb them less.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from millrace.common import cli
from millrace.common.loading.h5 import RawFile
from millrace.music.features import h5_files
from millrace.music.features.index import FeatureIndex, merge
from millrace.music.features.reader import WindowReader
from millrace.music.features.track import Contract

BINS, TRACKS, FRAMES = 84, 20, 12_000
LENGTH, WINDOWS, ROUNDS = 1000, 100, 7
LAYOUTS: dict[str, dict] = {
    "contiguous": {},
    "chunked": {"chunks": (1000, BINS)},
    "auto chunks": {"chunks": True},
    "gzip": {"chunks": (1000, BINS), "compression": "gzip", "compression_opts": 1},
}


def write(path: Path, layout: str, axis: int, dtype: str) -> None:
    rng, storage = np.random.default_rng(0), dict(LAYOUTS[layout])
    if axis == 1 and isinstance(storage.get("chunks"), tuple):
        storage["chunks"] = storage["chunks"][::-1]
    with h5py.File(path, "w") as h5:
        h5.attrs["hop_s"] = 0.02
        for number in range(TRACKS):
            values = (rng.random((FRAMES, BINS)) ** 4).round(3).astype(dtype)
            h5.create_dataset(
                f"{number:011d}/cqt", data=values if axis == 0 else values.T, **storage
            )


def ways(file: h5py.File, index: FeatureIndex, axis: int) -> dict[str, Callable]:
    reader = WindowReader(index)
    keys = [index.track(row).key for row in range(len(index))]
    places = [index.track(row) for row in range(len(index))]
    raw_file = RawFile(file.filename, lock=False)

    def with_h5py(row: int, start: int) -> np.ndarray:
        dataset = file[keys[row]]
        window = (
            dataset[start : start + LENGTH].T if axis == 0 else dataset[:, start : start + LENGTH]
        )
        return window.astype(np.float32, copy=False)

    def whole_track(row: int, start: int) -> np.ndarray:
        values = file[keys[row]][()].astype(np.float32, copy=False)
        return (values.T if axis == 0 else values)[:, start : start + LENGTH]

    def pread(row: int, start: int) -> np.ndarray:
        place = places[row]
        size = BINS * np.dtype(place.dtype).itemsize
        raw = os.pread(raw_file.descriptor, LENGTH * size, place.offset + start * size)
        return (
            np.frombuffer(raw, place.dtype).reshape(LENGTH, BINS).T.astype(np.float32, copy=False)
        )

    result = {"ours": lambda row, start: reader.read(row, start, LENGTH)}
    result |= {"h5py window": with_h5py, "whole track": whole_track}
    return result | ({"raw pread": pread} if axis == 0 and places[0].storage == "raw" else {})


def measure(functions: dict[str, Callable], windows: list, touch: bool) -> dict[str, list[float]]:
    seconds = {name: [] for name in functions}
    for at in range(ROUNDS + 1):
        for name, function in functions.items():
            started = time.process_time()
            for row, start in windows:
                window = function(row, start)
                if touch:
                    window.sum()
            if at:  # the first round warms up
                seconds[name].append((time.process_time() - started) / len(windows))
    return seconds


def compare(folder: Path, kind: tuple[str, int, str], windows: list) -> None:
    """Print the rates of one kind of file: its layout, axis of time and type of values."""
    layout, axis, dtype = kind
    path = folder / "a.h5"
    write(path, layout, axis, dtype)
    contract = Contract()
    tracks = list(h5_files.read_file(folder, "a.h5", [], contract))
    merge(folder / "index", tracks, {"h5": str(folder)}, contract)
    for touch in (False, True):
        with h5py.File(path, "r") as file:
            functions = ways(file, FeatureIndex(folder / "index"), axis)
            times = measure(functions, windows, touch)
            del functions
        ours = times.pop("ours")
        shown = f"{layout:11s} {('[T, C]', '[C, T]')[axis]} {dtype}"
        rate = 1 / statistics.median(ours)
        line = f"{shown} {'touched' if touch else '':7s} {rate:9,.0f} windows/s"
        for name, seconds in times.items():
            ratios = [theirs / mine for theirs, mine in zip(seconds, ours, strict=True)]
            line += f"  {name} {statistics.median(ratios):6.2f}x"
        print(line, flush=True)


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder / "bench_windows"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    starts = rng.integers(0, FRAMES - LENGTH, WINDOWS).tolist()
    windows = list(zip(rng.integers(0, TRACKS, WINDOWS).tolist(), starts, strict=True))
    print(f"{TRACKS} tracks of {FRAMES} frames, windows of {LENGTH}, load {os.getloadavg()[0]:.1f}")
    print(
        f"medians of {ROUNDS} interleaved rounds of {WINDOWS} windows; ratios: their time by ours"
    )
    try:
        for kind in itertools.product(LAYOUTS, (0, 1), ("f4", "f2")):
            compare(folder, kind, windows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
