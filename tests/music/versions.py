"""A small corpus of versions: each clique is a tune, its versions differ in key, length and
noise."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from millrace.music.features.index import FeatureIndex
from tests.music.features import trees

SIZES = {"train": (6, 3), "valid": (3, 2), "test": (3, 2)}
# A model of 0.1 million parameters, shingles of 4 s.
TINY = [
    "model.name=clews-tiny",
    "model.shingling.len=4",
    "model.shingling.hop=4",
    "data.audiolen=10",
]


def corpus(
    folder: Path,
    sizes: dict[str, tuple[int, int]] = SIZES,
    frames: int = 700,
    chunks: int = 2,
    hop: float | None = None,
) -> FeatureIndex:
    """Splits with (cliques, versions of each), and features of 14 s by 0.02 s in HDF5 files,
    indexed; the files state their hop if it is given."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [h5py.File(folder / f"chunk_{number:05}.h5", "w") for number in range(chunks)]
    tune = track = 0
    for split, (cliques, versions) in sizes.items():
        content: dict[str, list[dict]] = {}
        for _ in range(cliques):
            tune += 1
            base = trees.cqt(tune, frames + 40)
            for version in range(versions):
                track += 1
                name = trees.number(track)
                values = np.roll(base, version, 1)[version : version + frames - 7 * version]
                values = values + 0.05 * trees.cqt(1000 + track, len(values))
                attributes = {"hop_s": hop} if hop else {}
                trees.add_group(files[track % chunks], name, values.astype(np.float32), attributes)
                rows = content.setdefault(f"C-{tune}", [])
                rows.append({"version_id": f"V-{track}", "youtube_id": name})
        (folder / f"{split}.json").write_text(json.dumps(content))
    for file in files:
        file.close()
    return trees.indexed(folder, [Path(file).name for file in sorted(folder.glob("chunk_*.h5"))])


def overrides(folder: Path, *more: str) -> list[str]:
    """A tiny configuration of that corpus on the CPU, without workers."""
    paths = [f"path.splits.{name}={folder}/{name}.json" for name in SIZES]
    paths += [f"path.index={folder}/features.index", f"path.logs={folder}/logs", "jobname=tiny"]
    small = [
        "training.batchsize=4",
        "data.nworkers=0",
        "fabric.accelerator=cpu",
        "training.numepochs=2",
    ]
    return [*TINY, *paths, *small, *more]
