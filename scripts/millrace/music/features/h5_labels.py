"""What attributes, names and neighbours say of a data set in an HDF5 file: whose it is, how a long
array is cut into tracks, and its hop."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from millrace.common.loading.h5 import UNREADABLE, values_of
from millrace.music.features.metadata import HOP_NAMES, ID_NAMES
from millrace.music.features.track import Refused

# Data sets that hold features and bear no id, and those that lie beside one long array.
USUAL = ("cqt", "data", "features")
BESIDE = ("ids", "offsets")

_HOP_IN_SAMPLES = "hop_length"
_RATE = "sr"
_LEAST_HOP = 0.002  # seconds; less is a number of another unit

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
            value = _plain(item.attrs[name])
            is_single = isinstance(value, list) and len(value) == 1
            result[name] = value[0] if is_single else value
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


def stated_owner(about: Attributes, about_group: Attributes) -> str | None:
    """Whose a data set is by an attribute of it or its group; None if there is none."""
    for stated in (about, about_group):
        for key in ID_NAMES:
            if isinstance(stated.get(key), str):
                return stated[key]
    return None


def named_owner(name: str) -> str:
    """Whose a data set is by the group of a usual name, or by its own name."""
    group, _, own_name = name.rpartition("/")
    if group and own_name in USUAL:
        return group.rpartition("/")[2]
    return own_name


def parts(
    dataset: Any, owner_id: str, about: Attributes, bins: int
) -> tuple[list[Part], Refused | None]:
    """The tracks of a long array in the order of its ids, and why they cannot be told apart; no
    parts if it is one track."""
    ids = _beside("ids", dataset, about)
    offsets = _beside("offsets", dataset, about)
    is_one_track = offsets is None and owner_id not in USUAL
    if ids is None or owner_id in ids or is_one_track:
        return [], None

    total = max([0, *(side for side in dataset.shape if side != bins)]) or bins
    edges = offsets or []
    if len(edges) == len(ids):
        edges = [*edges, total]
    is_rising = all(type(number) is int for number in edges) and edges == sorted(edges)
    if not is_rising or len(edges) != len(ids) + 1 or (edges[0], edges[-1]) != (0, total):
        words = f"no offsets beside it say how {len(ids)} tracks share its {total} frames: give "
        words += "`offsets`, the first frame of each"
        return [Part(name) for name in ids], Refused("bad_offsets", words)
    return [Part(*cut) for cut in zip(ids, edges, edges[1:], strict=False)], None


def _beside(name: str, dataset: Any, about: Attributes) -> list | None:
    """The list of this name in the group of a data set, or in its attributes."""
    value = dataset.parent.get(name, about.get(name))
    if hasattr(value, "chunks"):  # a data set
        # What was never written, or lies in another file (virtual), would be read as 0.
        value = values_of(value) if value.id.get_storage_size() else None
    plain = _plain(value)
    return plain if isinstance(plain, list) else None


def hop(about: Attributes) -> float | None:
    """The stated seconds per frame; None if no attribute is called like it.

    Raises Refused for names and units that are not known, and for two values.
    """
    found = [_seconds(name, about) for name in about if "hop" in name.lower()]
    if not found:
        return None
    if max(found) - min(found) > 1e-3 * min(found):
        raise Refused("bad_hop", f"attributes say hops of {found} s")
    return found[0]


def _seconds(name: str, about: Mapping[str, Any]) -> float:
    value = about[name]
    rate = about.get(_RATE)
    seconds = 0.0
    if name in HOP_NAMES and _is_number(value):
        seconds = value
    elif name == _HOP_IN_SAMPLES and _is_number(value) and _is_number(rate):
        seconds = value / rate
    if not _LEAST_HOP <= seconds < 1:
        words = f"attribute {name} is {value!r}, the sample rate {rate!r}"
        words += ": give hop_s in seconds, or hop_length in samples and sr in Hz"
        raise Refused("bad_hop", words)
    return seconds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0
