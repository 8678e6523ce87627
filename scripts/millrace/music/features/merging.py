"""All partitions become one index, with the ledger of all tracks, what is missing and the coverage
of the splits; hops of the JSONL reach every track."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from millrace.common import atomic, jsonl
from millrace.common.leaks import leakage
from millrace.common.ledger import Ledger
from millrace.music.features import splits as clique_splits
from millrace.music.features.decisions import check_owner, decide_hop
from millrace.music.features.h5_labels import named_owner
from millrace.music.features.index import FeatureIndex, merge
from millrace.music.features.metadata import Metadata
from millrace.music.features.partition import hop_note, report
from millrace.music.features.roots import SPLITS
from millrace.music.features.track import FROM_FILE, Contract, Refused, Track


class Places(NamedTuple):
    """Where an index is from: the folders "h5" and "mm", and the files of the splits, by name."""

    roots: dict[str, str]
    splits: Mapping[str, str]


class Choices(NamedTuple):
    """What of a recording in both kinds of file is read, and what becomes of leaks."""

    prefer: str
    on_leak: str


def merge_all(
    path: Path,
    tracks: Sequence[Track],
    places: Places,
    contract: Contract,
    problems: Sequence[dict],
    choices: Choices,
) -> dict:
    """Write the index and, before it, what there is to know of it into its folder; return the
    coverage.

    Beside the index: ledger.json, rejects.jsonl (with `problems`, those of the JSONL),
    missing.jsonl, leaks.jsonl. Raises MillraceError, and writes no index, for leaks if `on_leak`
    says so.
    """
    folder = path.parent
    splits = {
        name: clique_splits.read_split(places.splits[name], name)
        for name in SPLITS
        if places.splits.get(name)
    }
    leaks = clique_splits.leaks(splits)
    jsonl.write_lines(folder / "leaks.jsonl", leaks)
    clique_splits.check_leaks(leaks, choices.on_leak, folder / "leaks.jsonl", "music.on_leak")
    rejected = leaks if choices.on_leak == leakage.REJECT else []
    kept = [clique_splits.without_leaks(split, rejected) for split in splits.values()]

    with atomic.replacing(path) as partial:
        merge(partial, tracks, places.roots, contract, choices.prefer)
        index = FeatureIndex(partial)
        said = report("merge_feature_index", "all", tracks)
        atomic.write_json(folder / "ledger.json", said["ledger"])
        rejects = [*problems, *said["refused"]]
        jsonl.write_lines(folder / "rejects.jsonl", rejects)

        # The index knows which of the refused have other, usable features.
        refused = {row.get("id"): f"{row['reason']}: {row['problem']}" for row in rejects}
        parts = [clique_splits.coverage(split, index, refused) for split in kept]
        missing = [row for part in parts for row in part.lost]
        jsonl.write_lines(folder / "missing.jsonl", missing)

        seconds = index.frames() * index.hops()
        hours = float(seconds.sum()) / 3600
        shared = clique_splits.shared(leaks)
        return {
            "tracks": len(index),
            "hours": round(hours, 4),
            "splits": [part.facts for part in parts],
            "leaks": len(leaks),
            "leak_lines": [leakage.line(part, choices.on_leak) for part in shared],
            "ledger": said["ledger"],
            "hop_note": hop_note(tracks, contract),
        }


def apply_records(tracks: Iterable[Track], metadata: Metadata, contract: Contract) -> None:
    """Give tracks the hop of their JSONL records, also where no record pointed to the file.

    One that contradicts the file's is refused, as is a pointer to what is another recording's,
    wherever that one's own record points.
    """
    for track in tracks:
        record = metadata.records.get(track.id)
        if track.refused or record is None:
            continue
        in_file = track.hop if track.hop_from == FROM_FILE else None
        try:
            check_owner(track.id, track.owner, metadata.ids)
            if record.h5 and _may_be_a_place(track):
                words = f"the JSONL points {track.id} to {record.h5}; that {track.key} is in"
                raise Refused("wrong_pointer", f"{words} {track.file} may be its place there")
            if record.hop:
                decide_hop(track, in_file, record, contract)
        except Refused as refused:
            track.refuse(*refused.args)


def _may_be_a_place(track: Track) -> bool:
    """Whether only a name that is a number, to which no line points, says whose a track is."""
    if track.owner or track.is_pointed_to:
        return False
    return named_owner(track.key) == track.id


def lines(result: Mapping) -> list[str]:
    """What a person is told of an index: the ledger, tracks without a hop, the coverage of each
    split, and leaks."""
    told = [Ledger.from_dict(result["ledger"]).line(), result["hop_note"]]
    told += [split["line"] for split in result["splits"]]
    told += result["leak_lines"]
    return [line for line in told if line]
