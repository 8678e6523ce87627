"""Features in HDF5 files: which data sets are tracks, which are passed over or refused, and where
their values lie."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common.errors import first_line
from millrace.common.loading.h5 import UNREADABLE, open_h5, regular_file, values_of
from millrace.music.features import h5_labels as labels
from millrace.music.features.decisions import (
    checked_digest,
    decide_hop,
    owner_by_name,
    time_axis,
)
from millrace.music.features.metadata import Record
from millrace.music.features.track import BY_H5PY, CHUNKS, H5, RAW, Contract, Refused, Track

_BLOCK = 1 << 22  # values read at once when a track is checked
# Bytes: HDF5 reads whole chunks, and a packed one may be a thousandth of that in the file.
_LARGEST_CHUNK = 256 << 20

AboutGroup = Callable[[str], labels.Attributes]  # the attributes of a group, by its path


def read_file(
    root: str | os.PathLike, file: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All tracks of an HDF5 file, refused ones too. Where records give a key, the key says whose
    they are.

    A file that cannot be read is one refused track without id, and one for each record that points
    to it.
    """
    path = Path(root) / file
    records = list(records)
    try:
        status = regular_file(path)
        with open_h5(os.fspath(path)) as h5:
            tracks = list(_tracks(h5, file, records, contract))
    except UNREADABLE as error:
        for number in dict.fromkeys(["", *(record.id for record in records)]):
            yield Track(number, H5, file).refuse("file_unreadable", first_line(error))
        return
    pointed_to = {record.id for record in records}
    for track in tracks:
        track.is_pointed_to = track.id in pointed_to
        track.size = status.st_size
        track.mtime_ns = status.st_mtime_ns
        yield track


class _Pointers:
    """The records of a file, by the id they describe and by the key they point to."""

    def __init__(self, records: list[Record]) -> None:
        self.by_id = {record.id: record for record in records}
        self.by_key: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.key:
                self.by_key[record.key].append(record)


class _DataSet:
    """A data set of an open file, and what its name, place and attributes say of it."""

    def __init__(self, values: Any, raw_name: bytes, about: AboutGroup) -> None:
        self.values = values  # the h5py.Dataset
        self.name = raw_name.decode(errors="backslashreplace")
        self.has_utf8_name = self.name.encode() == raw_name
        self.group, _, self.own_name = self.name.rpartition("/")
        self.has_usual_name = self.own_name in labels.USUAL
        self.attributes = labels.attributes(values)
        of_group = about(values.parent.name)
        stated = labels.stated_owner(self.attributes, of_group)
        # `sure_owner` counts against a pointer of the JSONL.
        if stated is None:
            self.owner = labels.named_owner(self.name)
            self.sure_owner = owner_by_name(self.owner)
        else:
            self.owner = self.sure_owner = stated
        # What is nearest to the values counts.
        self.stated = {**about("/"), **of_group, **self.attributes}

    @property
    def is_beside_features(self) -> bool:
        """Whether its group holds a data set of a usual name: this may be chroma beside `cqt`."""
        return not self.has_usual_name and any(name in self.values.parent for name in labels.USUAL)

    def may_be_features(self, is_pointed_to: bool) -> bool:
        """Whether it is worth a track, be it a refused one."""
        if self.values.dtype.kind not in "iufc" or self.values.shape is None:
            return False
        if is_pointed_to or self.has_usual_name:
            return True
        if self.own_name in labels.BESIDE or (self.group and self.is_beside_features):
            return False
        return self.values.ndim > 1


def _tracks(h5: Any, file: str, records: list[Record], contract: Contract) -> Iterator[Track]:
    """The tracks of an open file, then records that lead to none. Links are not followed."""
    import h5py

    pointers = _Pointers(records)
    # Of groups only: a data set that is held keeps its chunks in memory.
    about = cache(lambda group: labels.attributes(h5[group]))
    found: set[str] = set()
    links: list[tuple[bytes, int]] = []
    h5.id.links.visit(lambda name, info: links.append((name, info.type)), info=True)
    names = [name for name, kind in links if kind == h5py.h5l.TYPE_HARD]
    for raw_name in names:
        item = h5[raw_name]
        if not isinstance(item, h5py.Dataset):
            continue
        dataset = _DataSet(item, raw_name, about)
        pointing = pointers.by_key.get(dataset.name, [])
        try:
            is_worth_a_track = dataset.may_be_features(is_pointed_to=bool(pointing))
        except (TypeError, ValueError) as error:  # NumPy has no such type
            yield Track(dataset.owner, H5, file, dataset.name).refuse("dtype", first_line(error))
            continue
        if is_worth_a_track:
            for track in _tracks_of(dataset, file, pointing, pointers, contract):
                found.add(track.id)
                yield track

    for record in records:
        if record.id not in found:
            key = record.key or ""
            words = f"there is no data set {key or record.id!r} of 2 dimensions"
            yield Track(record.id, H5, file, key).refuse("wrong_pointer", words)
    if not found:
        words = f"none of its {len(names)} names is a data set of 2 dimensions"
        yield Track("", H5, file).refuse("no_features", words)


def _tracks_of(
    dataset: _DataSet, file: str, pointing: list[Record], pointers: _Pointers, contract: Contract
) -> Iterator[Track]:
    """The tracks of one data set, refused ones too."""
    cuts, problem = labels.parts(dataset.values, dataset.owner, dataset.attributes, contract.bins)
    if cuts and dataset.is_beside_features:
        return
    if not cuts:
        problem = _unclear_owner(dataset, pointing, pointers)

    chunk_grid = cache(partial(_chunk_grid, dataset.values))  # once for all parts, if one asks
    for part in cuts or _whole(dataset, pointing):
        frames = part.stop - part.start
        track = Track(str(part.id), H5, file, dataset.name, first=part.start, frames=frames)
        try:
            if problem:
                raise problem
            if not cuts:  # whose those are is said by the ids beside them
                track.owner = dataset.sure_owner
            _describe(track, dataset, pointers.by_id.get(part.id), contract)
            _place(track, dataset.values, chunk_grid)
            track.crc = checked_digest(_blocks(track, dataset.values))
        except Refused as refused:
            track.refuse(refused.reason, str(refused))
        except UNREADABLE as error:
            track.refuse("unreadable", first_line(error))
        yield track


def _whole(dataset: _DataSet, pointing: list[Record]) -> list[labels.Part]:
    """A data set of one track: of the records that point to it, or of its owner."""
    if pointing:
        return [labels.Part(record.id) for record in pointing]
    return [labels.Part(dataset.owner)]


def _unclear_owner(
    dataset: _DataSet, pointing: list[Record], pointers: _Pointers
) -> Refused | None:
    """Why nobody can say whose a data set of one track is."""
    if len(pointing) > 1:
        words = f"{len(pointing)} ids of the JSONL share {dataset.name}, without offsets"
        return Refused("shared_key", words)
    if pointing:
        return None
    if dataset.owner in labels.USUAL:
        words = f"whose is {dataset.name}? Name its group by the id, or state h5_key"
        return Refused("no_id", words)
    record = pointers.by_id.get(dataset.owner)
    if record and record.key:
        words = f"h5_key of the JSONL is {record.key}, this is {dataset.name}: mend the JSONL"
        return Refused("wrong_key", words)
    return None


def _describe(track: Track, dataset: _DataSet, record: Record | None, contract: Contract) -> None:
    """Fill in type, orientation and hop of a track. Raises Refused."""
    if not dataset.has_utf8_name:
        raise Refused("bad_name", "its name is not UTF-8")
    values = dataset.values
    shape = values.shape
    if values.ndim != 2 or values.dtype.kind != "f" or values.dtype.itemsize > 8:
        words = f"{values.ndim} dimensions of {values.dtype}: 2 of floats are needed"
        raise Refused("dtype", words)
    if values.is_virtual or values.external:
        words = "its values lie in other files: index those, or copy it with h5repack"
        raise Refused("elsewhere", words)

    track.time_axis = time_axis(shape, contract.bins)
    track.dtype = values.dtype.str
    track.bins = contract.bins

    if track.frames < 0:  # a whole data set
        track.frames = shape[track.time_axis]
    decide_hop(track, labels.hop(dataset.stated), record, contract)


def _place(track: Track, values: Any, grid: Callable[[], np.ndarray]) -> None:
    """Where the values lie in the file: as one array, in plain chunks, or only h5py can say."""
    _check_size(values)
    track.chunks = list(values.chunks or ())
    track.storage = BY_H5PY
    track.pitch = values.shape[1]
    if not _is_plain(values):
        return
    if not track.chunks:
        start = values.id.get_offset()
        if start is not None:  # None: never written
            step = values.dtype.itemsize * (track.pitch if track.time_axis == 0 else 1)
            track.storage = RAW
            track.offset = start + track.first * step
        return

    # Only the part of the grid that holds the track: tracks of one long array share nothing.
    chunk_frames = track.chunks[track.time_axis]
    low = track.first // chunk_frames
    high = math.ceil((track.first + track.frames) / chunk_frames)
    if track.time_axis == 0:
        part = grid()[low:high]
    else:
        part = grid()[:, low:high]
    track.storage = CHUNKS
    track.addresses = part.ravel().tolist()
    track.pitch = part.shape[1]


def _is_plain(values: Any) -> bool:
    """Whether the bytes in the file, at the addresses that the library states, are NumPy's."""
    import h5py

    # Addresses may count from behind a user block, filters pack.
    if values.file.userblock_size or values.id.get_create_plist().get_nfilters():
        return False
    # A type that NumPy lacks is converted by the library.
    return h5py.h5t.py_create(values.dtype).equal(values.id.get_type())


def _sides(dataset: Any) -> list[int]:
    """How many chunks lie along each axis."""
    sides = zip(dataset.shape, dataset.chunks, strict=True)
    return [math.ceil(side / chunk) for side, chunk in sides]


def _check_size(dataset: Any) -> None:
    """Raise Refused if not all of a data set was written, or a chunk is too large to be read."""
    size = dataset.file.id.get_filesize()
    if not dataset.chunks:
        if dataset.nbytes > size:
            words = f"shape {list(dataset.shape)} is more than the {size} bytes of the file"
            raise Refused("not_written", words)
        return

    needed = math.prod(_sides(dataset))
    written = dataset.id.get_num_chunks()
    if written < needed:
        words = f"of shape {list(dataset.shape)} {written} of {needed} chunks were ever written"
        raise Refused("not_written", words)
    chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk > max(_LARGEST_CHUNK, size):
        words = f"a chunk of {list(dataset.chunks)} is {chunk >> 20} MiB, more than the whole file"
        raise Refused("chunk_too_large", f"{words}: write it anew with smaller ones (h5repack)")


def _chunk_grid(dataset: Any) -> np.ndarray:
    """The address of every chunk of a data set."""
    grid = np.zeros(_sides(dataset), np.int64)

    def enter(chunk: Any) -> None:
        place = tuple(
            at // side for at, side in zip(chunk.chunk_offset, dataset.chunks, strict=True)
        )
        grid[place] = chunk.byte_offset

    dataset.id.chunk_iter(enter)
    return grid


def _blocks(track: Track, dataset: Any) -> Iterator[np.ndarray]:
    step = max(1, _BLOCK // track.bins)
    end = track.first + track.frames
    for low in range(track.first, end, step):
        high = min(low + step, end)
        where = np.s_[low:high] if track.time_axis == 0 else np.s_[:, low:high]
        yield values_of(dataset, where)
