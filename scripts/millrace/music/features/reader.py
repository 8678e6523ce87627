"""Windows of tracks by number: out of mapped bytes where the layout allows it, through h5py where
not."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

import numpy as np

from millrace.common.errors import MillraceError
from millrace.common.loading.h5 import RawFile, open_h5
from millrace.common.loading.open_files import OpenFiles
from millrace.common.machine.memory import keep_freed_memory
from millrace.music.features.index import FeatureIndex
from millrace.music.features.track import BY_H5PY, CHUNKS, H5, Refused, Track

_HALF_BITS, _HALF_SCALE = np.int32(0x8FFFE000 - (1 << 32)), np.float32(2.0**112)


class FeatureError(Refused):
    """Features that cannot be read: reason file_missing, file_cut or file_unreadable."""


class WindowReader:
    """Gives windows of stored frames as float32 (C, T).

        reader = WindowReader(FeatureIndex(path), prefer="h5", max_open_files=16)
        window = reader.read(number, start=0, frames=1000)

    If the preferred source cannot be read, the other one is if its hop is the same, which
    `fallbacks` counts by reason. At most `max_open_files` files are open in a process; each process
    opens its own, after fork, spawn and forkserver alike. A window that runs beyond the end goes on
    with what it has, from its own start (pad_mode repeat). The result may be a read-only view of
    the file's bytes: copy what is kept or changed.
    """

    def __init__(self, index: FeatureIndex, prefer: str = H5, max_open_files: int = 16) -> None:
        self.index, self.prefer, self.max_open_files = index, prefer, max_open_files
        self._files: OpenFiles[Any] = OpenFiles(_open, max_open_files)
        self.fallbacks: Counter = Counter()
        keep_freed_memory()

    def __reduce__(self) -> tuple:
        return WindowReader, (self.index, self.prefer, self.max_open_files)

    @property
    def open_files(self) -> int:
        """How many files are open in this process."""
        return len(self._files)

    def read(self, number: int, start: int, frames: int) -> np.ndarray:
        """Frames [start, start + frames) of a track, in frames as stored.

        Raises FeatureError if no source can be read, MillraceError if a file has changed since it
        was indexed or its lock is refused, IndexError for a start beyond the track.
        """
        failure, preferred_hop = None, 0.0
        for track in self.index.entries(number, self.prefer):
            # Frames of another hop would be another time; a shorter copy may end before the window.
            if failure and (
                start >= track.frames or abs(track.hop - preferred_hop) > 1e-6 * track.hop
            ):
                break
            preferred_hop = track.hop
            if not 0 <= start < track.frames or frames < 1:
                raise IndexError(f"{track.id}: frame {start} of {track.frames}")
            count = min(frames, track.frames - start)
            try:
                window = self._read(track, start, count)
            except FeatureError as error:
                failure = failure or error
                continue
            if failure:
                self.fallbacks[failure.reason] += 1
            if count < frames:
                window = np.take(window, np.arange(frames) % count, axis=1)
            return window
        raise failure or FeatureError("file_missing", f"{self.index.id(number)} has no features")

    def _read(self, track: Track, start: int, frames: int) -> np.ndarray:
        by_h5py = track.storage == BY_H5PY
        key = (track.file, track.source, track.size, track.mtime_ns, track.swmr, by_h5py)
        try:
            file = self._files.get(key)
            if by_h5py:
                return as_float32(_through_h5py(file, track, track.first + start, frames))
            if (now := os.fstat(file.descriptor)).st_mtime_ns != track.mtime_ns:
                raise _changed(track.file, track.size, track.mtime_ns, now)
            return as_float32(_from_map(file, track, start, frames))
        except EOFError:
            raise FeatureError(
                "file_cut", f"{track.file} {track.key}: ends before the window"
            ) from None
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            self._files.drop(key)
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            reason, words = (
                "file_missing" if missing else "file_unreadable",
                str(error).splitlines()[0],
            )
            raise FeatureError(reason, f"{track.file} {track.key}: {words}") from None

    def close(self) -> None:
        """Close all files; they open again when they are read."""
        self._files.close()


def _through_h5py(h5: Any, track: Track, start: int, frames: int) -> np.ndarray:
    """The window by the HDF5 library, below h5py's convenient layer, which costs a tenth of a
    millisecond."""
    from h5py import h5d, h5s

    dataset = h5d.open(h5.id, track.key.encode())
    shape = (frames, track.bins) if track.time_axis == 0 else (track.bins, frames)
    space, window = dataset.get_space(), np.empty(shape, track.dtype)
    space.select_hyperslab((start, 0) if track.time_axis == 0 else (0, start), shape)
    dataset.read(h5s.create_simple(shape), space, window)
    return window.T if track.time_axis == 0 else window


def _open(key: tuple[str, str, int, int, bool, bool]) -> Any:
    """Open a file, and refuse one that is not what was indexed: addresses would point anywhere."""
    path, source, size, mtime_ns, swmr, by_h5py = key
    status = os.stat(path)
    same = (status.st_size, status.st_mtime_ns) == (size, mtime_ns)
    if not (same or (swmr and status.st_size >= size)):
        raise _changed(path, size, mtime_ns, status)
    return open_h5(path, swmr) if by_h5py else RawFile(path, lock=source == H5)


def _changed(path: str, size: int, mtime_ns: int, now: os.stat_result) -> MillraceError:
    problem = (
        f"the file has changed since it was indexed (size {size} then, {now.st_size} bytes now; "
    )
    problem += f"mtime_ns {mtime_ns} then, {now.st_mtime_ns} now)"
    return MillraceError(problem, path, "Build its partition again")


def _from_map(file: RawFile, track: Track, start: int, frames: int) -> np.ndarray:
    """Stored values of frames [start, start + frames), which the track must have, as (C, T).

    May be a view of mapped bytes that cannot be written to. Raises EOFError if the file ends before
    them.
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

    Of float16, bits are moved to their places in float32 and 2 ** 112 makes up for the exponent's
    other bias: exact, and four times as fast as astype.
    """
    if values.dtype != "<f2":
        return values.astype(np.float32, copy=False)
    wide = values.view("<i2").astype("<i4")
    wide <<= 13
    wide &= _HALF_BITS
    result = wide.view("<f4")
    result *= _HALF_SCALE
    return result


def _from_chunks(
    file: RawFile, track: Track, kind: np.dtype, start: int, frames: int
) -> np.ndarray:
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
            part = (chunk.T if axis == 0 else chunk)[
                :, low - column * along : high - column * along
            ]
            part, top = part[: track.bins - row * across], row * across
            window[top : top + len(part), low - start : high - start] = part
    return window
