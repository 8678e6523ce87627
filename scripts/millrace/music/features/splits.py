"""Splits of cliques: how much of each has features (counts, hours, what is missing), and which
cliques and recordings stand in two of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.leaks import leakage
from millrace.common.leaks.leakage import Shared
from millrace.music.features.index import FeatureIndex
from millrace.music.features.metadata import ID_NAMES, first
from millrace.music.features.roots import split_name

_REMEDY = "Set music.splits (path.splits of a training) to the .train, .val and .test files"


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
        ids: dict[str, None] = {}
        for clique in self.cliques.values():
            ids.update((video_id(version), None) for version in clique)
        ids.pop("", None)
        return list(ids)


def video_id(version: Mapping[str, Any]) -> str:
    """The video id of a version of a split, "" if it has none."""
    value = first(version, ID_NAMES)
    return value if isinstance(value, str) else ""


def read_split(path: str | os.PathLike, name: str) -> Split:
    """A file {"C-...": [{"version_id", "youtube_id", ...}, ...]}, whatever its ending."""
    where = os.fspath(path)
    try:
        raw = Path(path).read_bytes()
        cliques, _ = jsonl.loads(raw)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise MillraceError(problem, where, _REMEDY) from None
    except jsonl.BadJson as error:
        remedy = "Bring the file again, as JSON of cliques, each a list of versions with youtube_id"
        raise MillraceError(str(error), where, remedy) from None
    if not _are_cliques(cliques):
        problem = "not a split: cliques, each a list of versions with youtube_id, are expected"
        raise MillraceError(problem, where, _REMEDY)
    json.loads(raw, strict=False, parse_int=str, object_pairs_hook=partial(_once, where=where))
    return Split(split_name(name), where, cliques)


def _once(pairs: list[tuple[str, Any]], where: str) -> None:
    """Raise MillraceError for a key that stands twice in an object: the first would be lost."""
    if len({key for key, _ in pairs}) == len(pairs):
        return
    repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
    problem = f"{repeated} stands twice in one object, and only the last would count"
    raise MillraceError(problem, where, "Bring its versions together under one key")


def _are_cliques(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    for clique in content.values():
        if not isinstance(clique, list):
            return False
        if not all(isinstance(version, dict) for version in clique):
            return False
    return True


class Coverage(NamedTuple):
    """What of a split has features."""

    # Those of two recordings or more: their numbers in the index by video id.
    cliques: dict[str, dict[str, int]]
    facts: dict[str, Any]  # counts, and a line for people
    lost: list[dict]  # a row for each id, version and clique that is not there


def coverage(split: Split, index: FeatureIndex, refused: Mapping[str, str]) -> Coverage:
    """What of a split has features, and what of it is lost.

    Versions that share a video are one recording; one of two cliques stays in the first. A clique,
    and its hours, count if two of its recordings have features. `refused` has the reason of ids
    whose features lie there and cannot be used.
    """
    ids = split.ids
    numbers = dict(zip(ids, index.find(ids).tolist(), strict=True))
    present = {
        name: [video_id(version) for version in versions if numbers.get(video_id(version), -1) >= 0]
        for name, versions in split.cliques.items()
    }
    cliques, twice = _cliques(present, numbers)

    missing = [video for video in ids if numbers[video] < 0]
    lost = [{"id": video, "reason": refused.get(video, "absent")} for video in missing]
    unnamed = _without_id(split)
    lost += [*twice, *unnamed]
    lost += [{"clique": name} for name in split.cliques if name not in cliques]

    count = sum(map(len, split.cliques.values()))
    found = sum(map(len, present.values()))
    kept = [
        name in cliques and video in cliques[name] for name in present for video in present[name]
    ]
    facts = {
        "split": split.name,
        "versions": count,
        "versions_found": found,
        "versions_kept": sum(kept),
        "cliques": len(split.cliques),
        "cliques_found": len(cliques),
        "missing": count - found,
        "missing_fraction": 1 - found / count if count else 0.0,
        "without_id": len(unnamed),
    }
    used = [number for recordings in cliques.values() for number in recordings.values()]
    rows = np.array(sorted(used), np.int64)
    seconds = index.frames()[rows] * index.hops()[rows]
    facts["hours"] = float(seconds.sum()) / 3600
    facts["line"] = _line(facts)
    return Coverage(cliques, facts, [{"split": split.name, **row} for row in lost])


def _cliques(
    present: Mapping[str, Sequence[str]], numbers: Mapping[str, int]
) -> tuple[dict[str, dict[str, int]], list[dict]]:
    """The cliques of two recordings or more, and a row for each recording that another one has."""
    cliques = {}
    taken: set[str] = set()
    twice = []
    for name, videos in present.items():
        recordings = {}
        for video in dict.fromkeys(videos):
            if video in taken:
                twice.append({"id": video, "in_clique": name, "reason": "in_two_cliques"})
            else:
                recordings[video] = numbers[video]
        taken.update(recordings)
        if len(recordings) >= 2:
            cliques[name] = recordings
    return cliques, twice


def _line(facts: Mapping[str, Any]) -> str:
    """What a person is told of a split."""
    clique_share = 100 * facts["cliques_found"] / max(facts["cliques"], 1)
    version_share = 100 * facts["versions_kept"] / max(facts["versions"], 1)
    line = f"{facts['split']}: {facts['cliques_found']:,} cliques of at least 2 "
    line += f"({clique_share:.1f} %) and {facts['versions_kept']:,} versions "
    line += f"({version_share:.1f} %) remain, {facts['versions_found']:,} of "
    return line + f"{facts['versions']:,} found, {facts['hours']:,.1f} h"


def _without_id(split: Split) -> list[dict]:
    """A row for each version whose video id is missing or no text, such as a number."""
    return [
        {
            "id": "",
            "in_clique": name,
            "version_id": str(version.get("version_id", "")),
            "reason": "without_video_id",
        }
        for name, clique in split.cliques.items()
        for version in clique
        if not video_id(version)
    ]


def leaks(splits: Mapping[str, Split]) -> list[dict[str, str]]:
    """Cliques and recordings that stand in two splits, as {"clique" or "id", "split", "other"}.

    `split` is the one that they are to leave: train, or valid for what test has too.
    """
    rows = []
    for split, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        if split in splits and other in splits:
            leaving = splits[split]
            staying = splits[other]
            pair = {"split": split, "other": other}
            names = [name for name in leaving.cliques if name in staying.cliques]
            rows += [{"clique": name, **pair} for name in names]
            held_ids = set(staying.ids)
            ids = [number for number in leaving.ids if number in held_ids]
            rows += [{"id": number, **pair} for number in ids]
    return rows


def shared(rows: Iterable[Mapping[str, str]]) -> list[Shared]:
    """How many cliques, and how many recordings, of each split the rows of `leaks` name."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        unit = "clique" if "clique" in row else "recording"
        counts[unit, row["split"], row["other"]] += 1
    return [Shared(count, *of) for of, count in counts.items()]


def check_leaks(
    rows: Sequence[Mapping[str, str]], on_leak: str, where: str | os.PathLike, key: str
) -> None:
    """Raise MillraceError if leaks are an error; `key` is that of the config."""
    if rows and on_leak == leakage.ERROR:
        row = rows[0]
        first = f"clique {row['clique']}" if "clique" in row else f"recording {row['id']}"
        raise leakage.error(shared(rows), first, where, key)


def without_leaks(split: Split, rows: Iterable[Mapping[str, str]]) -> Split:
    """The split without the cliques and recordings of `leaks` that are to leave it."""
    names = set()
    ids = set()
    for row in rows:
        if row["split"] != split.name:
            continue
        if "clique" in row:
            names.add(row["clique"])
        else:
            ids.add(row["id"])
    kept = {
        name: [version for version in clique if video_id(version) not in ids]
        for name, clique in split.cliques.items()
        if name not in names
    }
    return Split(split.name, split.path, kept)
