"""Features in .mm files: raw values without a header, in the published form or in the original script's.

Published: float16 (T, C), with the shape in <id>.npy beside it. The original script: float32 (C, T), shape in
the JSONL. Either read as the other gives numbers that look like features, so nothing is taken for granted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from millrace.music.features import values
from millrace.music.features.metadata import Record
from millrace.music.features.track import MM, PUBLISHED_HOP, RAW, Contract, Track

_REMEDY = "put its shape into <id>.npy beside it, or `shape` into the JSONL"


def read_folder(
    root: str | os.PathLike, folder: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All .mm files of a folder, or those that records name; a record's missing file is refused."""
    named = {record.mm: record for record in records if record.mm}
    by_id = {record.id: record for record in records}
    try:
        names = sorted(name for name in os.listdir(Path(root) / folder) if name.endswith(".mm"))
    except OSError:
        names = []
    files = {f"{folder}/{name}" if folder else name for name in names}
    for file in sorted(files | {*named}):
        number = named[file].id if file in named else file.rpartition("/")[2].removesuffix(".mm")
        track = Track(number, MM, file)
        if file not in files:
            yield track.refuse("missing", "the file is not there")
        elif not file.isprintable():
            yield Track(ascii(number), MM, ascii(file)).refuse("bad_name", "the name is no video id")
        elif file not in named and folder[-2:].casefold() != number[:2].casefold():
            words = f"it belongs into the folder {number[:2]}, and no mm_path of the JSONL leads here"
            yield track.refuse("misplaced", words)
        else:
            if file not in named and folder[-2:] != number[:2]:
                track.warnings.append("other_casing")
            yield read_file(root, track, by_id.get(number, Record(number)), contract)


def read_file(root: str | os.PathLike, track: Track, record: Record, contract: Contract) -> Track:
    """Find out how one .mm file is to be read; refused if that is not certain, or its values are no CQT."""
    path, track.layout, track.storage = Path(root) / track.file, "mm", RAW
    try:
        raw, status = path.read_bytes(), os.stat(path)
    except OSError as error:
        return track.refuse("unreadable", str(error.strerror))
    track.size, track.mtime_ns, track.offset = status.st_size, status.st_mtime_ns, 0
    if not raw:
        return track.refuse("empty", "the file has 0 bytes")
    shape, origin = record.shape, "jsonl" if record.shape else "inferred"
    sidecar = path.with_name(path.name.removesuffix(".mm") + ".npy")
    if sidecar.exists():
        try:
            shape, origin = [int(n) for n in np.load(sidecar, allow_pickle=False).astype("i8")], "sidecar"
            if len(shape) != 2 or min(shape) < 1:
                raise ValueError
        except (ValueError, OSError, EOFError, TypeError):
            return track.refuse("bad_sidecar", f"{sidecar.name} holds no shape of two whole numbers")

    # Bytes by shape give the type; without a shape the bits do. Both must agree.
    kind, bins = values.float_kind(raw), contract.bins
    if shape:
        size, count = {2: "<f2", 4: "<f4"}.get(len(raw) / (shape[0] * shape[1])), shape[0] * shape[1]
        if size is None:
            words = f"{len(raw)} bytes are no float16 or float32 values of shape {shape} ({origin})"
            return track.refuse("wrong_shape", words)
        if kind and kind != size:
            words = f"the bits are those of {np.dtype(kind)}; shape {shape} ({origin}) says {np.dtype(size)}"
            return track.refuse("dtype_contradicts", words)
        kind = size
    elif kind is None:
        return track.refuse("dtype_unknown", f"float16 or float32? {_REMEDY}")
    else:
        count = len(raw) // np.dtype(kind).itemsize
        if count % bins or count * np.dtype(kind).itemsize != len(raw):
            words = f"{count} values of {np.dtype(kind)} are no whole number of frames of {bins} bins"
            return track.refuse("wrong_shape", words)
        shape = [bins, count // bins]
    if (shape[0] == bins) + (shape[1] == bins) == 0:
        return track.refuse("bins", f"no axis of {shape} ({origin}) has {bins} bins, which the model takes")
    flat = np.frombuffer(raw, kind).astype(np.float32)
    track.dtype, track.bins, track.frames = kind, bins, count // bins
    track.facts = {"bins": "config", "dtype": origin, "orientation": origin, "shape": origin}
    reason, words = values.refusal([flat])
    if reason:
        return track.refuse(reason, words)
    _orient(track, flat, shape, origin)
    track.pitch = track.bins if track.time_axis == 0 else track.frames
    _find_hop(track, flat, record, contract)
    return track


def _orient(track: Track, flat: np.ndarray, shape: Sequence[int], origin: str) -> None:
    """Set the time axis: a shape beside the file is that of its bytes, one of the JSONL may be of (C, T)
    whatever is stored, so that the values have a say."""
    stated = None if shape[0] == shape[1] or origin == "inferred" else int(shape[0] == track.bins)
    likely, names = values.time_axis(flat, track.bins), ("(T, C)", "(C, T)")
    if stated is not None and origin == "sidecar":
        track.time_axis = stated
        # In the published form only averaging over time makes neighbouring frames differ: see _find_hop.
        if likely == 1 - stated and (stated == 1 or track.dtype == "<f4"):
            words = f"the values are {names[likely]}, its .npy says {names[stated]}"
            track.refuse("orientation_contradicts", words)
    elif likely is not None:
        track.time_axis, track.facts["orientation"] = likely, "inferred"
    elif stated is None or (stated == 1 and track.dtype == "<f2"):
        # Published float16 files are (T, C), whatever order the JSONL has.
        kind = np.dtype(track.dtype)
        track.refuse("orientation_unknown", f"{kind} of shape (T, C) or (C, T)? {_REMEDY}")
    else:
        track.time_axis = stated


def _find_hop(track: Track, flat: np.ndarray, record: Record, contract: Contract) -> None:
    """The hop is what the JSONL says; else that of the published files, if the values allow it."""
    published = track.dtype == "<f2" and track.time_axis == 0
    hops = (record.hop, "jsonl"), (published and PUBLISHED_HOP, "inferred"), (contract.hop, "config")
    track.hop, track.facts["hop"] = next(hop for hop in hops if hop[0])
    if track.refused or not published or track.hop > 0.03 or track.facts["hop"] == "jsonl":
        return
    seconds = track.frames * track.hop
    if values.is_too_rough(flat.reshape(-1, track.bins), short=seconds < contract.shingle):
        words = f"frames change too much from one to the next for a hop of {track.hop:.4f} s ({seconds:.1f} s"
        words += " in all): averaged over time? State hop_s in the JSONL if it is something else"
        track.refuse("downsampled", words)
