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

from millrace.common.loading.h5 import is_swmr, open_h5
from millrace.music.features import h5_labels as labels
from millrace.music.features import values
from millrace.music.features.metadata import Record
from millrace.music.features.track import (
    BY_H5PY,
    CHUNKS,
    H5,
    RAW,
    Contract,
    Refused,
    Track,
    check_duration,
    decide_hop,
)

_BLOCK = 1 << 22  # values read at once when a track is checked
_AMPLIFIED = 4
# Bytes: HDF5 reads whole chunks, and a packed one may be a thousandth of that in the file.
_LARGEST_CHUNK = 256 << 20


def read_file(
    root: str | os.PathLike, file: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All tracks of an HDF5 file, refused ones too. Where records give a key, the key says whose
    they are.

    A file that cannot be read is one refused track without id, and one for each record that points
    to it.
    """
    path, records = Path(root) / file, list(records)
    try:
        status, swmr = os.stat(path), is_swmr(path)
        with open_h5(os.fspath(path), swmr) as h5:
            tracks = list(_tracks(h5, file, records, contract))
    except labels.UNREADABLE as error:
        words = _line(error)
        missing, cut = isinstance(error, FileNotFoundError), "truncated" in words
        reason = "file_missing" if missing else "file_cut" if cut else "file_unreadable"
        for number in dict.fromkeys(["", *(record.id for record in records)]):
            yield Track(number, H5, file).refuse(reason, words)
        return
    for track in tracks:
        track.size, track.mtime_ns, track.swmr = status.st_size, status.st_mtime_ns, swmr
        if swmr and not track.refused:
            track.storage, track.addresses, track.offset = BY_H5PY, (), -1
        yield track


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _tracks(h5: Any, file: str, records: list[Record], contract: Contract) -> Iterator[Track]:
    """The tracks of an open file, then the ids that records, groups or links name and that have
    none."""
    import h5py

    by_id, by_key = {record.id: record for record in records}, defaultdict(list)
    for record in records:
        by_key[record.key or "/"].append(record)
    # Of groups only: a data set that is held keeps its chunks in memory.
    about, links = cache(lambda path: labels.attributes(h5[path])), []
    h5.id.links.visit(lambda name, info: links.append((name, info.type)), info=True)
    seen: set[str] = set()
    others: dict[str, str] = {}  # why what bears a name is no track
    for raw, link in links:
        name = raw.decode(errors="backslashreplace")
        parent, _, own = name.rpartition("/")
        if link != h5py.h5l.TYPE_HARD:
            others[own] = f"{name} is a link, which is not followed: state h5_key"
            continue
        if not isinstance(dataset := h5[raw], h5py.Dataset):
            others[own] = f"{name} is a group without features"
            continue
        group, own_about, is_named = (
            dataset.parent,
            labels.attributes(dataset),
            own.lower() in labels.CQT,
        )
        owner = labels.owner(name, own_about, about(group.name))
        keyed = by_key[name] or by_key[parent if is_named else None]
        is_beside = not is_named and any(
            each in group for each in labels.CQT
        )  # chroma, for example
        is_table = (
            dataset.ndim > 1 and own.lower() not in labels.BESIDE and not (parent and is_beside)
        )
        if dataset.dtype.kind not in "iufc" or not (keyed or is_named or is_table):
            if own.lower() not in labels.BESIDE:
                others.setdefault(owner, f"{name} has {dataset.ndim} dimensions of {dataset.dtype}")
            continue
        parts, problem = labels.parts(dataset, owner, own_about, contract.bins)
        if parts and is_beside:
            continue
        if not parts and len(keyed) > 1:
            problem = Refused(
                "shared_key", f"{len(keyed)} ids of the JSONL share {name}, without offsets"
            )
        elif not (parts or keyed) and owner.lower() in labels.CQT:
            problem = Refused(
                "no_id", f"whose is {name}? Name its group by the id, or state h5_key"
            )
        stated, grid = (
            about("/") | about(group.name) | own_about,
            cache(partial(_chunk_grid, dataset)),
        )
        # Of one track only: not of all in the group, nor of all in a long array.
        alone = {} if parts else about(group.name) | own_about if is_named else own_about
        duration = labels.first(alone, labels.DURATIONS, int, float)
        for number, start, stop in (
            parts or [(record.id, 0, -1) for record in keyed] or [(owner, 0, -1)]
        ):
            track, record = (
                Track(number, H5, file, name, first=start, frames=stop - start),
                by_id.get(number),
            )
            if record and record.key and not (parts or keyed):
                track.warnings.append("wrong_key")
            seen.update((number, *name.split("/")))
            try:
                if problem or name.encode() != raw:
                    raise problem or Refused("bad_name", "its name is not UTF-8")
                _describe(track, dataset, stated, record, contract)
                check_duration(track, duration, record)
                _place(track, dataset, contract, grid)
                if any(refusal := values.refusal(_blocks(track, dataset))):
                    raise Refused(*refusal)
            except Refused as refused:
                track.refuse(*refused.args)
            except labels.UNREADABLE as error:
                track.refuse("unreadable", _line(error))
            yield track
    for record in records:
        if record.id not in seen:
            words = others.get(
                record.id, f"there is no data set {record.key or record.id!r} of 2 dimensions"
            )
            yield Track(record.id, H5, file, record.key or "").refuse("wrong_pointer", words)
    lost = [
        each
        for each in sorted(others.keys() - seen - by_id.keys())
        if labels.VIDEO_ID.fullmatch(each)
    ]
    for number in lost if seen or lost else [""]:
        words = others.get(number) or ", ".join([*others.values()][:3]) or "it is empty"
        yield Track(number, H5, file).refuse("no_features", words)


def _describe(
    track: Track, dataset: Any, stated: labels.Attributes, record: Record | None, contract: Contract
) -> None:
    """Fill in type, orientation and hop of a track, each with its origin. Raises Refused."""
    shape, bins = dataset.shape, contract.bins
    track.facts = {"dtype": "file", "shape": "file", "bins": "config", "orientation": "inferred"}
    if dataset.ndim != 2 or dataset.dtype.kind != "f" or dataset.dtype.itemsize > 8:
        raise Refused(
            "dtype", f"{dataset.ndim} dimensions of {dataset.dtype}: 2 of floats are needed"
        )
    if dataset.is_virtual or dataset.external:
        raise Refused(
            "elsewhere", "its values lie in other files: index those, or copy it with h5repack"
        )
    if bins not in shape or labels.first(stated, labels.BINS, int, float) not in (None, bins):
        raise Refused(
            "bins", f"no axis of {list(shape)} has {bins} bins, or its attribute says otherwise"
        )
    if shape[0] == shape[1]:
        raise Refused(
            "orientation_unknown", f"both axes have {bins} values: which is time? Cut the track"
        )
    track.time_axis = int(shape[0] == bins)
    track.dtype, track.bins = dataset.dtype.str, bins
    if track.frames < 0:
        track.frames = shape[track.time_axis]
        if record and record.shape and sorted(record.shape) != sorted(shape):
            words = f"shape {list(shape)} in the file, {record.shape} in the JSONL"
            raise Refused("shape_contradicts", words)
    decide_hop(track, labels.hop(stated), record, contract)


def _place(track: Track, dataset: Any, contract: Contract, grid: Callable[[], np.ndarray]) -> None:
    """Where the values lie in the file: as one array, in plain chunks, or only h5py can say."""
    import h5py

    _check_size(dataset)
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    track.filters = "+".join(each[3].decode() or str(each[0]) for each in filters)
    track.chunks, track.storage, track.pitch = list(dataset.chunks or ()), BY_H5PY, dataset.shape[1]
    axis = track.time_axis
    # Addresses may count from behind a user block; a type that numpy lacks is converted by the
    # library.
    is_plain = h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type())
    is_plain = is_plain and not dataset.file.userblock_size and not filters
    if dataset.chunks is None:
        if (start := dataset.id.get_offset()) is not None and is_plain:
            step = dataset.dtype.itemsize * (track.pitch if axis == 0 else 1)
            track.storage, track.offset = RAW, start + track.first * step
        return
    window = max(1, min(track.frames, round(contract.shingle / track.hop)))
    across = (
        dataset.chunks[1 - axis] * math.ceil(track.bins / dataset.chunks[1 - axis]) / track.bins
    )
    touched = math.ceil(window / dataset.chunks[axis]) * dataset.chunks[axis] * across
    if touched > _AMPLIFIED * window and track.filters:
        track.warnings.append("read_amplification")
    if is_plain:
        # Only the part of the grid that holds the track, so that tracks of one long array share
        # nothing.
        low = track.first // dataset.chunks[axis]
        high = -(-(track.first + track.frames) // dataset.chunks[axis])
        part = grid()[low:high] if axis == 0 else grid()[:, low:high]
        if part.size and (part >= 0).all():
            track.storage, track.addresses, track.pitch = (
                CHUNKS,
                part.ravel().tolist(),
                part.shape[1],
            )


def _sides(dataset: Any) -> list[int]:
    """How many chunks lie along each axis."""
    return [
        math.ceil(side / chunk) for side, chunk in zip(dataset.shape, dataset.chunks, strict=True)
    ]


def _check_size(dataset: Any) -> None:
    """Raise Refused if the file has fewer bytes than the data set chunks, or bytes where it has
    none."""
    size = dataset.file.id.get_filesize()
    needed = math.prod(_sides(dataset)) if dataset.chunks else dataset.nbytes
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
    step, end = max(1, _BLOCK // track.bins), track.first + track.frames
    for low in range(track.first, end, step):
        high = min(low + step, end)
        yield dataset[low:high] if track.time_axis == 0 else dataset[:, low:high]
