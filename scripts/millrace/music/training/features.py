"""The features that a configuration names, ready to be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millrace.common.errors import MillraceError
from millrace.music.features.index import FeatureIndex, index_path
from millrace.music.features.reader import WindowReader
from millrace.music.sampling.cliques import read_cliques
from millrace.music.sampling.windows import ShingleReader
from millrace.music.training.conf import Conf


class Features:
    """Index, reader of shingles, and cliques of all splits that are set; those of `splits` must be."""

    def __init__(self, conf: Conf, splits: Sequence[str]) -> None:
        for key in ("path.index", *(f"path.splits.{name}" for name in splits)):
            if not conf[key]:
                remedy = f"Set {key} in the configuration, or write {key}=FILE"
                raise MillraceError(f"{key} is not set", conf["conf"] or "the command line", remedy)
        roots = {kind: conf[f"path.{kind}_root"] for kind in ("h5", "mm") if conf[f"path.{kind}_root"]}
        self.index = FeatureIndex(index_path(conf["path.index"]), roots)
        windows = WindowReader(self.index, conf["data.prefer"], conf["data.max_open_files"])
        self.reader = ShingleReader(windows, conf.contract(), conf["data.pad_mode"])
        paths = {name: conf[f"path.splits.{name}"] for name in ("train", "valid", "test")}
        self.cliques = read_cliques(paths, self.index, conf["data.prefer"], conf["data.on_leak"])
        for part in self.cliques.values():
            # Of each hop the first track stands for the others.
            for hop, row in zip(*np.unique(part.hops, return_index=True), strict=True):
                track = int(part.tracks[row])
                bins = self.index.entries(track)[0].bins
                if problem := conf.contract().mismatch(bins, float(hop)):
                    remedy = "Set the model's cqt keys to the features, or data.resample to true"
                    raise MillraceError(problem, f"{self.index.id(track)} in {self.index.path}", remedy)
