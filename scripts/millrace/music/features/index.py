"""The index of all features: which of several tracks of one id it takes; one file that is mapped,
not loaded, and finds a track by its id.

The file: MAGIC, then arrays as in .npy files: a record of every id, the sorted ids, files, chunk
addresses, JSON facts.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

import numpy as np
import orjson

from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import path_of, several
from millrace.music.features.track import H5, MM, Contract, Track

MAGIC = b"millrace-cqt-3\n\0"
_REGIONS = ("records", "ids", "files", "addresses", "facts")
_LONG = [(name, "<i8") for name in ("frames", "offset", "pitch", "first", "addresses")]
_SHORT = [(name, "<i4") for name in ("file", "count", "chunk0", "chunk1", "bins")]
_RECORD = [
    *_LONG,
    ("hop", "<f8"),
    *_SHORT,
    ("time_axis", "u1"),
    ("dtype", "S3"),
    ("storage", "S6"),
    ("crc", "<u4"),
]
_FILE = [("size", "<i8"), ("mtime_ns", "<i8")]
_REASONS = "The reports of the partitions, features/*.json, say why"
_OTHER_HOP = "set contract, and the model's cqt keys, to the features"
_REBUILD = "Remove it; merging the partitions makes it again"


def merge(
    path: str | os.PathLike,
    tracks: Sequence[Track],
    roots: dict[str, str],
    contract: Contract,
    prefer: str = H5,
) -> list[Track]:
    """Write the index of all usable tracks of all partitions; return those refused here:
    duplicates, and what the model of `contract` cannot take.

    Of one id the track of the preferred source wins, then that of the file that the JSONL names,
    then the first file by path. Raises MillraceError if nothing is left.
    """
    usable, rejects = _usable(tracks, contract, prefer)
    if not usable:
        reasons = Counter(track.refused for track in tracks)
        words = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        first = next((track for track in tracks if track.refused), None)
        if first:
            words += f"; {first.file} {first.key or first.id}: {first.problem}"
        problem = f"not one track can be used: {words or 'there is none'}"
        raise MillraceError(problem, ", ".join(roots.values()), _REASONS)

    facts = orjson.dumps({"roots": roots, "contract": vars(contract)})
    with atomic.replacing(path) as partial, open(partial, "wb") as handle:
        handle.write(MAGIC)
        for array in (*_arrays(usable), np.frombuffer(facts, "u1")):
            np.lib.format.write_array(handle, array, (1, 0))
    return rejects


def _usable(
    tracks: Sequence[Track], contract: Contract, prefer: str
) -> tuple[dict[str, Track], list[Track]]:
    """Tracks by id, and those that are refused here."""

    def rank(track: Track) -> tuple:
        is_unnamed = not track.is_pointed_to
        return track.id, track.source != prefer, is_unnamed, track.file, track.key

    usable: dict[str, Track] = {}
    rejects = []
    for track in sorted(tracks, key=rank):
        if track.refused:
            continue
        problem = contract.mismatch(track.hop)
        if problem:
            words = f"{problem} (hop by {track.hop_from}): {_OTHER_HOP}"
            rejects.append(track.refuse("other_hop", words))
        elif track.id in usable:
            other = usable[track.id]
            words = f"{other.file} {other.key}".strip()
            rejects.append(track.refuse("duplicate_id", f"{words} has it too"))
        else:
            usable[track.id] = track
    return usable, rejects


def _arrays(usable: Mapping[str, Track]) -> tuple[np.ndarray, ...]:
    """The regions of an index, but for the facts."""
    # Ids in the order of their bytes, so that a mapped binary search finds them.
    ids = sorted(usable, key=os.fsencode)
    width = max(len(os.fsencode(track.key)) for track in usable.values()) or 1
    records = np.zeros(len(ids), [*_RECORD, ("key", f"S{width}")])

    files: dict[tuple, int] = {}  # numbers by size, time, path
    addresses: list[int] = []
    for number, name in enumerate(ids):
        track = usable[name]
        state = (track.size, track.mtime_ns, os.fsencode(f"{track.source}/{track.file}"))
        file_number = files.setdefault(state, len(files))
        records[number] = _row(track, file_number, len(addresses))
        addresses.extend(track.addresses)

    longest = max(len(path) for *_, path in files)
    file_table = np.array(list(files), [*_FILE, ("path", f"S{longest}")])
    encoded_ids = np.array([os.fsencode(name) for name in ids])
    return records, encoded_ids, file_table, np.array(addresses, "<i8")


def _row(track: Track, file: int, first_address: int) -> tuple:
    """The fields of _RECORD, in their order, and the key."""
    return (
        track.frames,
        track.offset,
        track.pitch,
        track.first,
        first_address,
        track.hop,
        file,
        len(track.addresses),
        *(track.chunks or (0, 0)),
        track.bins,
        track.time_axis,
        track.dtype,
        track.storage,
        track.crc,
        os.fsencode(track.key),
    )


class FeatureIndex:
    """The features of every recording by number: its place in the order of ids, from 0.

        from millrace import FeatureIndex

        index = FeatureIndex("results/music/index/features.index")
        print(len(index), index.id(0), index.frames()[0], index.hops()[0])
        numbers = index.find(["dQw4w9WgXcQ", "-_aaaaaaaaa"])  # -1 where there is none

    Nothing is loaded: a process pays for the pages that it touches, and all processes share them.
    Pickles as its path. `contract` is that of the build; `roots` may name other folders ("h5" and
    "mm").
    """

    def __init__(self, path: str | os.PathLike, roots: dict[str, str] | None = None) -> None:
        self.path = path_of("path", path)
        self._roots = roots
        arrays = {}
        starts = {}
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
            mapped = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
            if self._file.read(len(MAGIC)) != MAGIC:
                raise ValueError("it begins with other bytes, or was made by another version")
            for name in _REGIONS:
                np.lib.format.read_magic(self._file)
                shape, _, kind = np.lib.format.read_array_header_1_0(self._file)
                starts[name] = self._file.tell()
                arrays[name] = np.ndarray(shape, kind, mapped, starts[name])
                self._file.seek(starts[name] + arrays[name].nbytes)
            facts = orjson.loads(arrays["facts"].tobytes())
            self.contract = Contract(**facts["contract"])
        except FileNotFoundError:
            remedy = (
                "Run `snakemake music_index`, or python -m millrace.music.build_feature_index"
                " --h5-root "
            )
            remedy += f"FOLDER --out {self.path}"
            raise MillraceError("there is no index of features", self.path, remedy) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise MillraceError(
                f"not an index of features ({error})", self.path, _REBUILD
            ) from None
        self.records, self._ids, self._files, self._addresses = (
            arrays[name] for name in _REGIONS[:4]
        )
        self._records_at = starts["records"]
        if not isinstance(roots, Mapping | None) or not {*(roots or ())} <= {H5, MM}:
            raise MillraceError(f"roots is {roots!r}", remedy=f"Give folders of {H5} and {MM}")
        given = {source: path_of("roots", folder) for source, folder in (roots or {}).items()}
        self.roots = {**facts["roots"], **given}
        self._state = lru_cache(maxsize=1024)(self._file_state)

    def __len__(self) -> int:
        return len(self._ids)

    def __reduce__(self) -> tuple:
        return FeatureIndex, (self.path, self._roots)

    def id(self, number: int) -> str:
        """The id of a track. Raises IndexError, also for the -1 that `find` gives."""
        self._require(number)
        return os.fsdecode(self._ids[number].item())

    def _require(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise IndexError(f"there is no track of number {number}")

    def find(self, ids: Sequence[str]) -> np.ndarray:
        """int64 numbers of ids, -1 for those without features. Ids count exactly."""
        width = self._ids.dtype.itemsize
        fits = []
        for raw in map(os.fsencode, several("ids", ids)):
            is_fitting = len(raw) <= width and not raw.endswith(b"\0")
            fits.append(raw if is_fitting else b"")
        fitting = np.array(fits, self._ids.dtype)
        places = np.searchsorted(self._ids, fitting)
        nearest = self._ids[np.minimum(places, len(self) - 1)]
        hits = (nearest == fitting) & (fitting != b"")
        return np.where(hits, places, -1)

    def frames(self) -> np.ndarray:
        """int64 stored frames of every track."""
        return self.records["frames"]

    def hops(self) -> np.ndarray:
        """Seconds a stored frame of every track."""
        return self.records["hop"]

    def crcs(self) -> np.ndarray:
        """CRC-32 of the stored values of every track; zeros of an index that has none."""
        if "crc" in (self.records.dtype.names or ()):
            return self.records["crc"]
        return np.zeros(len(self), "<u4")

    def track(self, number: int) -> Track:
        """A track; `file` is its path today."""
        self._require(number)
        # A positioned read: mapped, every record would cost the 64 KiB that the kernel maps around
        # it.
        kind = self.records.dtype
        at = self._records_at + number * kind.itemsize
        raw = os.pread(self._file.fileno(), kind.itemsize, at)
        fields = dict(zip(kind.names or (), np.frombuffer(raw, kind)[0].item(), strict=True))

        source, path, size, mtime_ns = self._state(fields["file"])
        start = fields["addresses"]
        addresses = self._addresses[start : start + fields["count"]]
        return Track(
            self.id(number),
            source,
            path,
            fields["key"].decode(),
            storage=fields["storage"].decode(),
            dtype=fields["dtype"].decode(),
            time_axis=fields["time_axis"],
            frames=fields["frames"],
            bins=fields["bins"],
            offset=fields["offset"],
            pitch=fields["pitch"],
            first=fields["first"],
            chunks=(fields["chunk0"], fields["chunk1"]),
            # An array has what is asked of it here: places, a length, an order.
            addresses=cast(Sequence[int], addresses),
            hop=fields["hop"],
            size=size,
            mtime_ns=mtime_ns,
        )

    def _file_state(self, number: int) -> tuple[str, str, int, int]:
        """Source, path, size and mtime_ns of a file by its number."""
        *state, path = self._files[number].item()
        source, _, relative = os.fsdecode(path).partition("/")
        return source, os.path.join(self.roots[source], relative), *state
