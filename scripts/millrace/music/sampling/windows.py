"""Windows of tracks as the model takes them: averaged to its frames, repeated if they are too
short, cut into shingles."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from millrace.music.features.reader import WindowReader
from millrace.music.features.track import Contract


class Geometry(NamedTuple):
    """A window of `length` frames of the model, in shingles of `size` frames, one every `step`.

    `longest`: frames of a track that windows are drawn from, 0 for all.
    """

    length: int
    size: int
    step: int
    longest: int = 0


class ShingleReader:
    """Gives shingles (S, C, T) of tracks, float32, from any frame of the model on.

        reader = ShingleReader(WindowReader(index), Contract())
        shingles = reader.read(track, frames, hop, 0, Geometry(1500, 200, 100))  # (14, 84, 200)

    Frames are those of the model, of `contract.hop * contract.pool` seconds.
    """

    def __init__(self, windows: WindowReader, contract: Contract) -> None:
        self.windows = windows
        self.contract = contract

    def length(self, frames: int, hop: float) -> int:
        """Whole frames of the model in a track of so many stored ones, 1 at least."""
        return max(1, frames // self._pool(hop))

    def _pool(self, hop: float) -> int:
        """Stored frames in a frame of the model; the index has no other hops."""
        return self.contract.pooling(hop) or 1

    def read(
        self, track: int, frames: int, hop: float, start: int, geometry: Geometry
    ) -> np.ndarray:
        """The shingles of a track of so many stored frames, its window beginning at frame `start`.

        If the track is shorter it is repeated to the length; the last shingle is filled with the
        window's beginning, as published.
        """
        length, size, step, _ = geometry
        window = self._window(track, frames, hop, start, length)
        have = window.shape[1]

        steps = math.ceil((length - size) / step)
        last = max(0, steps) * step
        at = np.arange(last + size) % length
        filled = window[:, at % have]

        view = np.lib.stride_tricks.sliding_window_view(
            filled,
            size,
            axis=1,
            writeable=True,
        )
        shingles = view[:, ::step].swapaxes(0, 1)
        return np.ascontiguousarray(shingles)

    def _window(self, track: int, frames: int, hop: float, start: int, length: int) -> np.ndarray:
        """(C, T) frames of the model from `start` on, `length` or up to the track's end."""
        pool = self._pool(hop)
        left = self.length(frames, hop) - start
        count = min(length, left)

        first = start * pool
        stored = min(count * pool, frames - first)
        values = self.windows.read(track, first, stored)
        if stored < pool:  # the whole track is shorter than a frame
            return values.mean(1, keepdims=True)
        return values.reshape(len(values), count, pool).mean(2)
