"""Features in .mm files: raw values without a header, in the published form or in the original
script's.

Published: float16 (T, C), with the shape in <id>.npy beside it. The original script: float32 (C,
T), shape in the JSONL. Either read as the other gives numbers that look like features, so a file
whose shape nothing states is refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from millrace.common.errors import first_line
from millrace.common.loading.h5 import regular_file
from millrace.music.features.decisions import (
    checked_digest,
    decide_hop,
    float_type,
    owner_by_name,
    time_axis,
)
from millrace.music.features.metadata import Record
from millrace.music.features.track import MM, RAW, Contract, Refused, Track

_REMEDY = "put its shape into <id>.npy beside it"


def read_folder(
    root: str | os.PathLike, folder: str, records: Iterable[Record], contract: Contract
) -> Iterator[Track]:
    """All .mm files of a folder, and those that records name, refused ones too."""
    by_id = {record.id: record for record in records}
    ids_of: dict[str, list[str]] = defaultdict(list)  # by the file that they point to
    for record in by_id.values():
        if record.mm:
            ids_of[record.mm].append(record.id)
    try:
        names = os.listdir(Path(root) / folder)
    except OSError as error:
        names = []
        yield Track("", MM, folder).refuse("unreadable", first_line(error))

    files = {os.path.join(folder, name) for name in names if name.endswith(".mm")}
    for file in sorted(files | ids_of.keys()):
        stem = Path(file).stem
        ids = ids_of.get(file, [stem])
        owner = owner_by_name(stem)
        for number in ids:
            track = Track(number, MM, file, owner=owner, is_pointed_to=file in ids_of)
            try:
                if len(ids) > 1:
                    raise Refused("shared_file", f"{len(ids)} mm_path of the JSONL lead to it")
                _read(Path(root) / file, track, by_id.get(number, Record(number)), contract)
            except Refused as refused:
                track.refuse(refused.reason, str(refused))
            except (OSError, MemoryError) as error:
                track.refuse("unreadable", first_line(error) or "larger than the memory")
            yield track


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
    is_beside = sidecar.exists()
    shape = _shape(sidecar) if is_beside else record.shape
    if not shape:
        raise Refused("shape_unknown", f"nothing states its shape: {_REMEDY}, or into the JSONL")
    track.dtype = float_type(len(raw), shape, sidecar.name if is_beside else "JSONL")
    track.time_axis = time_axis(shape, contract.bins)
    if not is_beside and track.dtype == "<f2" and track.time_axis == 1:
        words = f"float16 files are published as (T, C), the JSONL says {shape}: {_REMEDY}"
        raise Refused("orientation_unknown", words)
    track.bins = contract.bins
    track.frames = shape[track.time_axis]
    track.pitch = shape[1]
    track.crc = checked_digest([np.frombuffer(raw, track.dtype)])
    decide_hop(track, None, record, contract)


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
