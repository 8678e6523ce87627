"""A window of a track out of the mapped bytes of its file, without the HDF5 library."""

from __future__ import annotations

import math

import numpy as np

from millrace.common.loading.h5 import RawFile
from millrace.music.features.track import CHUNKS, Track

_HALF_BITS, _HALF_SCALE = np.int32(0x8FFFE000 - (1 << 32)), np.float32(2.0**112)


def read_window(file: RawFile, track: Track, start: int, frames: int) -> np.ndarray:
    """Stored values of frames [start, start + frames), which the track must have, as (C, T).

    May be a view of mapped bytes that cannot be written to. Raises EOFError if the file ends before them.
    """
    kind, bins, pitch = np.dtype(track.dtype), track.bins, track.pitch
    if track.storage == CHUNKS:
        return _from_chunks(file, track, kind, start, frames)
    # Whole frames that follow one another are a window of this kind too.
    shape, at = ((frames, bins), start * pitch) if track.time_axis == 0 else ((bins, frames), start)
    at = track.offset + at * kind.itemsize
    if at + ((shape[0] - 1) * pitch + shape[1]) * kind.itemsize > file.status.st_size:
        raise EOFError
    view = np.ndarray(shape, kind, file.map, at, (pitch * kind.itemsize, kind.itemsize))
    return view.T if track.time_axis == 0 else view


def as_float32(values: np.ndarray) -> np.ndarray:
    """Finite values as float32; float32 as they are.

    Of float16, bits are moved to their places in float32 and 2 ** 112 makes up for the exponent's other
    bias: exact, and four times as fast as astype.
    """
    if values.dtype != "<f2":
        return values.astype(np.float32, copy=False)
    wide = values.view("<i2").astype("<i4")
    wide <<= 13
    wide &= _HALF_BITS
    result = wide.view("<f4")
    result *= _HALF_SCALE
    return result


def _from_chunks(file: RawFile, track: Track, kind: np.dtype, start: int, frames: int) -> np.ndarray:
    """Put the window together from plain chunks; those at an edge are stored whole."""
    axis, chunks = track.time_axis, track.chunks
    across, along, volume = chunks[1 - axis], chunks[axis], math.prod(chunks) * kind.itemsize
    start += track.first % along
    result = np.empty((frames, track.bins) if axis == 0 else (track.bins, frames), kind)
    window = result.T if axis == 0 else result
    for column in range(start // along, -(-(start + frames) // along)):
        low, high = max(start, column * along), min(start + frames, (column + 1) * along)
        for row in range(-(-track.bins // across)):
            cell = column * track.pitch + row if axis == 0 else row * track.pitch + column
            address = int(track.addresses[cell])
            if address < 0 or address + volume > file.status.st_size:
                raise EOFError
            chunk = np.ndarray(chunks, kind, file.map, address)
            part = (chunk.T if axis == 0 else chunk)[:, low - column * along : high - column * along]
            part, top = part[: track.bins - row * across], row * across
            window[top : top + len(part), low - start : high - start] = part
    return window
