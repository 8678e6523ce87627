"""The files that some loaders read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.audit.mutants.vision import picture


def write(folder: Path) -> None:
    """Bytes, a large array, pictures in two formats, and two folders with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bytes.bin").write_bytes(bytes(range(24)))
    np.save(
        folder / "numbers.npy", np.random.default_rng(0).random((64, 1 << 14), dtype=np.float32)
    )
    for kind in ("png", "ppm"):
        (folder / kind).mkdir()
        for index in range(12):
            Image.fromarray(picture(index)).save(folder / kind / f"{index:02d}.{kind}")
    with_index(folder / "there")
    with_index(folder / "gone")
    (folder / "gone/07.bin").unlink()


def with_index(folder: Path) -> None:
    folder.mkdir()
    index = [{"path": f"{number:02d}.bin", "size": 7} for number in range(12)]
    (folder / "index.json").write_text(json.dumps(index))
    for entry in index:
        (folder / entry["path"]).write_text(f"file {entry['path'][:2]}")
