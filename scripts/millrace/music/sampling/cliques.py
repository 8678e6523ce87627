"""The cliques of the splits as arrays: their recordings that have features, by ordinals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from millrace.common.cli import log
from millrace.common.leaks import leakage
from millrace.music.features.index import FeatureIndex
from millrace.music.features.roots import SPLITS
from millrace.music.features.splits import (
    check_leaks,
    coverage,
    leaks,
    read_split,
    shared,
    without_leaks,
)


@dataclass
class Cliques:
    """Recordings of one split, clique by clique, in the order of its file; a row is one recording.

    `ids` and `cliques` are ordinals (int64) over all splits, train first: equal in every process
    and run. `tracks` are numbers in the feature index, `frames` and `hops` (s) of what is stored.
    """

    ids: np.ndarray
    cliques: np.ndarray
    tracks: np.ndarray
    frames: np.ndarray
    hops: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def members(self, row: int) -> range:
        """The rows of this recording's clique."""
        clique = self.cliques[row]
        start = np.searchsorted(self.cliques, clique, "left")
        stop = np.searchsorted(self.cliques, clique, "right")
        return range(int(start), int(stop))


def read_cliques(
    paths: Mapping[str, str], index: FeatureIndex, on_leak: str = leakage.ERROR
) -> dict[str, Cliques]:
    """The cliques of each split in `paths`, as its coverage says.

    `on_leak` says what becomes of a clique or a recording in two splits; by `reject` the earlier of
    train, valid and test loses it.
    """
    splits = {name: read_split(paths[name], name) for name in SPLITS if paths.get(name)}
    found = leaks(splits)
    check_leaks(found, on_leak, ", ".join(filter(None, paths.values())), "data.on_leak")
    for in_two in shared(found):
        log.info("%s", leakage.line(in_two, on_leak))
    leaked = found if on_leak == leakage.REJECT else []

    # Of what has no features too, so that numbers do not depend on the index. A clique in two
    # splits has two: they rise from row to row of a split.
    ordinals: dict[str, int] = {}
    cliques_before = 0
    result = {}
    for name, whole in splits.items():
        split = without_leaks(whole, leaked)
        for video in split.ids:
            ordinals.setdefault(video, len(ordinals))
        part = coverage(split, index, {})
        log.info("%s", part.facts["line"])

        rows = []
        for number, clique in enumerate(split.cliques, cliques_before):
            for video, track in part.cliques.get(clique, {}).items():
                rows.append((ordinals[video], number, track))
        cliques_before += len(split.cliques)
        ids, cliques, tracks = np.array(rows, np.int64).reshape(-1, 3).T.copy()
        result[name] = Cliques(ids, cliques, tracks, index.frames()[tracks], index.hops()[tracks])
    return result
