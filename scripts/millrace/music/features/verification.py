"""What a person wants to see of a track before training: its facts and its values."""

from __future__ import annotations

import math
from typing import Any

from millrace.common.errors import MillraceError
from millrace.music.features.index import FeatureIndex
from millrace.music.features.reader import FeatureError, WindowReader
from millrace.music.features.splits import read_split

PLACE = ("storage", "offset", "chunks")


def number_of(index: FeatureIndex, split_file: str, split: str, at: int) -> int:
    """The number of a track by that of its recording in the file of a split.

    Raises MillraceError if it has no features that can be used.
    """
    ids = read_split(split_file, split).ids
    if at >= len(ids):
        raise MillraceError(f"{split} has {len(ids)} recordings, no number {at}", split_file)
    number = int(index.find([ids[at]])[0])
    if number < 0:
        remedy = "Look it up in rejects.jsonl and missing.jsonl beside the index"
        raise MillraceError(f"{ids[at]} has no features", index.path, remedy)
    return number


def facts(index: FeatureIndex, number: int, shingle: float) -> dict[str, Any]:
    """Facts and values of a track, in the order in which they are printed.

    `S` are the shingles of the whole track, one every `shingle` seconds, the last one filled by
    repetition.
    """
    track = index.track(number)
    try:
        values = WindowReader(index).read(number, 0, track.frames)
    except FeatureError as error:
        raise MillraceError(f"it cannot be read: {error}", track.id) from None
    seconds = track.frames * track.hop
    return {
        "id": track.id,
        "source": track.source,
        "file": track.file,
        "key": track.key,
        "storage": track.storage,
        "offset": track.offset,
        "chunks": list(track.chunks),
        "orientation": ("(T, C)", "(C, T)")[track.time_axis],
        "dtype": track.dtype,
        "shape": [track.bins, track.frames],
        "hop": track.hop,
        "pooling": index.contract.pooling(track.hop),
        "seconds": seconds,
        "S": max(0, math.ceil(seconds / shingle - 1)) + 1,
        "min": float(values.min()),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }
