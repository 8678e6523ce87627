"""The cliques of the splits as arrays: their recordings that have features, by ordinals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from millrace.common.cli import log
from millrace.common.errors import counted
from millrace.common.leaks import leakage
from millrace.music.features.index import FeatureIndex
from millrace.music.features.roots import SPLITS
from millrace.music.features.splits import (
    Split,
    check_leaks,
    leaks,
    read_split,
    shared,
    video_id,
    without_leaks,
)

_SHOWN = 5


@dataclass
class Cliques:
    """Recordings of one split, clique by clique, in the order of its file; a row is one recording.

    `ids` and `cliques` are ordinals (int64) over all splits, train first: equal in every process
    and run. `tracks` are numbers in the feature index, `frames` and `hops` (s) of what is stored.
    `left_out` lists what is not here, by reason.
    """

    ids: np.ndarray
    cliques: np.ndarray
    tracks: np.ndarray
    frames: np.ndarray
    hops: np.ndarray
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def members(self, row: int) -> range:
        """The rows of this recording's clique."""
        clique = self.cliques[row]
        start = np.searchsorted(self.cliques, clique, "left")
        stop = np.searchsorted(self.cliques, clique, "right")
        return range(int(start), int(stop))

    def only(self, chosen: np.ndarray) -> Cliques:
        """The chosen rows (bool), without cliques of which one is left."""
        sizes = np.bincount(self.cliques[chosen], minlength=self.cliques.max(initial=0) + 1)
        rows = chosen & (sizes[self.cliques] > 1)
        return Cliques(
            ids=self.ids[rows],
            cliques=self.cliques[rows],
            tracks=self.tracks[rows],
            frames=self.frames[rows],
            hops=self.hops[rows],
            left_out=self.left_out,
        )


def read_cliques(
    paths: Mapping[str, str], index: FeatureIndex, on_leak: str = leakage.ERROR
) -> dict[str, Cliques]:
    """The cliques of each split in `paths`: versions that share a video are one recording.

    `on_leak` says what becomes of a clique or a recording in two splits; by `reject` the earlier of
    train, valid and test loses it. A recording of two cliques of a split stays in the first.
    """
    splits = {name: read_split(paths[name], name) for name in SPLITS if paths.get(name)}
    found = leaks(splits)
    check_leaks(found, on_leak, ", ".join(filter(None, paths.values())), "data.on_leak")
    for in_two in shared(found):
        log.info("%s", leakage.line(in_two, on_leak))
    leaked = found if on_leak == leakage.REJECT else []

    ordinals = _Ordinals({}, {})
    result = {}
    for name, split in splits.items():
        rows, left_out = _rows(split, leaked, ordinals)
        part = _with_features(rows, left_out, index)

        present = set(part.cliques.tolist())
        left_out["cliques_of_one"] = [
            clique
            for clique in split.cliques
            if ordinals.cliques.get((name, clique)) not in present
        ]
        _log(name, part, len(present))
        result[name] = part
    return result


def _with_features(
    rows: Mapping[str, tuple[int, int]],
    left_out: dict[str, list[str]],
    index: FeatureIndex,
) -> Cliques:
    """The recordings of `rows` (ordinals by video) that the index has; notes the others as left
    out."""
    videos = list(rows)
    tracks = index.find(videos)
    has_features = tracks >= 0
    left_out["without_features"] = [videos[row] for row in np.flatnonzero(~has_features)]

    numbers = np.array([*rows.values()], np.int64).reshape(-1, 2)
    every = Cliques(
        ids=numbers[:, 0],
        cliques=numbers[:, 1],
        tracks=tracks,
        frames=index.frames()[tracks],
        hops=index.hops()[tracks],
        left_out=left_out,
    )
    return every.only(has_features)


class _Ordinals(NamedTuple):
    """Numbers of cliques and of recordings, over all splits. A clique in two splits has two: they
    rise from row to row of a split."""

    cliques: dict[tuple[str, str], int]
    ids: dict[str, int]


def _rows(
    split: Split, leaked: Sequence[Mapping], ordinals: _Ordinals
) -> tuple[dict[str, tuple[int, int]], dict[str, list[str]]]:
    """The ordinals (recording, clique) by video, and what is left out, by reason."""
    rows: dict[str, tuple[int, int]] = {}
    twice = []
    for clique, versions in without_leaks(split, leaked).cliques.items():
        number = ordinals.cliques[split.name, clique] = len(ordinals.cliques)
        videos = dict.fromkeys(video_id(version) for version in versions)
        for video in filter(None, videos):
            if video in rows:
                twice.append(video)
            else:
                rows[video] = ordinals.ids.setdefault(video, len(ordinals.ids)), number
    lost = [row.get("clique", row.get("id", "")) for row in leaked if row["split"] == split.name]
    return rows, {"leaked": lost, "in_two_cliques": twice}


def _log(split: str, part: Cliques, cliques: int) -> None:
    """Say what a split has and lacks."""
    left_out = "; ".join(
        f"{len(names)} {reason.replace('_', ' ')}, such as {', '.join(names[:_SHOWN])}"
        for reason, names in part.left_out.items()
        if names
    )
    counts = f"{counted(len(part), 'recording')} of {counted(cliques, 'clique')}"
    log.info("%s: %s; left out: %s", split, counts, left_out or "none")
