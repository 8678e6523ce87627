"""Features in .mm files: raw values without a header, in the published form or in the original
script's.

Published: float16 (T, C), with the shape in <id>.npy beside it. The original script: float32 (C,
T), shape in the JSONL. Either read as the other gives numbers that look like features, so nothing
is taken for granted.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from millrace.music.features import values
from millrace.music.features.metadata import Record
from millrace.music.features.track import (
    MM,
    RAW,
    Contract,
    Refused,
    Track,
    check_duration,
    decide_hop,
)

_REMEDY = "put its shape into <id>.npy beside it, or `shape` into the JSONL"


def read_folder(
    root: str | os.PathLike, folder: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All .mm files of a folder, and those that records name, refused ones too."""
    by_id = {record.id: record for record in records}
    named = defaultdict(list)
    for record in by_id.values():
        named[record.mm].append(record.id)
    try:
        names = [name for name in os.listdir(Path(root) / folder) if name.lower().endswith(".mm")]
    except OSError as error:
        names = []
        yield Track("", MM, folder).refuse("unreadable", str(error.strerror))
    files = {os.path.join(folder, name) for name in names}
    for file in sorted(files | named.keys() - {None}):
        stem, ending = os.path.splitext(os.path.basename(file))
        for number in named.get(file, [stem]):
            track = Track(number, MM, file)
            try:
                if file not in files:
                    raise Refused("missing", "the file is not there")
                if ending != ".mm" or len(named.get(file, ())) > 1:
                    raise Refused(
                        "bad_name", f"its name ends in {ending}, or several mm_path lead to it"
                    )
                if file not in named and folder[-2:].casefold() != stem[:2].casefold():
                    words = f"it belongs into the folder {stem[:2]}, and no mm_path of the JSONL leads here"
                    raise Refused("misplaced", words)
                if file not in named and folder[-2:] != stem[:2]:
                    track.warnings.append("other_casing")
                _read(Path(root) / file, track, by_id.get(number, Record(number)), contract)
            except Refused as refused:
                track.refuse(*refused.args)
            except OSError as error:
                track.refuse("unreadable", str(error.strerror))
            except MemoryError:
                track.refuse("unreadable", "the file is larger than the memory")
            yield track


def _read(path: Path, track: Track, record: Record, contract: Contract) -> None:
    """Find out how an .mm file is to be read. Raises Refused if that is not certain, or it holds no
    CQT."""
    raw, status = path.read_bytes(), os.stat(path)
    track.size, track.mtime_ns, track.storage, track.offset = (
        status.st_size,
        status.st_mtime_ns,
        RAW,
        0,
    )
    if not raw:
        raise Refused("empty", "the file has 0 bytes")
    shape, origin = record.shape, "jsonl" if record.shape else "inferred"
    if (sidecar := path.with_suffix(".npy")).exists():
        shape, origin = _shape(sidecar), "sidecar"

    # Bytes by shape give the type; without a shape the bits do. Both must agree.
    kind, bins = values.float_kind(raw), contract.bins
    if shape:
        size = {2: "<f2", 4: "<f4"}.get(len(raw) / (shape[0] * shape[1]))
        if size is None:
            words = f"{len(raw)} bytes are no float16 or float32 values of shape {shape} ({origin})"
            raise Refused("wrong_shape", words)
        if kind and kind != size:
            words = f"the bits are those of {np.dtype(kind)}; shape {shape} ({origin}) says {np.dtype(size)}"
            raise Refused("dtype_contradicts", words)
        kind = size
    elif kind is None:
        raise Refused("dtype_unknown", f"float16 or float32? {_REMEDY}")
    else:
        frames, rest = divmod(len(raw), bins * np.dtype(kind).itemsize)
        shape = [bins, frames]
        if rest:
            raise Refused(
                "wrong_shape", f"{len(raw)} bytes are no frames of {bins} bins of {np.dtype(kind)}"
            )
    if bins not in shape:
        raise Refused(
            "bins", f"no axis of {shape} ({origin}) has {bins} bins, which the model takes"
        )
    flat = np.frombuffer(raw, kind).astype(np.float32)
    track.dtype, track.bins, track.frames = kind, bins, len(flat) // bins
    track.facts = {"bins": "config", "dtype": origin, "orientation": origin, "shape": origin}
    if any(refusal := values.refusal([flat])):
        raise Refused(*refusal)
    _orient(track, flat, shape, origin)
    track.pitch = bins if track.time_axis == 0 else track.frames
    decide_hop(track, None, record, contract)
    check_duration(track, None, record)
    _check_smoothness(track, flat, contract)


def _shape(sidecar: Path) -> list[int]:
    """The shape that an .npy beside an .mm holds."""
    try:
        with open(sidecar, "rb") as handle:
            shape = np.lib.format.read_array(handle, allow_pickle=False)
        if (
            shape.shape == (2,)
            and shape.dtype.kind in "iuf"
            and ((shape >= 1) & (shape % 1 == 0)).all()
        ):
            return [int(side) for side in shape]
    except (
        Exception
    ):  # NumPy reads the header as Python's text, and raises whatever damage makes of that
        pass
    raise Refused("bad_sidecar", f"{sidecar.name} holds no shape of two whole numbers")


def _orient(track: Track, flat: np.ndarray, shape: Sequence[int], origin: str) -> None:
    """Set the time axis: a shape beside the file is that of its bytes, one of the JSONL may be of
    (C, T) whatever is stored, so that the values have a say."""
    stated = None if shape[0] == shape[1] or origin == "inferred" else int(shape[0] == track.bins)
    likely, names = values.time_axis(flat, track.bins), ("(T, C)", "(C, T)")
    if stated is not None and origin == "sidecar":
        track.time_axis = stated
        # In the published form only averaging over time makes neighbouring frames differ, which
        # _check_smoothness looks at.
        if likely == 1 - stated and (stated == 1 or track.dtype == "<f4"):
            words = f"the values are {names[likely]}, its .npy says {names[stated]}"
            raise Refused("orientation_contradicts", words)
    elif likely is not None:
        track.time_axis, track.facts["orientation"] = likely, "inferred"
    elif stated is None or (stated == 1 and track.dtype == "<f2"):
        # Published float16 files are (T, C), whatever order the JSONL has.
        words = f"{np.dtype(track.dtype)} of shape (T, C) or (C, T)? {_REMEDY}"
        raise Refused("orientation_unknown", words)
    else:
        track.time_axis = stated


def _check_smoothness(track: Track, flat: np.ndarray, contract: Contract) -> None:
    """Raise Refused if the hop is taken to be that of the published files and the values speak
    against it."""
    if track.facts["hop"] != "inferred":
        return
    seconds = track.frames * track.hop
    if values.is_too_rough(flat.reshape(-1, track.bins), short=seconds < contract.shingle):
        words = f"frames change too much from one to the next for a hop of {track.hop:.4f} s ({seconds:.1f} s"
        words += " in all): averaged over time? State hop_s in the JSONL if it is something else"
        raise Refused("downsampled", words)
