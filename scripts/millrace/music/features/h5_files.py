"""Features in HDF5 files: which data sets are tracks, whose they are, and where their values lie."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common.loading.h5 import is_swmr, open_h5
from millrace.music.features import values
from millrace.music.features.metadata import ID_NAMES, Record
from millrace.music.features.track import BY_H5PY, CHUNKS, H5, RAW, Contract, Track

# Names of a track's data set in its group, and of what lies beside one long array.
_DATA_NAMES = {"cqt", "data", "feature", "features", "magnitude", "magnitude_cqt", "x", "values"}
_IDS = ("ids", "youtube_ids", "ytids", "id", *ID_NAMES, "keys", "names", "track_ids")
_STARTS = ("offsets", "offset", "starts", "start", "index", "indices", "boundaries", "ptr", "indptr")
_LENGTHS = ("lengths", "length", "n_frames", "frames", "sizes")
_HOPS = ("hop_s", "hoplen_s", "frame_hop_s", "hop_seconds", "hoplen", "hop", "hop_length", "hop_size")
_RATES = ("sr", "sample_rate", "samplerate", "sampling_rate")
_AXES = ("orientation", "layout", "axes", "dims", "dimensions", "order")
_BINS = ("n_bins", "bins", "nbins")
_TIME_WORDS = {"t", "time", "frames", "frame"}
_BIN_WORDS = {"c", "f", "freq", "frequency", "bins", "channels"}
_VIDEO_ID = re.compile(r"[A-Za-z0-9_-]{11}")
_BLOCK = 1 << 22  # values read at once when a track is checked
_AMPLIFIED = 4


def read_file(
    root: str | os.PathLike, file: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All tracks of an HDF5 file, refused ones too. Where records give a key, the key says whose they are.

    A file that cannot be read is one refused track without id, and one for each record that points to it.
    """
    path, records = Path(root) / file, list(records)
    try:
        status, swmr = os.stat(path), is_swmr(path)
        with open_h5(os.fspath(path), swmr) as h5:
            tracks = list(_tracks(h5, file, records, contract))
    except (OSError, RuntimeError, KeyError) as error:
        words = str(error).splitlines()[0]
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


def _tracks(h5: Any, file: str, records: list[Record], contract: Contract) -> Iterator[Track]:
    """The tracks of an open file: those of data sets found by walking, then pointers that led nowhere."""
    import h5py

    by_key = {record.key: record for record in records if record.key}
    by_id = {record.id: record for record in records}
    names: list[str] = []
    h5.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    seen: set[str] = set()
    for name in names:
        dataset, own = h5[name], name.rpartition("/")[2].lower()
        is_track = dataset.ndim == 2 and dataset.dtype.kind == "f" and not _is_beside_cqt(dataset, name)
        if not (is_track or name in by_key or own in _DATA_NAMES):
            continue
        grid = cache(partial(_chunk_grid, dataset))
        parts = _parts(dataset, contract.bins)
        if isinstance(parts, str):
            yield Track("", H5, file, name, layout="concatenated").refuse("bad_offsets", parts)
            continue
        owner = by_key[name].id if name in by_key else _owner(dataset, name)
        layout = "concatenated" if parts is not None else "group" if "/" in name else "flat"
        for number, start, stop in [(owner, 0, -1)] if parts is None else parts:
            record = by_id.get(number)
            track = Track(number, H5, file, name, layout=layout, first=start, frames=stop - start)
            if parts is None and record and record.key not in (None, name):
                track.warnings.append("wrong_key")
            seen.add(number)
            yield _described(track, dataset, record, contract, grid)
    for record in records:
        if record.id not in seen:
            words = f"there is no data set {record.key or record.id!r} of 2 dimensions"
            yield Track(record.id, H5, file, record.key or "").refuse("wrong_pointer", words)


def _is_beside_cqt(dataset: Any, name: str) -> bool:
    """Whether it is another feature of a track (chroma) that has a data set of a known name beside it."""
    parent, _, own = name.rpartition("/")
    others = (other.lower() for other in dataset.parent) if parent else ()
    return own.lower() not in _DATA_NAMES and not _DATA_NAMES.isdisjoint(others)


def _owner(dataset: Any, name: str) -> str:
    """Whose data set it is: an attribute of it or its group, else the name of it or its group."""
    parent, _, own = name.rpartition("/")
    stated = _attribute(dataset, (*ID_NAMES, "id", "video_id"), own_file=False)
    if isinstance(stated, str | bytes):
        return stated.decode() if isinstance(stated, bytes) else stated
    group = parent.rpartition("/")[2]
    is_group = own.lower() in _DATA_NAMES or (_VIDEO_ID.fullmatch(group) and not _VIDEO_ID.fullmatch(own))
    return group if is_group and group else own


def _attribute(dataset: Any, names: Iterable[str], own_file: bool = True) -> Any:
    """The first of these attributes on the data set, its group, or (`own_file`) the file."""
    groups = [dataset.parent] if own_file or dataset.parent.name != "/" else []
    for place in [dataset, *groups, *([dataset.file] if own_file else [])]:
        for name in names:
            if name in place.attrs:
                value = place.attrs[name]
                return value.item() if getattr(value, "size", 0) == 1 else value
    return None


def _parts(dataset: Any, bins: int) -> list[tuple[str, int, int]] | str | None:
    """(id, first frame, end) of the tracks of one long array; None if it is one track; a text if damaged."""

    def beside(names: tuple[str, ...]) -> Any:
        places = (dataset.attrs, dataset.parent)
        value = next((place[name] for name in names for place in places if name in place), None)
        return value[()] if hasattr(value, "shape") and not hasattr(value, "keys") else None

    ids, starts, lengths = beside(_IDS), beside(_STARTS), beside(_LENGTHS)
    if ids is None or np.ndim(ids) != 1 or (starts is None and lengths is None):
        return None
    texts = [number.decode() if isinstance(number, bytes) else str(number) for number in ids]
    if dataset.name.rpartition("/")[2] in texts:  # one of several tracks that the ids list
        return None
    times = [dataset.shape[1 - axis] for axis in (0, 1) if dataset.ndim == 2 and dataset.shape[axis] == bins]
    count, total = len(texts), max(times or dataset.shape)
    if starts is None:
        ends = np.cumsum(lengths)
        starts = ends - lengths
    elif np.ndim(starts) == 2 and np.shape(starts) == (count, 2):
        starts, ends = starts[:, 0], starts[:, 1]
    elif len(starts) == count + 1:
        starts, ends = starts[:-1], starts[1:]
    elif len(starts) == count:
        ends = starts + lengths if lengths is not None else np.append(starts[1:], total)
    else:
        return f"{len(starts)} offsets for {count} ids"
    pairs = list(zip(texts, np.asarray(starts).tolist(), np.asarray(ends).tolist(), strict=False))
    wrong = [each for each in pairs if not 0 <= each[1] <= each[2] <= total]
    if len(pairs) != count or wrong:
        return f"offsets {wrong[0][1:] if wrong else len(pairs)} do not fit {total} frames of {count} tracks"
    return pairs


def _described(
    track: Track, dataset: Any, record: Record | None, contract: Contract, grid: Callable[[], np.ndarray]
) -> Track:
    """Fill in type, orientation, hop and place of a track, and check its values."""
    stated_bins = _attribute(dataset, _BINS)
    bins = int(stated_bins) if isinstance(stated_bins, int | float) else contract.bins
    track.facts = {"dtype": "file", "shape": "file", "bins": "config" if stated_bins is None else "attribute"}
    if dataset.ndim != 2 or dataset.dtype.kind != "f" or dataset.dtype.itemsize > 8:
        return track.refuse("dtype", f"{dataset.ndim} dimensions of {dataset.dtype}: 2 of floats are needed")
    track.dtype, track.bins, shape = dataset.dtype.str, bins, dataset.shape
    fitting, axis = [axis for axis in (0, 1) if shape[axis] == bins], _stated_time_axis(dataset)
    track.facts["orientation"] = "inferred" if axis is None else "attribute"
    if not fitting:
        return track.refuse("bins", f"no axis of {list(shape)} has {bins} bins")
    if axis is None and len(fitting) == 2:
        words = f"both axes have {bins} values: time first or bins first? Give it an attribute `axes`"
        return track.refuse("orientation_unknown", words)
    track.time_axis = 1 - fitting[0] if axis is None else axis
    if shape[1 - track.time_axis] != bins:
        words = f"its attribute says that axis {axis} of {list(shape)} is time; there are {bins} bins"
        return track.refuse("orientation_contradicts", words)
    if track.layout != "concatenated":
        track.frames = shape[track.time_axis]
        if record and record.shape and sorted(record.shape) != sorted(shape):
            words = f"shape {list(shape)} in the file, {record.shape} in the JSONL"
            return track.refuse("shape_contradicts", words)
    hop, rate = _attribute(dataset, _HOPS), _attribute(dataset, _RATES)
    seconds = hop / rate if isinstance(hop, int | float) and hop >= 1 and rate else hop
    if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < 1):
        return track.refuse("bad_hop", f"the attribute of its hop is {hop!r}, of its sample rate {rate!r}")
    if seconds and record and record.hop and abs(seconds - record.hop) > 1e-3 * seconds:
        return track.refuse("hop_contradicts", f"hop {seconds:g} s in the file, {record.hop:g} in the JSONL")
    named = ((seconds, "attribute"), (record and record.hop, "jsonl"), (contract.hop, "config"))
    track.hop, track.facts["hop"] = next(each for each in named if each[0])
    _place(track, dataset, contract, grid)
    try:
        reason, words = values.refusal(_blocks(track, dataset))
    except (OSError, RuntimeError) as error:
        reason, words = "unreadable", str(error).splitlines()[0]
    return track.refuse(reason, words) if reason else track


def _stated_time_axis(dataset: Any) -> int | None:
    """The time axis by an attribute such as "(T, F)" or ["bins", "time"], or by labels of dimensions."""
    text = _attribute(dataset, _AXES)
    labels = [dimension.label for dimension in dataset.dims]
    text = " ".join(labels) if text is None and all(labels) else text
    parts = [text] if isinstance(text, str | bytes) else list(text) if text is not None else []
    text = " ".join(part.decode() if isinstance(part, bytes) else str(part) for part in parts).lower()
    words = [word for word in re.findall(r"[a-z]+", text) if word not in ("x", "by", "first", "major")]
    words = list(words[0]) if len(words) == 1 and len(words[0]) == 2 else words
    if len(words) == 2 and {words[0], words[1]} & _TIME_WORDS and {words[0], words[1]} & _BIN_WORDS:
        return int(words[1] in _TIME_WORDS)
    return None


def _place(track: Track, dataset: Any, contract: Contract, grid: Callable[[], np.ndarray]) -> None:
    """Where the values lie in the file: as one array, in plain chunks, or only h5py can say."""
    import h5py

    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    track.filters = "+".join(each[3].decode() or str(each[0]) for each in filters)
    track.chunks, track.storage, track.pitch = list(dataset.chunks or ()), BY_H5PY, dataset.shape[1]
    axis = track.time_axis
    # Addresses may count from behind a user block; a type that numpy lacks is converted by the library.
    is_plain = h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type())
    is_plain = is_plain and not dataset.file.userblock_size and not filters
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is not None and is_plain and not dataset.is_virtual and not dataset.external:
            step = dataset.dtype.itemsize * (track.pitch if axis == 0 else 1)
            track.storage, track.offset = RAW, start + track.first * step
        return
    window = max(1, min(track.frames, round(contract.shingle / track.hop)))
    across = dataset.chunks[1 - axis] * math.ceil(track.bins / dataset.chunks[1 - axis]) / track.bins
    touched = math.ceil(window / dataset.chunks[axis]) * dataset.chunks[axis] * across
    if touched > _AMPLIFIED * window and track.filters:
        track.warnings.append("read_amplification")
    if is_plain:
        # Only the part of the grid that holds the track, so that tracks of one long array share nothing.
        low = track.first // dataset.chunks[axis]
        high = -(-(track.first + track.frames) // dataset.chunks[axis])
        part = grid()[low:high] if axis == 0 else grid()[:, low:high]
        if part.size and (part >= 0).all():
            track.storage, track.addresses, track.pitch = CHUNKS, part.ravel().tolist(), part.shape[1]


def _chunk_grid(dataset: Any) -> np.ndarray:
    """The address of every chunk of a data set, -1 if it was never written."""
    sides = [math.ceil(side / chunk) for side, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    grid = np.full(sides, -1, np.int64)

    def enter(chunk: Any) -> None:
        place = tuple(at // side for at, side in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        grid[place] = chunk.byte_offset

    dataset.id.chunk_iter(enter)
    return grid


def _blocks(track: Track, dataset: Any) -> Iterator[np.ndarray]:
    step, end = max(1, _BLOCK // track.bins), track.first + track.frames
    for low in range(track.first, end, step):
        high = min(low + step, end)
        yield dataset[low:high] if track.time_axis == 0 else dataset[:, low:high]
