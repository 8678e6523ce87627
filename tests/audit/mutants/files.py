"""The files that some loaders read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from PIL import Image

from tests.audit.mutants.vision import picture


def write(folder: Path) -> None:
    """Bytes, a large array, pictures in two formats, and four folders with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bytes.bin").write_bytes(bytes(range(24)))
    np.save(
        folder / "numbers.npy", np.random.default_rng(0).random((64, 1 << 14), dtype=np.float32)
    )
    (folder / "pictures").mkdir()
    for index in range(12):
        for kind in ("png", "ppm"):
            Image.fromarray(picture(index)).save(folder / f"pictures/{index:02d}.{kind}")
    # Seconds ago that the index, its files and a log beside them were written.
    with_index(folder / "older", [9000, 100, 100])
    with_index(folder / "newer", [100, 9000, 9000])
    with_index(folder / "log", [5000, 9000, 10])
    with_index(folder / "gone", [100, 9000, 9000])
    (folder / "gone/07.bin").unlink()


def with_index(folder: Path, ages: list[int]) -> None:
    folder.mkdir()
    paths = [folder / f"{number:02d}.bin" for number in range(12)]
    index = [{"path": path.name, "size": 7} for path in paths]
    for path in (folder / "index.json", folder / "run.log", *paths):
        path.write_text(json.dumps(index) if path.suffix == ".json" else f"file {path.stem[:2]}")
        when = path.stat().st_mtime - ages[(".json", ".bin", ".log").index(path.suffix)]
        os.utime(path, (when, when))
