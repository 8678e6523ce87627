"""Windows of tracks by number: out of mapped bytes where the layout allows it, through h5py where
not; a file that has changed since it was indexed is refused."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from millrace.common.errors import MillraceError, first_line
from millrace.common.loading.h5 import RawFile, open_h5
from millrace.common.loading.open_files import OpenFiles
from millrace.common.machine.memory import keep_freed_memory
from millrace.music.features.index import FeatureIndex
from millrace.music.features.track import BY_H5PY, CHUNKS, H5, Refused, Track

_HALF_BITS = np.int32(0x8FFFE000 - (1 << 32))
_HALF_SCALE = np.float32(2.0**112)


class FeatureError(Refused):
    """Features that cannot be read: reason file_missing, file_cut or file_unreadable."""


class WindowReader:
    """Gives windows of stored frames as float32 (C, T).

        reader = WindowReader(FeatureIndex(path), max_open_files=16)
        window = reader.read(number, start=0, frames=1000)

    At most `max_open_files` files are open in a process; each process
    opens its own, after fork, spawn and forkserver alike. A window that runs beyond the end goes on
    with what it has, from its own start (pad_mode repeat). The result may be a read-only view of
    the file's bytes: copy what is kept or changed.
    """

    def __init__(self, index: FeatureIndex, max_open_files: int = 16) -> None:
        self.index = index
        self.max_open_files = max_open_files
        self._files: OpenFiles[Any] = OpenFiles(_open, max_open_files)
        keep_freed_memory()

    def __reduce__(self) -> tuple:
        return WindowReader, (self.index, self.max_open_files)

    @property
    def open_files(self) -> int:
        """How many files are open in this process."""
        return len(self._files)

    def read(self, number: int, start: int, frames: int) -> np.ndarray:
        """Frames [start, start + frames) of a track, in frames as stored.

        Raises FeatureError if its file cannot be read, MillraceError if a file has changed since it
        was indexed or its lock is refused, IndexError for a start beyond the track.
        """
        track = self.index.track(number)
        if not 0 <= start < track.frames or frames < 1:
            raise IndexError(f"{track.id}: frame {start} of {track.frames}")
        count = min(frames, track.frames - start)
        with self._files.lock:
            window = self._read(track, start, count)
        if count < frames:
            window = np.take(window, np.arange(frames) % count, axis=1)
        return window

    def _read(self, track: Track, start: int, frames: int) -> np.ndarray:
        by_h5py = track.storage == BY_H5PY
        key = (track.file, track.source, track.size, track.mtime_ns, by_h5py)
        try:
            file = self._files.get(key)
            if by_h5py:
                return as_float32(_through_h5py(file, track, track.first + start, frames))
            now = os.fstat(file.descriptor)
            if (now.st_size, now.st_mtime_ns) != (track.size, track.mtime_ns):
                raise _changed(track.file, track.size, track.mtime_ns, now)
            return as_float32(_from_map(file, track, start, frames))
        except EOFError:
            words = f"{track.file} {track.key}: ends before the window"
            raise FeatureError("file_cut", words) from None
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            self._files.drop(key)
            reason = "file_unreadable"
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                reason = "file_missing"
            words = f"{track.file} {track.key}: {first_line(error)}"
            raise FeatureError(reason, words) from None

    def close(self) -> None:
        """Close all files; they open again when they are read."""
        self._files.close()


def _through_h5py(h5: Any, track: Track, start: int, frames: int) -> np.ndarray:
    """The window by the HDF5 library."""
    stop = start + frames
    if track.time_axis == 0:
        return h5[track.key][start:stop].T
    return h5[track.key][:, start:stop]


def _open(key: tuple[str, str, int, int, bool]) -> Any:
    """Open a file, and refuse one that is not what was indexed: addresses would point anywhere."""
    path, source, size, mtime_ns, by_h5py = key
    status = os.stat(path)
    if (status.st_size, status.st_mtime_ns) != (size, mtime_ns):
        raise _changed(path, size, mtime_ns, status)
    if by_h5py:
        return open_h5(path)
    return RawFile(path, lock=source == H5)


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
    kind = np.dtype(track.dtype)
    if track.storage == CHUNKS:
        return _from_chunks(file, track, kind, start, frames)
    # Whole frames that follow one another are a window of this kind too.
    is_time_first = track.time_axis == 0
    if is_time_first:
        shape = (frames, track.bins)
        skipped = start * track.pitch
    else:
        shape = (track.bins, frames)
        skipped = start
    rows, columns = shape
    at = track.offset + skipped * kind.itemsize
    size = ((rows - 1) * track.pitch + columns) * kind.itemsize
    if at + size > file.status.st_size:
        raise EOFError
    strides = (track.pitch * kind.itemsize, kind.itemsize)
    view = np.ndarray(shape, kind, file.map, at, strides)
    return view.T if is_time_first else view


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
    is_time_first = track.time_axis == 0
    along = track.chunks[track.time_axis]  # frames of a chunk
    across = track.chunks[1 - track.time_axis]  # bins of a chunk
    start += track.first % along
    end = start + frames
    if is_time_first:
        window = np.empty((frames, track.bins), kind).T
    else:
        window = np.empty((track.bins, frames), kind)
    for column in range(start // along, math.ceil(end / along)):
        left = column * along
        low = max(start, left)
        high = min(end, left + along)
        for row in range(math.ceil(track.bins / across)):
            top = row * across
            chunk = _chunk(file, track, kind, column, row)
            part = chunk[: track.bins - top, low - left : high - left]
            window[top : top + len(part), low - start : high - start] = part
    return window


def _chunk(file: RawFile, track: Track, kind: np.dtype, column: int, row: int) -> np.ndarray:
    """A plain chunk as (C, T), by its place along time and across bins."""
    is_time_first = track.time_axis == 0
    if is_time_first:
        cell = column * track.pitch + row
    else:
        cell = row * track.pitch + column
    address = int(track.addresses[cell])
    size = math.prod(track.chunks) * kind.itemsize
    if address < 0 or address + size > file.status.st_size:
        raise EOFError
    chunk = np.ndarray(track.chunks, kind, file.map, address)
    return chunk.T if is_time_first else chunk
