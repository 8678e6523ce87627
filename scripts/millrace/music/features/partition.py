"""A partition of features: HDF5 files and folders of .mm files, read track by track into one
table."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from millrace.common import jsonl
from millrace.common.cli import Progress
from millrace.common.errors import counted, own_file
from millrace.common.ledger import Ledger
from millrace.common.loading.h5 import locking
from millrace.music.features import h5_files, mm_files
from millrace.music.features.decisions import PUBLISHED_HOP
from millrace.music.features.metadata import Record
from millrace.music.features.roots import Root
from millrace.music.features.track import H5, Contract, Track

_MAX_ID = 200  # bytes
_REPORTED = ("hop", "orientation", "dtype", "shape")


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
    """Sentences on tracks of which nothing says the hop, and on what the others have; "" without
    any."""
    good = [track for track in tracks if not track.refused]
    origins = Counter(track.facts.get("hop") for track in good)
    of_all = f"of {counted(len(good), 'track')}"
    notes = []
    if origins["config"]:
        note = f"{origins['config']:,} {of_all} state no hop and are read at {contract.hop:g} s "
        note += "(contract.hop; in training model.cqt.hoplen)"
        stated = [track for track in good if track.facts.get("hop") != "config"]
        if stated:
            hops = Counter(f"{track.hop:.6g} s" for track in stated)
            others = [f"{count:,} have {hop}" for hop, count in hops.most_common()]
            note += f"; of the others {', '.join(others)}"
        notes.append(note)
    if origins["inferred"]:
        note = f"{origins['inferred']:,} {of_all} are taken as published .mm files, of "
        note += f"{PUBLISHED_HOP:.4g} s: state the hop_s of those that were averaged over time in"
        notes.append(f"{note} the JSONL")
    return ". ".join(notes)


def report(stage: str, scope: str, tracks: Sequence[Track], contract: Contract) -> dict:
    """A ledger of tracks and, by name, everything refused or remarkable: also short tracks and ids
    that differ in case only."""
    good = [track for track in tracks if not track.refused]
    refused = [track for track in tracks if track.refused]
    remarks = _remarks(good, contract)
    ledger = Ledger(stage, scope, "track", rows_in=len(tracks), rows_out=len(good))
    ledger.rejected.update(track.refused for track in refused)
    ledger.warnings.update(remark for _, remark in remarks)
    ledger.check()
    has_h5 = any(track.source == H5 for track in tracks)
    return {
        "ledger": ledger.as_dict(),
        "locking": locking() if has_h5 else "",
        "refused": [_named(track, track.refused, track.problem) for track in refused],
        "remarks": [_named(track, remark) for track, remark in remarks],
        "origins": {name: _origins(name, good) for name in _REPORTED},
    }


def _remarks(tracks: Sequence[Track], contract: Contract) -> list[tuple[Track, str]]:
    """Usable tracks that are remarkable, with the reason."""
    ids = {track.id for track in tracks}
    cases = Counter(number.casefold() for number in ids)
    remarks = [(track, remark) for track in tracks for remark in track.warnings]
    for track in tracks:
        if track.frames * track.hop < contract.shingle:
            remarks.append((track, "shorter_than_shingle"))
    for track in tracks:
        if cases[track.id.casefold()] > 1:
            remarks.append((track, "id_differs_in_case"))
    return remarks


def _named(track: Track, reason: str, words: str = "") -> dict:
    """A line of rejects.jsonl or remarks.jsonl."""
    place = {"id": track.id, "file": track.file, "key": track.key}
    return {**place, "reason": reason, "problem": words}


def _origins(fact: str, tracks: Sequence[Track]) -> dict[str, int]:
    """Of how many tracks a fact is from where."""
    counts = Counter(track.facts.get(fact, "") for track in tracks)
    return dict(sorted(counts.items()))
