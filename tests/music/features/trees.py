"""Small trees of features: tracks that behave like a CQT over time, in every layout of the
field."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from millrace.music.features.decisions import PUBLISHED_HOP
from millrace.music.features.index import FeatureIndex, merge
from millrace.music.features.partition import FeaturePartition, build
from millrace.music.features.track import Contract, Track

BINS = 84
PUBLISHED = Contract(hop=PUBLISHED_HOP)


def cqt(seed: int, frames: int = 1200, bins: int = BINS) -> np.ndarray:
    """Linear magnitudes (T, C), float32: smooth over time as a CQT's bass, alike in neighbouring
    bins."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((frames + 31, bins + 3)).cumsum(0)
    slow = noise[31:] - noise[:-31]
    mixed = np.abs(slow[:, :-3] + slow[:, 1:-2]) * rng.uniform(0.5, 1.5, bins) + 0.01
    return (mixed / 40).astype(np.float32)


def number(seed: int) -> str:
    """A video id: some begin with - or _, and pairs differ in case only."""
    return f"{'-_aA'[seed % 4]}{seed:03d}ABCD_-{'xX'[seed % 2]}"


def h5_file(root: Path) -> h5py.File:
    """The HDF5 file a.h5 of a tree, to be written."""
    return h5py.File(root / "a.h5", "w")


def add_group(
    h5: h5py.File, name: str, values: np.ndarray, attributes: dict | None = None, **storage
) -> None:
    h5.create_dataset(f"{name}/cqt", data=values, **storage).attrs.update(attributes or {})


def write_group(
    root: Path, name: str, values: np.ndarray, attributes: dict | None = None, **storage
) -> None:
    """The HDF5 file a.h5 of a tree, with one track."""
    with h5_file(root) as h5:
        add_group(h5, name, values, attributes, **storage)


def write_mm(
    root: Path, name: str, values: np.ndarray, sidecar: bool = True, folder: str | None = None
) -> Path:
    path = root / (name[:2] if folder is None else folder) / f"{name}.mm"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.ascontiguousarray(values).tobytes())
    if sidecar:
        np.save(path.with_suffix(".npy"), values.shape)
    return path


def scanned(
    root: Path,
    h5: Iterable[str] | None = None,
    mm: Iterable[str] = (),
    contract: Contract | None = None,
    records=None,
) -> list[Track]:
    """The tracks of these files and folders; of all HDF5 files, if none are named."""
    files = sorted(path.name for path in root.glob("*.h5")) if h5 is None else h5
    places = [("h5", path) for path in files] + [("mm", path) for path in mm]
    partitions = [
        FeaturePartition("p", kind, str(root), path, (records or {}).get(path, []))
        for kind, path in places
    ]
    return [track for partition in partitions for track in build(partition, contract or Contract())]


def reasons(tracks: Iterable[Track]) -> dict[str, str]:
    """Why tracks are refused, by their ids; "" of a good one."""
    return {track.id: track.refused for track in tracks}


def indexed(root: Path, *args, contract: Contract | None = None, **kwargs) -> FeatureIndex:
    tracks = scanned(root, *args, contract=contract, **kwargs)
    merge(
        root / "features.index", tracks, {"h5": str(root), "mm": str(root)}, contract or Contract()
    )
    return FeatureIndex(root / "features.index")
