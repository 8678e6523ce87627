"""The index of all features: one file that is mapped, not loaded, and finds a track by its id.

The file: magic, place of the facts, one RECORD for HDF5 and one for .mm of every id, the sorted ids, files,
chunk addresses, texts, JSON facts.
"""

from __future__ import annotations

import io
import mmap
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import orjson

from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.music.features.track import FACTS, H5, MM, ORIGINS, Contract, Track

MAGIC = b"millrace-cqt-1\n\0"
SOURCES = (H5, MM)
_LONG = [(name, "<i8") for name in ("frames", "offset", "pitch", "first", "addresses", "key")]
_SHORT = [(name, "<i4") for name in ("file", "key_bytes", "count", "chunk0", "chunk1", "bins", "origins")]
RECORD = np.dtype([*_LONG, ("hop", "<f8"), *_SHORT, ("time_axis", "u1"), ("dtype", "S3"), ("storage", "S6")])
FILE = np.dtype([(name, "<i8") for name in ("path", "size", "mtime_ns", "path_bytes", "swmr")])
_REASONS = "The reports of the partitions, features/*.json, say why"
_REBUILD = "Remove it; merging the partitions makes it again"


def merge(
    path: str | os.PathLike, tracks: Sequence[Track], roots: dict[str, str], contract: Contract
) -> list[Track]:
    """Write the index of all usable tracks of all partitions; return those refused here: duplicates.

    Of one id and source the file whose folder has the id's own casing wins, then the first by path. Raises
    MillraceError if nothing is left, and for the first track that the model of `contract` cannot take.
    """
    usable: dict[str, dict[str, Track]] = {}
    rejects = []
    for track in sorted(tracks, key=lambda t: (t.id, t.source, "other_casing" in t.warnings, t.file, t.key)):
        if track.refused:
            continue
        if track.source in usable.setdefault(track.id, {}):
            other = usable[track.id][track.source]
            rejects.append(track.refuse("duplicate_id", f"{other.file} {other.key}".strip() + " has it too"))
        else:
            usable[track.id][track.source] = track
            if problem := contract.mismatch(track.bins, track.hop):
                where = f"{track.id} in {track.file} {track.key}".strip()
                remedy = "Set contract (the model's cqt keys) to the features, or resample: true"
                raise MillraceError(f"{problem} (hop by {track.facts['hop']})", where, remedy)
    if not usable:
        reasons = Counter(track.refused for track in tracks)
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "there is none"
        raise MillraceError(f"not one track can be used: {counts}", ", ".join(roots.values()), _REASONS)

    # Ids in the order of their bytes, so that a mapped binary search finds them.
    ids = sorted(usable, key=os.fsencode)
    rows: list[tuple] = []
    numbers: list[tuple[int, int]] = []
    files: dict[tuple, int] = {}
    addresses: list[int] = []
    texts = io.BytesIO()
    for number, name in enumerate(ids):
        for track in usable[name].values():
            key = os.fsencode(track.key)
            state = (track.source, track.file, track.size, track.mtime_ns, track.swmr)
            places = (track.frames, track.offset, track.pitch, track.first, len(addresses), texts.tell())
            counts = (files.setdefault(state, len(files)), len(key), len(track.addresses))
            origins = sum(ORIGINS.index(track.facts[fact]) << 4 * at for at, fact in enumerate(FACTS))
            kinds = (track.bins, origins, track.time_axis, track.dtype, track.storage)
            rows.append((*places, track.hop, *counts, *(track.chunks or (0, 0)), *kinds))
            numbers.append((number, SOURCES.index(track.source)))
            addresses.extend(track.addresses)
            texts.write(key)
    records = np.zeros((len(ids), 2), RECORD)
    records["file"] = -1
    records[tuple(np.transpose(numbers))] = np.array(rows, RECORD)
    table = np.zeros(len(files), FILE)
    for (source, file, size, mtime_ns, swmr), at in files.items():
        raw = os.fsencode(f"{source}/{file}")
        table[at] = (texts.tell(), size, mtime_ns, len(raw), swmr)
        texts.write(raw)
    encoded = np.array([os.fsencode(name) for name in ids])
    regions = {"records": records, "ids": encoded, "files": table, "addresses": np.array(addresses, "<i8")}
    facts: dict = {"roots": roots, "id_bytes": encoded.itemsize, "contract": vars(contract)}
    with atomic.replacing(path) as partial, open(partial, "wb") as handle:
        handle.write(MAGIC + bytes(64 - len(MAGIC)))
        for name, array in regions.items():
            handle.write(bytes(-handle.tell() % 64))
            facts[name] = [handle.tell(), array.size]
            handle.write(array.tobytes())
        facts["texts"] = handle.tell()
        handle.write(texts.getbuffer())
        facts_at = handle.tell()
        handle.write(orjson.dumps(facts))
        handle.seek(len(MAGIC))
        handle.write(facts_at.to_bytes(8, "little"))
    return rejects


@cache
def _facts(packed: int) -> dict[str, str]:
    return {name: ORIGINS[packed >> 4 * at & 15] for at, name in enumerate(FACTS)}


class FeatureIndex:
    """The features of every recording by number: its place in the order of ids, from 0.

        index = FeatureIndex("results/music/index/features.index")
        numbers = index.find(["dQw4w9WgXcQ", "-_aaaaaaaaa"])      # -1 where there is none

    Nothing is loaded: a process pays for the pages that it touches, and all processes share them. Pickles as
    its path. `contract` is that of the build; `roots` may name other folders ("h5" and "mm").
    """

    def __init__(self, path: str | os.PathLike, roots: dict[str, str] | None = None) -> None:
        self.path, self._roots = os.fspath(path), roots
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
            self._map = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
            if self._map[: len(MAGIC)] != MAGIC:
                raise ValueError("it begins with other bytes, or was made by another version")
            facts = orjson.loads(
                self._map[int.from_bytes(self._map[len(MAGIC) : len(MAGIC) + 8], "little") :]
            )
            kinds = {"records": RECORD, "files": FILE, "addresses": "<i8", "ids": f"S{facts['id_bytes']}"}
            self.contract = Contract(**facts["contract"])
            regions = {
                name: np.ndarray(facts[name][1], kind, self._map, facts[name][0])
                for name, kind in kinds.items()
            }
        except FileNotFoundError:
            remedy = "Run `snakemake music_index`, or python -m millrace.music.build_feature_index --out"
            raise MillraceError("there is no index of features", self.path, remedy) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise MillraceError(f"not an index of features ({error})", self.path, _REBUILD) from None
        self._ids, self._files, self._addresses = regions["ids"], regions["files"], regions["addresses"]
        self.records, self._records_at = regions["records"].reshape(-1, 2), facts["records"][0]
        self._texts, self.roots = facts["texts"], {**facts["roots"], **(roots or {})}
        self._state = lru_cache(maxsize=1024)(self._file_state)

    def __len__(self) -> int:
        return len(self._ids)

    def __reduce__(self) -> tuple:
        return FeatureIndex, (self.path, self._roots)

    def id(self, number: int) -> str:
        """The id of a track."""
        return os.fsdecode(self._ids[number].item())

    def find(self, ids: Sequence[str]) -> np.ndarray:
        """int64 numbers of ids, -1 for those without features. Ids count exactly."""
        width = self._ids.dtype.itemsize
        raw = [os.fsencode(each) for each in ids]
        fits = [each if len(each) <= width and each[-1:] != b"\0" else b"" for each in raw]
        fitting = np.array(fits, self._ids.dtype)
        places = np.searchsorted(self._ids, fitting)
        hits = (self._ids[np.minimum(places, len(self) - 1)] == fitting) & (fitting != b"")
        return np.where(hits, places, -1)

    def frames(self, prefer: str = H5) -> np.ndarray:
        """int64 stored frames of every track, in the preferred source, or the other if that lacks it."""
        return self._stored("frames", prefer)

    def hops(self, prefer: str = H5) -> np.ndarray:
        """Seconds a stored frame of every track, in the source as for `frames`."""
        return self._stored("hop", prefer)

    def _stored(self, field: str, prefer: str) -> np.ndarray:
        first = SOURCES.index(prefer)
        mine, other = self.records[:, first], self.records[:, 1 - first]
        return np.where(mine["file"] >= 0, mine[field], other[field])

    def entries(self, number: int, prefer: str = H5) -> list[Track]:
        """A track in each source that has it, the preferred first; `file` is its path today."""
        # A positioned read: mapped, every record would cost the 64 KiB that the kernel maps around it.
        size = 2 * RECORD.itemsize
        raw = os.pread(self._file.fileno(), size, self._records_at + number * size)
        tracks = []
        for source, row in zip(SOURCES, np.frombuffer(raw, RECORD).tolist(), strict=True):
            frames, offset, pitch, first, start, at, hop, file, length, count, *rest = row
            *chunks, bins, origins, axis, dtype, storage = rest
            if file >= 0:
                name, *state = self._state(file)
                key = self._text(at, length)
                place = (
                    storage.decode(),
                    dtype.decode(),
                    axis,
                    frames,
                    bins,
                    offset,
                    pitch,
                    first,
                    tuple(chunks),
                )
                more = ("", self._addresses[start : start + count], hop, _facts(origins), [], "", "")
                tracks.append(Track(self.id(number), source, name, key, *place, *more, *state))
        return tracks if prefer == H5 else tracks[::-1]

    def _file_state(self, number: int) -> tuple[str, int, int, bool]:
        """Path, size, mtime_ns and swmr of a file by its number."""
        text, size, mtime_ns, count, swmr = self._files.item(number)
        source, _, relative = self._text(text, count).partition("/")
        return os.path.join(self.roots[source], relative), size, mtime_ns, bool(swmr)

    def _text(self, start: int, count: int) -> str:
        return os.fsdecode(self._map[self._texts + start : self._texts + start + count])


def index_path(path: str | os.PathLike) -> Path:
    """The index that lies beside a .pt, with the ending .index; any other path is itself an index."""
    return Path(path).with_suffix(".index") if os.fspath(path).endswith(".pt") else Path(path)
