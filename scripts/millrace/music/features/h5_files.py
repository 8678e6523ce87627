"""Features in HDF5 files: which data sets are tracks, and where their values lie."""

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
from millrace.common.loading.h5 import is_swmr, open_h5
from millrace.music.features import h5_labels as labels
from millrace.music.features.decisions import check_duration, check_values, decide_hop, time_axis
from millrace.music.features.metadata import Record
from millrace.music.features.roots import regular_file
from millrace.music.features.track import BY_H5PY, CHUNKS, H5, RAW, Contract, Refused, Track

_BLOCK = 1 << 22  # values read at once when a track is checked
_AMPLIFIED = 4
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
        swmr = is_swmr(path)
        with open_h5(os.fspath(path)) as h5:
            tracks = list(_tracks(h5, file, records, contract))
    except labels.UNREADABLE as error:
        words = first_line(error)
        missing = isinstance(error, FileNotFoundError)
        cut = "truncated" in words
        reason = "file_missing" if missing else "file_cut" if cut else "file_unreadable"
        for number in dict.fromkeys(["", *(record.id for record in records)]):
            yield Track(number, H5, file).refuse(reason, words)
        return
    for track in tracks:
        track.size = status.st_size
        track.mtime_ns = status.st_mtime_ns
        track.swmr = swmr
        if swmr and not track.refused:
            track.storage = BY_H5PY
            track.addresses = ()
            track.offset = -1
        yield track


class _Pointers:
    """The records of a file, by the id they describe and by the key they point to."""

    def __init__(self, records: list[Record]) -> None:
        self.by_id = {record.id: record for record in records}
        self._by_key: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.key:
                self._by_key[record.key].append(record)

    def to(self, dataset: _DataSet) -> list[Record]:
        """The records that point to a data set, or to the group whose features it holds."""
        direct = self._by_key.get(dataset.name, [])
        if direct or not dataset.has_usual_name:
            return direct
        return self._by_key.get(dataset.parent, [])


class _DataSet:
    """A data set of an open file, and what its name, place and attributes say of it."""

    def __init__(self, values: Any, raw_name: bytes, about: AboutGroup) -> None:
        self.values = values  # the h5py.Dataset
        self.name = raw_name.decode(errors="backslashreplace")
        self.has_utf8_name = self.name.encode() == raw_name
        self.parent, _, self.own_name = self.name.rpartition("/")
        self.attributes = labels.attributes(values)
        self._about_file = about("/")
        self._about_group = about(values.parent.name)
        self.owner = labels.owner(self.name, self.attributes, self._about_group)

    @property
    def stated(self) -> labels.Attributes:
        """Attributes of file, group and data set: what is nearest to the values counts."""
        return {
            **self._about_file,
            **self._about_group,
            **self.attributes,
        }

    @property
    def duration(self) -> float | None:
        """Seconds that its own attributes state, or those of the group that holds nothing else."""
        if self.has_usual_name:
            return labels.duration({**self._about_group, **self.attributes})
        return labels.duration(self.attributes)

    @property
    def has_usual_name(self) -> bool:
        """Whether its name says that it holds features: `cqt`, `data`."""
        return self.own_name.lower() in labels.USUAL

    @property
    def is_label(self) -> bool:
        """Whether it holds the ids or offsets of a long array."""
        return self.own_name.lower() in labels.BESIDE

    @property
    def is_beside_features(self) -> bool:
        """Whether its group holds a data set of a usual name: this may be chroma beside `cqt`."""
        return not self.has_usual_name and any(name in self.values.parent for name in labels.USUAL)

    def may_be_features(self, is_pointed_to: bool) -> bool:
        """Whether it is worth a track, be it a refused one."""
        if self.values.dtype.kind not in "iufc":
            return False
        if is_pointed_to or self.has_usual_name:
            return True
        is_table = self.values.ndim > 1 and not self.is_label
        is_another_feature = self.parent and self.is_beside_features
        return is_table and not is_another_feature


def _tracks(h5: Any, file: str, records: list[Record], contract: Contract) -> Iterator[Track]:
    """The tracks of an open file, then the ids that records, groups or links name and that have
    none."""
    import h5py

    pointers = _Pointers(records)
    # Of groups only: a data set that is held keeps its chunks in memory.
    about = cache(lambda group: labels.attributes(h5[group]))
    found: set[str] = set()  # ids of tracks, and the names on the way to them
    no_track: dict[str, str] = {}  # why what bears a name is no track

    for raw_name, link_type in _links(h5):
        name = raw_name.decode(errors="backslashreplace")
        own_name = name.rpartition("/")[2]
        if link_type != h5py.h5l.TYPE_HARD:
            no_track[own_name] = f"{name} is a link, which is not followed: state h5_key"
            continue
        item = h5[raw_name]
        if not isinstance(item, h5py.Dataset):
            no_track[own_name] = f"{name} is a group without features"
            continue

        dataset = _DataSet(item, raw_name, about)
        pointing = pointers.to(dataset)
        if not dataset.may_be_features(is_pointed_to=bool(pointing)):
            if not dataset.is_label:
                words = f"{name} has {item.ndim} dimensions of {item.dtype}"
                no_track.setdefault(dataset.owner, words)
            continue

        for track in _tracks_of(dataset, file, pointing, pointers, contract):
            found.update((track.id, *name.split("/")))
            yield track

    for record in records:
        if record.id not in found:
            key = record.key or ""
            nothing = f"there is no data set {key or record.id!r} of 2 dimensions"
            words = no_track.get(record.id, nothing)
            yield Track(record.id, H5, file, key).refuse("wrong_pointer", words)
    yield from _without_features(file, no_track, found, pointers)


def _without_features(
    file: str, no_track: dict[str, str], found: set[str], pointers: _Pointers
) -> Iterator[Track]:
    """Names that look like ids and have no track, or the file as a whole."""
    unknown = sorted(no_track.keys() - found - pointers.by_id.keys())
    lost = [name for name in unknown if labels.VIDEO_ID.fullmatch(name)]
    for name in lost:
        yield Track(name, H5, file).refuse("no_features", no_track[name])
    if not found and not lost:
        words = ", ".join([*no_track.values()][:3]) or "it is empty"
        yield Track("", H5, file).refuse("no_features", words)


def _links(h5: Any) -> list[tuple[bytes, int]]:
    """All names in a file, of groups, too, and what kind of link each is."""
    links: list[tuple[bytes, int]] = []
    h5.id.links.visit(lambda name, info: links.append((name, info.type)), info=True)
    return links


def _tracks_of(
    dataset: _DataSet, file: str, pointing: list[Record], pointers: _Pointers, contract: Contract
) -> Iterator[Track]:
    """The tracks of one data set, refused ones too."""
    cuts, problem = labels.parts(dataset.values, dataset.owner, dataset.attributes, contract.bins)
    if cuts and dataset.is_beside_features:
        return
    if not cuts:
        problem = _unclear_owner(dataset, pointing) or problem

    # One duration is not that of each track of a long array.
    duration = None if cuts else dataset.duration
    chunk_grid = cache(partial(_chunk_grid, dataset.values))  # once for all parts, if one asks
    is_found_by_name = not cuts and not pointing
    for part in cuts or _whole(dataset, pointing):
        frames = part.stop - part.start
        track = Track(part.id, H5, file, dataset.name, first=part.start, frames=frames)
        record = pointers.by_id.get(part.id)
        if is_found_by_name and record and record.key:
            track.warnings.append("wrong_key")
        try:
            if problem:
                raise problem
            _describe(track, dataset, record, contract)
            check_duration(track, duration, record)
            _place(track, dataset.values, contract, chunk_grid)
            track.warnings += check_values(_blocks(track, dataset.values))
        except Refused as refused:
            track.refuse(refused.reason, str(refused))
        except labels.UNREADABLE as error:
            track.refuse("unreadable", first_line(error))
        yield track


def _whole(dataset: _DataSet, pointing: list[Record]) -> list[labels.Part]:
    """A data set of one track: of the records that point to it, or of its owner."""
    if pointing:
        return [labels.Part(record.id) for record in pointing]
    return [labels.Part(dataset.owner)]


def _unclear_owner(dataset: _DataSet, pointing: list[Record]) -> Refused | None:
    """Why nobody can say whose a data set of one track is."""
    if len(pointing) > 1:
        words = f"{len(pointing)} ids of the JSONL share {dataset.name}, without offsets"
        return Refused("shared_key", words)
    if not pointing and dataset.owner.lower() in labels.USUAL:
        words = f"whose is {dataset.name}? Name its group by the id, or state h5_key"
        return Refused("no_id", words)
    return None


def _describe(track: Track, dataset: _DataSet, record: Record | None, contract: Contract) -> None:
    """Fill in type, orientation and hop of a track, each with its origin. Raises Refused."""
    if not dataset.has_utf8_name:
        raise Refused("bad_name", "its name is not UTF-8")
    values = dataset.values
    shape = dataset.values.shape
    track.facts = {
        "dtype": "file",
        "shape": "file",
        "bins": "config",
        "orientation": "inferred",
    }
    if values.ndim != 2 or values.dtype.kind != "f" or values.dtype.itemsize > 8:
        words = f"{values.ndim} dimensions of {values.dtype}: 2 of floats are needed"
        raise Refused("dtype", words)
    if values.is_virtual or values.external:
        words = "its values lie in other files: index those, or copy it with h5repack"
        raise Refused("elsewhere", words)

    track.time_axis = time_axis(shape, contract.bins)
    track.dtype = values.dtype.str
    track.bins = contract.bins

    is_whole = track.frames < 0
    if is_whole:
        track.frames = shape[track.time_axis]
        if record and record.shape and sorted(record.shape) != sorted(shape):
            words = f"shape {list(shape)} in the file, {record.shape} in the JSONL"
            raise Refused("shape_contradicts", words)
    decide_hop(track, labels.hop(dataset.stated), record, contract)


def _place(track: Track, values: Any, contract: Contract, grid: Callable[[], np.ndarray]) -> None:
    """Where the values lie in the file: as one array, in plain chunks, or only h5py can say."""
    _check_size(values)
    properties = values.id.get_create_plist()
    filters = []
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        filters.append(name.decode() or str(code))
    track.filters = "+".join(filters)
    track.chunks = list(values.chunks or ())
    track.storage = BY_H5PY
    track.pitch = values.shape[1]
    if track.filters and _is_costly(track, contract):
        track.warnings.append("read_amplification")

    if not _is_plain(values) or filters:
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
    if part.size and (part >= 0).all():
        track.storage = CHUNKS
        track.addresses = part.ravel().tolist()
        track.pitch = part.shape[1]


def _is_plain(values: Any) -> bool:
    """Whether the bytes in the file, at the addresses that the library states, are NumPy's."""
    import h5py

    # Addresses may count from behind a user block.
    if values.file.userblock_size:
        return False
    # A type that NumPy lacks is converted by the library.
    return h5py.h5t.py_create(values.dtype).equal(values.id.get_type())


def _is_costly(track: Track, contract: Contract) -> bool:
    """Whether the chunks that hold a shingle have several times its values."""
    if not track.chunks:
        return False
    window = max(1, min(track.frames, round(contract.shingle / track.hop)))
    chunk_frames = track.chunks[track.time_axis]
    chunk_bins = track.chunks[1 - track.time_axis]
    frames = math.ceil(window / chunk_frames) * chunk_frames
    bins = math.ceil(track.bins / chunk_bins) * chunk_bins
    return frames * bins > _AMPLIFIED * window * track.bins


def _sides(dataset: Any) -> list[int]:
    """How many chunks lie along each axis."""
    sides = zip(dataset.shape, dataset.chunks, strict=True)
    return [math.ceil(side / chunk) for side, chunk in sides]


def _check_size(dataset: Any) -> None:
    """Raise Refused if the file has fewer bytes than the data set chunks, or bytes where it has
    none."""
    size = dataset.file.id.get_filesize()
    if dataset.chunks:
        needed = math.prod(_sides(dataset))
    else:
        needed = dataset.nbytes
    if needed > size:
        parts = f"{needed} chunks" if dataset.chunks else f"{needed} bytes"
        words = f"shape {list(dataset.shape)} is {parts}, more than the {size} bytes of the file"
        raise Refused("not_written", f"{words}: most of it was never written")
    chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    if dataset.chunks and chunk > max(_LARGEST_CHUNK, size):
        words = f"a chunk of {list(dataset.chunks)} is {chunk >> 20} MiB, more than the whole file"
        raise Refused("chunk_too_large", f"{words}: write it anew with smaller ones (h5repack)")


def _chunk_grid(dataset: Any) -> np.ndarray:
    """The address of every chunk of a data set, -1 if it was never written."""
    grid = np.full(_sides(dataset), -1, np.int64)

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
        yield dataset[low:high] if track.time_axis == 0 else dataset[:, low:high]
