"""What a person wants to see of a track before training: its facts, its values, its CQT and
shingles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.music.features.index import FeatureIndex
from millrace.music.features.reader import FeatureError, WindowReader
from millrace.music.features.splits import read_split
from millrace.music.features.track import BY_H5PY, H5, Contract


def number_of(
    index: FeatureIndex, split_file: str, split: str, at: int | None, video_id: str = ""
) -> int:
    """The number of a track by its id, or by the number `at` of its recording in the file of a
    split.

    Raises MillraceError if it has no features that can be used.
    """
    if not video_id:
        if not split_file:
            remedy = "Give --splits, or path.splits"
            raise MillraceError(f"no file of the split {split} is named", remedy=remedy)
        if at is None:
            raise MillraceError("no track is named", "--id", "Give an id, or --index")
        ids = read_split(split_file, split).ids
        if at >= len(ids):
            raise MillraceError(f"{split} has {len(ids)} recordings, no number {at}", split_file)
        video_id = ids[at]
    if (number := int(index.find([video_id])[0])) < 0:
        remedy = "Look it up in rejects.jsonl and missing.jsonl beside the index"
        raise MillraceError(f"{video_id} has no features", index.path, remedy)
    return number


def facts(index: FeatureIndex, number: int, contract: Contract, prefer: str = H5) -> dict:
    """Facts and values of a track as a flat dict, in the order in which they are printed.

    `S` are the shingles of the whole track, one every `shingle` seconds, the last one filled by
    repetition.
    """
    track = index.entries(number, prefer)[0]
    try:
        values = WindowReader(index, prefer, 1).read(number, 0, track.frames)
    except FeatureError as error:
        raise MillraceError(f"it cannot be read: {error}", track.id) from None
    finite = values[np.isfinite(values)]
    seconds = track.frames * track.hop
    return {
        **{name: getattr(track, name) for name in ("id", "source", "file", "key")},
        "offset": track.offset if track.offset >= 0 else None,
        "layout": {"raw": "contiguous", "chunks": "chunked", BY_H5PY: "filtered or virtual"}[
            track.storage
        ],
        "orientation": ("(T, C)", "(C, T)")[track.time_axis],
        "dtype": np.dtype(track.dtype).name,
        "shape": [track.bins, track.frames],
        "chunks": list(track.chunks) if track.chunks[0] else None,
        "hop": track.hop,
        "pooling": contract.pooling(track.hop),
        "seconds": seconds,
        "S": max(0, math.ceil(seconds / contract.shingle - 1)) + 1,
        **{
            name: float(getattr(finite, name)()) if finite.size else None
            for name in ("min", "mean", "max")
        },
        "nan": int(values.size - finite.size),
        "origins": track.facts,
    }


def write_picture(
    path: str | Path,
    index: FeatureIndex,
    numbers: Iterable[int],
    contract: Contract,
    prefer: str = H5,
) -> None:
    """Draw the CQT of tracks, a row each, with the borders of their shingles, as PNG (or by the
    ending)."""
    from matplotlib.figure import Figure

    numbers = list(numbers)
    reader = WindowReader(index, prefer)
    figure = Figure(figsize=(11, 2.4 * len(numbers) + 0.4), layout="constrained")
    rows = figure.subplots(len(numbers), squeeze=False)[:, 0]
    for axes, number in zip(rows, numbers, strict=True):
        track = index.entries(number, prefer)[0]
        values = reader.read(number, 0, track.frames)
        # About two thousand columns are what a picture shows: mean over the frames of each.
        step = max(1, values.shape[1] // 2000)
        whole = values.shape[1] // step * step
        columns = values[:, :whole].reshape(len(values), -1, step).mean(2)
        extent = (0, columns.shape[1] * step * track.hop, 0, len(values))
        axes.imshow(
            np.sqrt(columns.clip(0)), origin="lower", aspect="auto", extent=extent, cmap="magma"
        )
        for border in np.arange(contract.shingle, extent[1], contract.shingle):
            axes.axvline(border, color="white", linewidth=0.6)
        axes.set(
            title=f"{track.id} ({track.source})", ylabel="bin", xlabel="seconds; white: shingles"
        )
    reader.close()
    path = Path(path)
    with atomic.replacing(path) as partial:
        figure.savefig(
            partial, format=path.suffix[1:] or "png", dpi=100, metadata={"Software": None}
        )
