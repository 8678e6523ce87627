"""Splits of cliques, and how much of each has features: counts, hours, what is missing, `.filtered`
files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError
from millrace.music.features.index import SOURCES, FeatureIndex
from millrace.music.features.metadata import ID_NAMES, first
from millrace.music.features.roots import split_name
from millrace.music.features.track import H5


@dataclass
class Split:
    """A split file as it is: `cliques` by id, each a list of versions; `ids` are the versions'
    video ids."""

    name: str
    path: str
    cliques: dict[str, list[dict[str, Any]]]

    @property
    def ids(self) -> list[str]:
        """The video id of every version that has one, once, in the order of the file."""
        versions = (version for clique in self.cliques.values() for version in clique)
        return list(dict.fromkeys(each for version in versions if (each := video_id(version))))


def video_id(version: Mapping[str, Any]) -> str:
    """The video id of a version of a split, "" if it has none."""
    value = first(version, ID_NAMES)
    return value if isinstance(value, str) else ""


def read_split(path: str | os.PathLike, name: str) -> Split:
    """A file {"C-...": [{"version_id", "youtube_id", ...}, ...]}, whatever its ending."""
    try:
        cliques, _ = jsonl.loads(Path(path).read_bytes())
    except OSError as error:
        raise MillraceError(
            f"cannot be read: {error.strerror}", os.fspath(path), "Set path.splits"
        ) from None
    except jsonl.BadJson as error:
        raise MillraceError(str(error), os.fspath(path), "Bring the file again") from None
    right = isinstance(cliques, dict) and all(
        isinstance(clique, list) and all(isinstance(version, dict) for version in clique)
        for clique in cliques.values()
    )
    if not right:
        problem = "not a split: cliques, each a list of versions with youtube_id, are expected"
        raise MillraceError(
            problem, os.fspath(path), "Set path.splits to the .train, .val and .test files"
        )
    return Split(split_name(name), os.fspath(path), cliques)


def coverage(
    split: Split, index: FeatureIndex, refused: Mapping[str, str], prefer: str = H5
) -> tuple[dict[str, Any], list[dict], dict[str, list[dict]]]:
    """What of a split has features, as counts and a line; a row for each id and clique that is
    lost; the rest of its cliques, for `write_filtered`.

    `refused` has the reason of ids whose features lie there and cannot be used. As in MTG's
    script a clique, and its hours, count if at least two of its versions have features.
    """
    ids = split.ids
    numbers = dict(zip(ids, index.find(ids).tolist(), strict=True))
    present = {
        name: [version for version in clique if numbers.get(video_id(version), -1) >= 0]
        for name, clique in split.cliques.items()
    }
    filtered = {name: versions for name, versions in present.items() if len(versions) >= 2}
    rest = [version for versions in filtered.values() for version in versions]
    used = np.array(sorted({numbers[video_id(version)] for version in rest}), np.int64)
    preferred = int((index.records["file"][used, SOURCES.index(prefer)] >= 0).sum())
    lost = [
        {"id": each, "reason": refused.get(each, "absent")} for each in ids if numbers[each] < 0
    ]
    lost += [{"clique": name} for name in split.cliques if name not in filtered]
    total, cliques = sum(map(len, split.cliques.values())), len(split.cliques)
    found = sum(map(len, present.values()))
    hours = float((index.frames(prefer)[used] * index.hops(prefer)[used]).sum()) / 3600
    shares = [
        100 * part / max(whole, 1) for part, whole in ((len(filtered), cliques), (len(rest), total))
    ]
    line = f"{split.name}: {len(filtered):,} cliques of at least 2 ({shares[0]:.1f} %) and {len(rest):,} "
    line += f"versions ({shares[1]:.1f} %) remain, {found:,} of {total:,} found, {hours:,.1f} h"
    facts = {
        "split": split.name,
        "versions": total,
        "versions_found": found,
        "versions_kept": len(rest),
    }
    facts |= {"cliques": cliques, "cliques_found": len(filtered), "hours": hours, "line": line}
    facts |= {"missing": total - found, "missing_fraction": 1 - found / total if total else 0.0}
    facts["sources"] = {prefer: preferred, SOURCES[prefer == H5]: len(used) - preferred}
    facts["without_id"] = sum(
        not video_id(each) for clique in split.cliques.values() for each in clique
    )
    return facts, [{"split": split.name, **row} for row in lost], filtered


def leaks(splits: Mapping[str, Split]) -> list[dict[str, str]]:
    """Cliques and recordings that stand in two splits, as {"clique" or "id", "split", "other"}.

    `split` is the one that they are to leave: train, or valid for what test has too.
    """
    rows = []
    for split, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        if split in splits and other in splits:
            one, two = splits[split], splits[other]
            ids, pair = set(two.ids), {"split": split, "other": other}
            rows += [{"clique": name, **pair} for name in one.cliques if name in two.cliques]
            rows += [{"id": each, **pair} for each in one.ids if each in ids]
    return rows


def without_leaks(split: Split, rows: Iterable[Mapping[str, str]]) -> Split:
    """The split without the cliques and recordings of `leaks` that are to leave it."""
    mine = [row for row in rows if row["split"] == split.name]
    names, ids = ({row[key] for row in mine if key in row} for key in ("clique", "id"))
    kept = {
        name: [version for version in clique if video_id(version) not in ids]
        for name, clique in split.cliques.items()
        if name not in names
    }
    return Split(split.name, split.path, kept)


def write_filtered(
    split: Split, filtered: Mapping[str, list[dict]], folder: str | os.PathLike
) -> Path:
    """Write `<split file>.filtered` into a folder, byte for byte as align_to_official_splits.py
    does."""
    path = Path(folder) / f"{os.path.basename(split.path)}.filtered"
    atomic.write_text(path, json.dumps(filtered))
    return path
