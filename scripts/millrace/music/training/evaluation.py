"""Held-out tracks embedded, each once, on one rank, and looked for by all others; unreadable ones
are left out, and an index for another model is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.training import seeding
from millrace.common.training.ranks import Exchange
from millrace.music.features.index import FeatureIndex
from millrace.music.features.reader import FeatureError, WindowReader
from millrace.music.features.roots import SPLITS
from millrace.music.models.clews import Clews
from millrace.music.models.config import ClewsConfig
from millrace.music.sampling.cliques import Cliques, read_cliques
from millrace.music.sampling.windows import Geometry, ShingleReader
from millrace.music.training.conf import Conf
from millrace.music.training.metrics import Tracks, joined, retrieve


class Features:
    """Index, reader of shingles, and cliques of all splits that are set; those of `splits` must
    be."""

    def __init__(self, conf: Conf, splits: Sequence[str]) -> None:
        for key in ("path.index", *(f"path.splits.{name}" for name in splits)):
            if not conf[key]:
                remedy = f"Set {key} in the configuration, or write {key}=FILE"
                raise MillraceError(f"{key} is not set", conf["conf"] or "the command line", remedy)
        self.index = FeatureIndex(conf["path.index"], conf.roots)
        _check_contract(self.index, conf.model)
        windows = WindowReader(self.index)
        self.reader = ShingleReader(windows, self.index.contract)
        paths = {name: conf[f"path.splits.{name}"] for name in SPLITS}
        self.cliques = read_cliques(paths, self.index, conf["data.on_leak"])
        for name in splits:
            require_cliques(self.cliques[name], paths[name])


def _check_contract(index: FeatureIndex, model: ClewsConfig) -> None:
    """Raise MillraceError if the index holds features for another model."""
    built = index.contract
    of_index = (built.bins, built.hop, built.pool)
    of_model = (model.bins, model.cqt_hoplen, model.cqt_pool)
    has_other_hop = not math.isclose(built.hop, model.cqt_hoplen, rel_tol=1e-4)
    if has_other_hop or (built.bins, built.pool) != (model.bins, model.cqt_pool):
        words = "bins, hop (s) and pool of the index are {}, {:g} and {}, the model takes {}, {:g}"
        problem = (words + " and {}").format(*of_index, *of_model)
        remedy = "Build the index with --bins, --hop and --pool of the model, or set model.cqt"
        raise MillraceError(problem, index.path, remedy)


def require_cliques(cliques: Cliques, where: str) -> None:
    """Raise MillraceError if there are not two cliques of two recordings: nothing to tell apart."""
    count = len(np.unique(cliques.cliques))
    if count < 2:
        problem = f"{counted(count, 'clique')} of two recordings with features"
        remedy = "Give two or more: add cliques, or bring their features"
        raise MillraceError(problem, where, remedy)


class Share(NamedTuple):
    """A rank's part of an evaluation."""

    exchange: Exchange
    rank: int
    device: torch.device


def embed(
    model: Clews,
    cliques: Cliques,
    reader: ShingleReader,
    cut: Callable[[int], Geometry],
    share: Share,
    max_missing_fraction: float = 1.0,
) -> Tracks:
    """All tracks, on every rank; `cut` says how a track of so many frames of the model is cut, from
    its beginning. What cannot be read is left out, counted and logged; MillraceError above the
    fraction.

    The noise of a track's embedding is its own, so that figures are those of any number of ranks.
    """
    pairs = []
    problems = []
    for row in range(share.rank, len(cliques), share.exchange.world_size):
        try:
            pairs.append((row, _embedded(model, cliques, row, reader, cut, share.device)))
        except FeatureError as error:
            problems.append(str(error))

    parts = share.exchange.gathered((pairs, problems))
    all_pairs = sorted(chain.from_iterable(part for part, _ in parts), key=itemgetter(0))
    all_problems = list(chain.from_iterable(part for _, part in parts))
    is_too_much = len(all_problems) > max_missing_fraction * len(cliques) or not all_pairs
    if all_problems:
        words = f"{len(all_problems)} of {len(cliques)} tracks cannot be read"
        if is_too_much:
            remedy = "Build the index again, bring the files, or raise data.max_missing_fraction"
            raise MillraceError(f"{words}, the first: {all_problems[0]}", remedy=remedy)
        log.warning("left out of the evaluation: %s, the first: %s", words, all_problems[0])

    rows = [row for row, _ in all_pairs]
    embeddings = [embedded for _, embedded in all_pairs]
    broken = [row for row, embedded in all_pairs if not embedded.isfinite().all()]
    if broken:
        problem = f"{len(broken)} of {len(rows)} tracks have embeddings that are not finite"
        first = reader.windows.index.id(int(cliques.tracks[broken[0]]))
        raise MillraceError(problem, first, "Lower lr, or look at the features of this track")
    tracks = Tracks.of(cliques.cliques[rows], cliques.ids[rows], embeddings)
    return Tracks(*(each.to(share.device) for each in vars(tracks).values()))


def _embedded(
    model: Clews,
    cliques: Cliques,
    row: int,
    reader: ShingleReader,
    cut: Callable[[int], Geometry],
    device: torch.device,
) -> Tensor:
    """float32 (S, Z) of one track, on the CPU. Raises FeatureError."""
    frames = int(cliques.frames[row])
    hop = float(cliques.hops[row])
    geometry = cut(reader.length(frames, hop))
    shingles = reader.read(int(cliques.tracks[row]), frames, hop, 0, geometry)

    generator = torch.Generator(device)
    generator.manual_seed(seeding.derive(0, "noise", int(cliques.ids[row])))
    batch = torch.from_numpy(shingles)[None].to(device)
    return model(batch, generator)[0].float().cpu()


def scored(tracks: Tracks, strategy: str, share: Share) -> dict[str, Tensor]:
    """The figures of `retrieve` of all tracks, each of which one rank looks for among all."""
    mine = tracks[share.rank :: share.exchange.world_size]
    retrieved = retrieve(mine, tracks, strategy)
    figures = {name: values.cpu() for name, values in retrieved.items()}
    return joined(share.exchange.gathered(figures))
