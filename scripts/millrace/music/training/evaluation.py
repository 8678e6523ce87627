"""Held-out figures: tracks are embedded once, on one rank, and found by all others' queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.training import devices, seeding
from millrace.common.training.ranks import Exchange
from millrace.music.features.reader import FeatureError
from millrace.music.models.clews import Clews
from millrace.music.models.published import load_published
from millrace.music.sampling.cliques import Cliques
from millrace.music.sampling.windows import Geometry, ShingleReader
from millrace.music.training.conf import Conf
from millrace.music.training.distances import parse_reduction
from millrace.music.training.features import Features
from millrace.music.training.metrics import Tracks, intervals, means, retrieve
from millrace.music.training.settings import check_ranks, loop_settings


class Share(NamedTuple):
    """A rank's part of an evaluation."""

    exchange: Exchange
    rank: int
    device: torch.device


def embed(
    model: Clews, cliques: Cliques, reader: ShingleReader, cut: Callable[[int], Geometry], share: Share
) -> Tracks:
    """All tracks, on every rank; `cut` says how a track of so many frames of the model is cut, from its
    beginning. What cannot be read is left out, and logged.

    The noise of a track's embedding is its own, so that figures are those of any number of ranks.
    """
    pairs = []
    for row in range(share.rank, len(cliques), share.exchange.world_size):
        frames, hop = int(cliques.frames[row]), float(cliques.hops[row])
        geometry = cut(reader.length(frames, hop))
        try:
            shingles = reader.read(int(cliques.tracks[row]), frames, hop, 0, geometry)
        except FeatureError as error:
            log.warning("left out of the evaluation: %s", error)
            continue
        # The model takes no shorter shingles than in training: shorter ones are repeated.
        least = model.config.shingle_frames
        if geometry.size < least:
            shingles = shingles[:, :, np.arange(least) % geometry.size]
        generator = torch.Generator(share.device)
        generator.manual_seed(seeding.derive(0, "noise", int(cliques.ids[row])))
        embedded = model(torch.from_numpy(shingles)[None].to(share.device), generator)
        pairs.append((row, embedded[0].float().cpu()))
    pairs = sorted(chain.from_iterable(share.exchange.gathered(pairs)), key=itemgetter(0))
    if not pairs:
        raise MillraceError("no track can be read", remedy="Build the index again, or bring the files")
    rows = [row for row, _ in pairs]
    tracks = Tracks.of(cliques.cliques[rows], cliques.ids[rows], [embedded for _, embedded in pairs])
    return Tracks(*(each.to(share.device) for each in vars(tracks).values()))


def scored(queries: Tracks, candidates: Tracks, strategy: str, share: Share) -> dict[str, Tensor]:
    """The figures of `retrieve` of all queries, each of which one rank looks for."""
    mine = queries[share.rank :: share.exchange.world_size]
    figures = {name: values.cpu() for name, values in retrieve(mine, candidates, strategy).items()}
    parts = share.exchange.gathered(figures)
    return {name: torch.cat([part[name] for part in parts]) for name in figures}


def evaluate(conf: Conf, options: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a checkpoint on a split, over all queries: means, and half widths of 95 % intervals.

    Every rank must call it; the figures are those of rank 0, the others get {}.
    """
    ranks = check_ranks(conf)
    fabric = devices.launch(ranks, loop_settings(conf))
    share = Share(Exchange(ranks.world_size), ranks.rank, fabric.device)
    model = load_published(options["checkpoint"]).to(fabric.device)
    features = Features(conf, [options["partition"]])
    cliques = features.cliques[options["partition"]]
    if limit := options["limit_num"]:
        cliques = cliques.only(np.arange(len(cliques)) < limit)
    frame, strategy = model.config.frame_seconds, options["redux"] or model.config.loss_redux_pos
    parse_reduction(strategy)

    @torch.inference_mode()
    def embedded(seconds: float | None, hop: float) -> Tracks:
        def cut(frames: int) -> Geometry:
            length = min(frames, round(options["maxlen"] / frame))
            size = round((model.config.shingling_len if seconds is None else seconds) / frame)
            step = round(hop / frame) if hop > 0 else int(0.99 * length)
            return Geometry(length, size if size > 0 else length, max(step, 1))

        return embed(model, cliques, features.reader, cut, share)

    shingles = [(options[f"{side}len"], options[f"{side}hop"]) for side in ("qs", "cs")]
    queries = candidates = embedded(*shingles[0])
    if shingles[0] != shingles[1]:
        candidates = embedded(*shingles[1])
    figures = scored(queries, candidates, strategy, share)
    facts = {"partition": options["partition"], "redux": strategy, "queries": len(figures["MAP"])}
    facts |= {"candidates": len(candidates), "left_out": len(cliques) - len(candidates)}
    return {**facts, "figures": means(figures), "intervals": intervals(figures)} if ranks.is_main else {}
