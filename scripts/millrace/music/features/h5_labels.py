"""What attributes, names and neighbours say of a data set in an HDF5 file: whose it is, and its
hop."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from millrace.music.features.metadata import DURATION_NAMES, HOP_NAMES, ID_NAMES
from millrace.music.features.track import Refused

# Data sets that hold features, and those that lie beside one long array.
USUAL = {
    "cqt",
    "data",
    "feature",
    "features",
    "magnitude",
    "magnitude_cqt",
    "spectrogram",
    "values",
    "x",
}
_IDS = ("ids", "youtube_ids", "ytids")
_OFFSETS = ("offsets",)
BESIDE = {*_IDS, *_OFFSETS}

# Attributes.
_OWNERS = (*ID_NAMES, "id", "video_id")
_HOP_IN_SAMPLES = "hop_length"
_RATES = ("sr", "sample_rate")
_LIKE_HOPS = re.compile("hop|fps|frame_?rate|frames_per_s", re.IGNORECASE)
_LEAST_HOP = 0.002  # seconds; less is a number of another unit

VIDEO_ID = re.compile(r"[A-Za-z0-9_-]{11}")
# What h5py raises of damaged files, of sizes that they state, and of types that it does not know.
UNREADABLE = (OSError, RuntimeError, LookupError, TypeError, ValueError, MemoryError, OverflowError)
Attributes = dict[str, Any]


class Part(NamedTuple):
    """A data set, or what of a long array belongs to one id. `stop` is -1 for its end."""

    id: str
    start: int = 0
    stop: int = -1


def attributes(item: Any) -> Attributes:
    """Attributes of a file, group or data set, but those of types unknown here."""
    result = {}
    for name in item.attrs:
        with contextlib.suppress(*UNREADABLE):
            result[name] = _plain(item.attrs[name])
    return result


def _plain(value: Any) -> Any:
    """An attribute or data set as Python's own values; None if it holds nothing."""
    if getattr(value, "shape", ()) is None:
        return None
    plain = np.asarray(value).tolist()
    if isinstance(plain, list):
        return [_text(each) for each in plain]
    return _text(plain)


def _text(value: Any) -> Any:
    """Text without padding; what is no text stays as it is."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return value.strip("\0 ")
    return value


def _first(about: Attributes, names: Iterable[str], *kinds: type) -> Any:
    """The first attribute of these names that is of such a type, also as the only one of a list."""
    for name in names:
        value = about.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, kinds):
            return value
    return None


def duration(about: Attributes) -> float | None:
    """The stated duration in seconds."""
    return _first(about, DURATION_NAMES, int, float)


def owner(name: str, about: Attributes, about_group: Attributes) -> str:
    """Whose data set it is by an attribute of it or its group, the nearest id in its path, or its
    name."""
    *groups, own_name = name.split("/")
    # A name such as `spectrogram` has eleven letters, too.
    is_id = VIDEO_ID.fullmatch(own_name) and not re.fullmatch("[a-z_]+", own_name)
    if stated := _first(about, _OWNERS, str):
        return stated
    if is_id or not groups:
        return own_name

    if stated := _first(about_group, _OWNERS, str):
        return stated
    for group in reversed(groups):
        if VIDEO_ID.fullmatch(group):
            return group
    if own_name.lower() in USUAL:
        return groups[-1]
    return own_name


def parts(
    dataset: Any, owner_id: str, about: Attributes, model_bins: int
) -> tuple[list[Part], Refused | None]:
    """The tracks of a long array in the order of its ids, and why they cannot be told apart; no
    parts if it is one track."""

    def beside(names: Iterable[str]) -> list | None:
        for name in names:
            value = dataset.parent.get(name, about.get(name))
            plain = _plain(value[()] if hasattr(value, "dtype") else value)
            if isinstance(plain, list):
                return plain
        return None

    ids = beside(_IDS)
    offsets = beside(_OFFSETS)
    if ids is None or owner_id in ids or not all(isinstance(each, str) for each in ids):
        return [], None
    if offsets is None and owner_id.lower() not in USUAL:
        return [], None

    total = max([0, *(side for side in dataset.shape if side != model_bins)]) or model_bins
    edges = _edges(offsets or [], len(ids), total)
    if edges is None:
        words = f"no offsets beside it say how {len(ids)} tracks share its {total} frames: give "
        words += "`offsets`, the first frame of each"
        return [Part(each) for each in ids], Refused("bad_offsets", words)
    return [Part(*cut) for cut in zip(ids, edges, edges[1:], strict=False)], None


def _edges(offsets: list, count: int, total: int) -> Sequence[int] | None:
    """The first frames of `count` tracks and the end of the last, if they share an array of `total`
    frames without a gap. Offsets may hold the end."""
    if any(type(number) is not int for number in offsets):
        return None
    edges = [*offsets, total] if len(offsets) == count else offsets
    is_whole = len(edges) == count + 1 and edges == sorted(edges)
    if is_whole and (edges[0], edges[-1]) == (0, total):
        return edges
    return None


def hop(about: Attributes) -> float | None:
    """The stated seconds per frame; None if no attribute sounds like it.

    Raises Refused for names and units that are not known, and for two values.
    """
    rate = _first(about, _RATES, int, float)
    found: list[float] = []
    for name in filter(_LIKE_HOPS.search, about):
        value = _first(about, [name], int, float)
        is_known = name in HOP_NAMES or name == _HOP_IN_SAMPLES
        if value is None and not is_known:
            continue  # a text about the hop

        seconds = value if name in HOP_NAMES else None
        if name == _HOP_IN_SAMPLES and value and rate:
            seconds = value / rate
        if seconds is None or not _LEAST_HOP <= seconds < 1:
            words = f"attribute {name} is {about[name]!r}, the sample rate {rate!r}"
            words += ": give hop_s in seconds, or hop_length in samples and sr in Hz"
            raise Refused("bad_hop", words)
        found.append(seconds)

    if not found:
        return None
    least = min(found)
    most = max(found)
    if most - least > 1e-3 * least:
        raise Refused("bad_hop", f"attributes say hops of {least:g} s and of {most:g} s")
    return found[0]
