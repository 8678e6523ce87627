"""A partition of features: HDF5 files and folders of .mm files, read track by track into one table;
which ids are none, and the ledger."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from millrace.common import jsonl
from millrace.common.cli import Progress
from millrace.common.errors import counted, own_file
from millrace.common.ledger import Ledger
from millrace.music.features import h5_files, mm_files
from millrace.music.features.decisions import PUBLISHED_HOP
from millrace.music.features.metadata import Record
from millrace.music.features.roots import Root
from millrace.music.features.track import FROM_CONFIG, H5, PUBLISHED, Contract, Track

_MAX_ID = 200  # bytes


@dataclasses.dataclass(frozen=True)
class FeaturePartition:
    """An HDF5 file or a folder of .mm files (`kind` h5 or mm) below `root`, and records that point
    there."""

    id: str
    kind: str
    root: str
    path: str
    records: list[Record]


def read_partition(path: str | os.PathLike) -> FeaturePartition:
    """A partition file of the workflow: these fields as JSON, each record without what it does not
    say."""
    with own_file(path):
        content = jsonl.read(path)
        records = [Record(**row) for row in content["records"]]
        return FeaturePartition(
            content["id"], content["kind"], content["root"], content["path"], records
        )


def build(partition: FeaturePartition, contract: Contract) -> Iterator[Track]:
    """Every track of the partition, refused ones too: also those whose id no split can have."""
    read = h5_files.read_file if partition.kind == H5 else mm_files.read_folder
    for track in read(partition.root, partition.path, partition.records, contract):
        if not _is_id(track.owner):
            track.owner = ""
        if not _is_id(track.id) or not (track.id or track.refused):
            track.refuse("bad_id", f"{len(track.id)} characters, which are no id")
            for field in ("id", "file", "key", "problem"):
                shown = ascii(getattr(track, field))
                setattr(track, field, shown[1:-1])
        yield track


def _is_id(text: str) -> bool:
    return text.isprintable() and len(text.encode()) <= _MAX_ID


def build_folders(
    folders: Mapping[str, Root], pointing: Mapping[str, list[Record]], contract: Contract
) -> list[Track]:
    """The tracks of all files and folders below the roots "h5" and "mm", with progress."""
    partitions = [
        FeaturePartition(path, kind, str(folder.path), path, pointing.get(path, []))
        for kind, folder in folders.items()
        for path in folder.places(kind)
    ]
    tracks: list[Track] = []
    with Progress(len(partitions), "files and folders", "features") as progress:
        for partition in partitions:
            found = list(build(partition, contract))
            tracks += found
            progress.advance(1, sum(bool(track.refused) for track in found))
    return tracks


def hop_note(tracks: Sequence[Track], contract: Contract) -> str:
    """Sentences on tracks of which nothing says the hop; "" without any."""
    good = [track for track in tracks if not track.refused]
    origins = Counter(track.hop_from for track in good)
    of_all = f"of {counted(len(good), 'track')}"
    notes = []
    if origins[FROM_CONFIG]:
        note = f"{origins[FROM_CONFIG]:,} {of_all} state no hop and are read at {contract.hop:g} s "
        notes.append(f"{note}(contract.hop)")
    if origins[PUBLISHED]:
        note = f"{origins[PUBLISHED]:,} {of_all} are taken as published .mm files, of "
        note += f"{PUBLISHED_HOP:.4g} s: state the hop_s of those that were averaged over time in"
        notes.append(f"{note} the JSONL")
    return ". ".join(notes)


def report(stage: str, scope: str, tracks: Sequence[Track]) -> dict:
    """A ledger of tracks and, by name, everything refused."""
    refused = [track for track in tracks if track.refused]
    ledger = Ledger(stage, scope, "track", len(tracks), len(tracks) - len(refused))
    ledger.rejected.update(track.refused for track in refused)
    return {"ledger": ledger.as_dict(), "refused": [_named(track) for track in refused]}


def _named(track: Track) -> dict[str, str]:
    """A line of rejects.jsonl."""
    return {
        "id": track.id,
        "file": track.file,
        "key": track.key,
        "reason": track.refused,
        "problem": track.problem,
    }
