"""What attributes, names and neighbours say of a data set in an HDF5 file: whose it is, and its
hop."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from millrace.music.features.metadata import ID_NAMES
from millrace.music.features.track import Refused

# Names of a track's data set in its group, of what lies beside one long array, and of attributes.
CQT = {
    "cqt",
    "data",
    "feature",
    "features",
    "magnitude",
    "magnitude_cqt",
    "spectrogram",
    "x",
    "values",
}
_IDS = ("ids", "youtube_ids", "ytids", "video_ids", "track_ids", *ID_NAMES, "keys", "names")
_STARTS = (
    "offsets",
    "offset",
    "starts",
    "start",
    "index",
    "indices",
    "boundaries",
    "ptr",
    "indptr",
)
_LENGTHS = ("lengths", "length", "n_frames", "frames", "sizes")
_HOPS = (
    "hop_s",
    "hoplen_s",
    "frame_hop_s",
    "hop_seconds",
    "hoplen",
    "hop",
    "hop_length",
    "hop_size",
)
_LIKE_HOPS = re.compile("hop|fps|frame_?rate|frames_per_s")
_RATES = ("sr", "sample_rate", "samplerate", "sampling_rate")
BINS = ("n_bins", "bins", "nbins")
DURATIONS = ("duration_s", "duration_seconds")
BESIDE = {*_IDS, *_STARTS, *_LENGTHS, *_RATES}
_LEAST_HOP = 0.002  # seconds; less is a number of another unit
VIDEO_ID = re.compile(r"[A-Za-z0-9_-]{11}")
# What h5py raises of damaged files, of sizes that they state, and of types that it does not know.
UNREADABLE = (OSError, RuntimeError, LookupError, TypeError, ValueError, MemoryError, OverflowError)
Attributes = dict[str, Any]


def attributes(item: Any) -> Attributes:
    """Attributes of a file, group or data set by their lower-case names, but those of types unknown
    here."""
    result = {}
    for name in item.attrs:
        with contextlib.suppress(*UNREADABLE):
            result[name.lower()] = _plain(item.attrs[name])
    return result


def _plain(value: Any) -> Any:
    """An attribute or data set as Python's own values, text without padding; None if it holds
    nothing."""

    def text(each: Any) -> Any:
        each = each.decode(errors="backslashreplace") if isinstance(each, bytes) else each
        return each.strip("\0 ") if isinstance(each, str) else each

    value = None if getattr(value, "shape", ()) is None else np.asarray(value).tolist()
    return [text(each) for each in value] if isinstance(value, list) else text(value)


def first(about: Attributes, names: Iterable[str], *kinds: type) -> Any:
    """The first attribute of these names that is of such a type, also as the only one of a list."""
    for name in names:
        value = about.get(name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(value, kinds):
            return value
    return None


def owner(name: str, about: Attributes, about_group: Attributes) -> str:
    """Whose data set it is by an attribute of it or its group, the nearest id in its path, or its
    name."""
    *groups, own = name.split("/")
    is_id = VIDEO_ID.fullmatch(own) and not re.fullmatch("[a-z_]+", own)  # but `spectrogram`
    for stated in [about] if is_id or not groups else [about, about_group]:
        if number := first(stated, (*ID_NAMES, "id", "video_id"), str):
            return number
    ids = [own] if is_id else [group for group in groups[::-1] if VIDEO_ID.fullmatch(group)]
    return (ids or (groups[-1:] if own.lower() in CQT else []) or [own])[0]


def parts(
    dataset: Any, number: str, about: Attributes, bins: int
) -> tuple[list[tuple[str, int, int]], Refused | None]:
    """(id, first frame, end) of the tracks of a long array, in the order of its ids; none if it is
    one track.

    Offsets are first frames, ends, or pairs with ends or lengths. What does not cut the array
    without a gap, or does so in two ways, may be of another unit: it is refused.
    """

    def beside(names: Iterable[str]) -> list | None:
        others = (dataset.parent.get(name, about.get(name)) for name in names)
        lists = (_plain(each[()] if hasattr(each, "dtype") else each) for each in others)
        return next((each for each in lists if isinstance(each, list)), None)

    ids, starts, lengths = beside(_IDS), beside(_STARTS), beside(_LENGTHS)
    if ids is None or number in ids or not all(isinstance(each, str | int) for each in ids):
        return [], None
    if starts is lengths is None and number.lower() not in CQT:
        return [], None
    total = max([0, *(side for side in dataset.shape if side != bins)]) or bins
    ends = np.array(starts if starts is not None else np.cumsum(lengths or []))
    second = lengths
    if ends.shape == (len(ids), 2):
        ends, second = ends.T
    ways = {
        tuple(edges)
        for edges in (np.append(ends, total), np.append(0, ends), ends)
        if edges.dtype.kind in "iuf" and edges.shape == (len(ids) + 1,)
        if (edges[0], edges[-1]) == (0, total)
        and (np.diff(edges) >= 0).all()
        and (edges % 1 == 0).all()
        if second is None
        or np.array_equal(second, edges[1:])
        or np.array_equal(second, np.diff(edges))
    }
    edges = [int(edge) for edge in ways.pop()] if len(ways) == 1 else []
    cut = zip(
        map(str, ids), edges[:-1] or [0] * len(ids), edges[1:] or [-1] * len(ids), strict=True
    )
    words = (
        f"offsets or lengths beside it do not say how {len(ids)} tracks share its {total} frames"
    )
    return list(cut), None if edges else Refused("bad_offsets", words)


def hop(about: Attributes) -> float | None:
    """Seconds a frame by all attributes that say it, which must agree."""
    rate, hops = first(about, _RATES, int, float), []
    for name in filter(_LIKE_HOPS.search, about):
        value = first(about, [name], int, float)
        if value is None and name not in _HOPS:
            continue
        seconds = value / rate if value and rate and value >= 1 else value or 0
        if name not in _HOPS or not _LEAST_HOP <= seconds < 1:
            words = f"attribute {name} is {about[name]!r}, the sample rate {rate!r}"
            raise Refused(
                "bad_hop", f"{words}: give hop_s in seconds, or hop_length in samples and sr in Hz"
            )
        hops.append(seconds)
    if hops and max(hops) - min(hops) > 1e-3 * min(hops):
        raise Refused("bad_hop", f"attributes say hops of {min(hops):g} s and of {max(hops):g} s")
    return hops[0] if hops else None
