"""How well versions are retrieved: MAP, MR1, ARP and their combination, over queries that are
tracks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millrace.music.sampling.pairs import version_pairs
from millrace.music.training.distances import reduced, shingle_distances


@dataclass(frozen=True)
class Tracks:
    """Embedded tracks; ids are of recordings. filled: bool (N, S), shingles that only fill up."""

    cliques: Tensor
    ids: Tensor
    embeddings: Tensor
    filled: Tensor

    @classmethod
    def of(
        cls,
        cliques: Sequence[int] | np.ndarray,
        ids: Sequence[int] | np.ndarray,
        embeddings: Sequence[Tensor],
    ) -> Tracks:
        """Tracks of embeddings (S, Z) with different S."""
        padded = torch.nn.utils.rnn.pad_sequence(list(embeddings), batch_first=True)
        device = padded.device
        lengths = torch.tensor([len(each) for each in embeddings])
        filled = torch.arange(padded.shape[1]) >= lengths[:, None]
        return cls(
            torch.tensor(cliques, device=device),
            torch.tensor(ids, device=device),
            padded,
            filled.to(device),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> Tracks:
        return Tracks(self.cliques[rows], self.ids[rows], self.embeddings[rows], self.filled[rows])


@torch.no_grad()
def retrieve(
    queries: Tracks, candidates: Tracks, strategy: str, most_distances: int = 2**24
) -> dict[str, Tensor]:
    """Every query's AP (0..1), R1 (from 1), ARP (percent) and COMP = sqrt(ARP (1 - AP)), each
    float64 (Q,).

    Relevant are versions of the query, see `sampling/pairs.py`. Queries without another version
    among the candidates are left out.
    """
    parts = []
    for block, distances in ranked(queries, candidates, strategy, most_distances):
        relevant = version_pairs(block.cliques, block.ids, candidates.cliques, candidates.ids)
        usable = relevant.any(1)
        parts.append(scores(distances[usable], relevant[usable]))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def ranked(
    queries: Tracks, candidates: Tracks, strategy: str, most_distances: int = 2**24
) -> Iterator[tuple[Tracks, Tensor]]:
    """Queries, some at a time, with their distances (Q, K) to all candidates; infinite to those of
    their own id, which so rank last. `most_distances` between shingles are in memory at a time, in
    a few copies."""
    shingle_pairs = queries.embeddings.shape[1] * candidates.embeddings.shape[1]
    columns = max(1, most_distances // shingle_pairs)
    columns = min(columns, max(1, len(candidates)))
    rows = max(1, most_distances // max(columns * shingle_pairs, len(candidates)))

    starts = range(0, len(candidates), columns)
    candidate_blocks = [candidates[start : start + columns] for start in starts]
    for start in range(0, max(1, len(queries)), rows):
        block = queries[start : start + rows]
        parts = [track_distances(block, each, strategy) for each in candidate_blocks]
        is_same_recording = block.ids[:, None] == candidates.ids
        yield block, torch.cat(parts, 1).masked_fill(is_same_recording, math.inf)


def track_distances(queries: Tracks, candidates: Tracks, strategy: str) -> Tensor:
    """Distances (Q, K) without the filling; infinite if a track has only filling."""
    distances = shingle_distances(queries.embeddings, candidates.embeddings)
    filled = queries.filled[:, None, :, None] | candidates.filled[:, None]
    return reduced(distances.masked_fill(filled, math.inf), strategy)


def scores(distances: Tensor, relevant: Tensor) -> dict[str, Tensor]:
    """Figures of each query, as of `retrieve`, from (Q, K) distances and which candidates are
    relevant.

    ARP: the mean over relevant candidates of the share of the others that rank before them. As in
    the original the query itself is one of these others, so that chance is below 50 % of few
    candidates.
    """
    order = distances.argsort(dim=1, stable=True)
    relevant = relevant.gather(1, order)
    number = relevant.sum(1)
    ranks = torch.arange(1, relevant.shape[1] + 1, device=relevant.device)

    precision = relevant.cumsum(1).double() / ranks
    ap = (precision * relevant).sum(1) / number

    others = (~relevant).sum(1).clamp(min=1)
    share_before = (~relevant).cumsum(1).double() / others[:, None]
    arp = 100 * (share_before * relevant).sum(1) / number

    first = relevant.int().argmax(1).double() + 1
    combined = (arp * (1 - ap)).sqrt()
    return {"MAP": ap, "MR1": first, "ARP": arp, "COMP": combined}


def means(figures: Mapping[str, Tensor]) -> dict[str, float]:
    """m_MAP, m_MR1, m_ARP and m_COMP of `retrieve`: means over the queries; NaN without any.

    So m_COMP is the mean of the queries' own values, not the combination of the means.
    """
    return {f"m_{name}": float(values.mean()) for name, values in figures.items()}


def intervals(figures: Mapping[str, Tensor]) -> dict[str, float]:
    """Half of the width of the 95 % interval of each mean, for queries drawn independently."""
    return {f"m_{name}": _half_width(values) for name, values in figures.items()}


def _half_width(values: Tensor) -> float:
    return float(1.96 * values.std() / math.sqrt(len(values)))
