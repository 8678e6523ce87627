"""Features in .mm files: raw values without a header, in the published form or in the original
script's.

Published: float16 (T, C), with the shape in <id>.npy beside it. The original script: float32 (C,
T), shape in the JSONL. Either read as the other gives numbers that look like features, so a file
whose shape nothing states is refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from millrace.music.features.decisions import (
    check_duration,
    check_span,
    check_values,
    decide_hop,
    float_type,
    time_axis,
)
from millrace.music.features.metadata import Record
from millrace.music.features.roots import regular_file
from millrace.music.features.track import MM, RAW, Contract, Refused, Track

_REMEDY = "put its shape into <id>.npy beside it, or `shape` into the JSONL"


def read_folder(
    root: str | os.PathLike, folder: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All .mm files of a folder, and those that records name, refused ones too."""
    by_id = {record.id: record for record in records}
    pointing: dict[str, list[str]] = defaultdict(list)  # ids by the file that they point to
    for record in by_id.values():
        if record.mm:
            pointing[record.mm].append(record.id)
    try:
        files = _mm_files(root, folder)
    except OSError as error:
        files = set()
        yield Track("", MM, folder).refuse("unreadable", str(error.strerror))

    for file in sorted(files | pointing.keys()):
        ids = pointing.get(file, [])
        for number in ids or [Path(file).stem]:
            track = Track(number, MM, file)
            try:
                if file not in files:
                    raise Refused("missing", "the file is not there")
                _check_name(track, folder, ids)
                record = by_id.get(number, Record(number))
                _read(Path(root) / file, track, record, contract)
            except Refused as refused:
                track.refuse(refused.reason, str(refused))
            except OSError as error:
                track.refuse("unreadable", str(error.strerror))
            except MemoryError:
                track.refuse("unreadable", "the file is larger than the memory")
            yield track


def _mm_files(root: str | os.PathLike, folder: str) -> set[str]:
    """The .mm files of a folder, relative to the root."""
    names = os.listdir(Path(root) / folder)
    return {os.path.join(folder, name) for name in names if name.lower().endswith(".mm")}


def _check_name(track: Track, folder: str, ids: Sequence[str]) -> None:
    """Raise Refused if the file's name cannot be whose it is; note a folder of other casing."""
    stem, ending = os.path.splitext(os.path.basename(track.file))
    if ending != ".mm":
        raise Refused("bad_name", f"its name ends in {ending}, not in .mm")
    if len(ids) > 1:
        raise Refused("bad_name", f"{len(ids)} mm_path of the JSONL lead to it")
    if ids:
        return

    expected = stem[:2]
    actual = folder[-2:]
    if actual.casefold() != expected.casefold():
        words = f"it belongs into the folder {expected}, and no mm_path of the JSONL leads here"
        raise Refused("misplaced", words)
    if actual != expected:
        track.warnings.append("other_casing")


def _read(path: Path, track: Track, record: Record, contract: Contract) -> None:
    """Decide how an .mm file is to be read. Raises Refused if nothing states it, or it holds no
    CQT."""
    # Before the values: of a file that is replaced while it is read the index knows the old time.
    status = regular_file(path)
    raw = path.read_bytes()
    track.size = status.st_size
    track.mtime_ns = status.st_mtime_ns
    track.storage = RAW
    track.offset = 0
    if not raw:
        raise Refused("empty", "the file has 0 bytes")

    sidecar = path.with_suffix(".npy")
    if sidecar.exists():
        shape = _shape(sidecar)
        origin = "sidecar"
    elif record.shape:
        shape = record.shape
        origin = "jsonl"
    else:
        raise Refused("shape_unknown", f"nothing states its shape: {_REMEDY}")
    track.dtype = float_type(len(raw), shape, origin)
    track.time_axis = time_axis(shape, contract.bins)
    track.bins = contract.bins
    track.frames = shape[track.time_axis]
    track.pitch = shape[1]
    track.facts = {
        "bins": "config",
        "dtype": origin,
        "orientation": origin,
        "shape": origin,
    }
    values = np.frombuffer(raw, track.dtype).astype(np.float32)
    if origin == "jsonl":
        _check_jsonl(track, values, shape)

    track.warnings += check_values([values])
    decide_hop(track, None, record, contract)
    check_duration(track, None, record)


def _check_jsonl(track: Track, values: np.ndarray, shape: Sequence[int]) -> None:
    """Raise Refused if a shape of the JSONL may be that of (C, T), whatever is stored."""
    if track.dtype == "<f4":
        check_span(values)
    elif track.time_axis == 1:
        words = f"float16 files are published as (T, C), the JSONL says {list(shape)}"
        raise Refused("orientation_unknown", f"{words}: put its shape into <id>.npy beside it")


def _shape(sidecar: Path) -> list[int]:
    """The shape that an .npy beside an .mm holds."""
    try:
        regular_file(sidecar)
        with open(sidecar, "rb") as handle:
            shape = np.lib.format.read_array(handle, allow_pickle=False)
    except Exception:  # NumPy reads the header as Python's text: damage may raise anything
        raise Refused("bad_sidecar", f"{sidecar.name} holds no array") from None

    is_pair = shape.shape == (2,) and shape.dtype.kind in "iuf"
    if is_pair and (shape >= 1).all() and (shape % 1 == 0).all():
        return [int(side) for side in shape]
    raise Refused("bad_sidecar", f"{sidecar.name} holds no shape of two whole numbers")
