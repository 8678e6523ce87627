"""How well versions are retrieved: MAP, MR1, ARP and their combination, over queries that are
tracks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from millrace.music.sampling.pairs import version_pairs
from millrace.music.training.distances import reduced, shingle_distances

_MOST_DISTANCES = 2**24


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
        lengths = [len(shingles) for shingles in embeddings]
        ends = torch.tensor(lengths).unsqueeze(1)
        places = torch.arange(padded.shape[1])
        filled = places >= ends
        return cls(
            cliques=torch.tensor(cliques, device=device),
            ids=torch.tensor(ids, device=device),
            embeddings=padded,
            filled=filled.to(device),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> Tracks:
        return Tracks(
            cliques=self.cliques[rows],
            ids=self.ids[rows],
            embeddings=self.embeddings[rows],
            filled=self.filled[rows],
        )


@torch.no_grad()
def retrieve(
    queries: Tracks,
    candidates: Tracks,
    strategy: str,
    most_distances: int = _MOST_DISTANCES,
) -> dict[str, Tensor]:
    """Every query's AP (0..1), R1 (from 1), ARP (percent) and COMP = sqrt(ARP (1 - AP)), each
    float64 (Q,).

    Relevant are versions of the query, see `sampling/pairs.py`. Queries without another version
    among the candidates are left out.
    """
    blocks = []
    for block, distances in _ranked(queries, candidates, strategy, most_distances):
        relevant = version_pairs(block.cliques, block.ids, candidates.cliques, candidates.ids)
        usable = relevant.any(1)
        blocks.append(scores(distances[usable], relevant[usable]))
    return joined(blocks)


def joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The figures of all queries, out of those of some each."""
    return {name: torch.cat([figures[name] for figures in parts]) for name in parts[0]}


def _ranked(
    queries: Tracks, candidates: Tracks, strategy: str, most_distances: int
) -> Iterator[tuple[Tracks, Tensor]]:
    """Queries, some at a time, with their distances (Q, K) to all candidates; infinite to those of
    their own id, which so rank last. `most_distances` between shingles are in memory at a time, in
    a few copies."""
    size = _block_size(queries, candidates, most_distances)
    candidate_blocks = [
        candidates[start : start + size.candidates]
        for start in range(0, len(candidates), size.candidates)
    ]
    # Without queries there is one block without rows: the figures keep their names.
    stop = max(1, len(queries))
    for start in range(0, stop, size.queries):
        block = queries[start : start + size.queries]
        parts = [track_distances(block, columns, strategy) for columns in candidate_blocks]
        distances = torch.cat(parts, 1)
        own_ids = block.ids.unsqueeze(1)
        is_same_recording = own_ids == candidates.ids
        yield block, distances.masked_fill(is_same_recording, math.inf)


class _BlockSize(NamedTuple):
    """Tracks whose distances are computed at a time."""

    queries: int
    candidates: int


def _block_size(queries: Tracks, candidates: Tracks, most_distances: int) -> _BlockSize:
    """The tracks that have `most_distances` between their shingles; one query at least, and one
    candidate."""
    shingle_pairs = queries.embeddings.shape[1] * candidates.embeddings.shape[1]
    fitting = max(1, most_distances // shingle_pairs)
    columns = min(fitting, max(1, len(candidates)))
    # A row has the distances of one block of candidates, and in the end one to each candidate.
    row_size = max(columns * shingle_pairs, len(candidates))
    rows = max(1, most_distances // row_size)
    return _BlockSize(rows, columns)


def track_distances(queries: Tracks, candidates: Tracks, strategy: str) -> Tensor:
    """Distances (Q, K) without the filling; infinite if a track has only filling."""
    distances = shingle_distances(queries.embeddings, candidates.embeddings)
    query_filled = queries.filled[:, None, :, None]
    candidate_filled = candidates.filled[None, :, None, :]
    filled = query_filled | candidate_filled
    without_filling = distances.masked_fill(filled, math.inf)
    return reduced(without_filling, strategy)


def scores(distances: Tensor, relevant: Tensor) -> dict[str, Tensor]:
    """Figures of each query, as of `retrieve`, from (Q, K) distances and which candidates are
    relevant.

    ARP: the mean over relevant candidates of the share of the others that rank before them. As in
    the original the query itself is one of these others, so that chance is below 50 % of few
    candidates.
    """
    order = distances.argsort(dim=1, stable=True)
    ranked_relevant = relevant.gather(1, order)
    ap = _average_precision(ranked_relevant)
    arp = _average_rank_percentile(ranked_relevant)

    first_place = ranked_relevant.int().argmax(1)
    first_rank = first_place.double() + 1
    combined = (arp * (1 - ap)).sqrt()
    return {
        "MAP": ap,
        "MR1": first_rank,
        "ARP": arp,
        "COMP": combined,
    }


def _average_precision(relevant: Tensor) -> Tensor:
    """AP of each query: the mean over relevant candidates of the share of relevant ones up to
    there; bool (Q, K) in the order of the ranks."""
    count = relevant.shape[1]
    ranks = torch.arange(1, count + 1, device=relevant.device)
    relevant_so_far = relevant.cumsum(1).double()
    precision = relevant_so_far / ranks
    at_relevant = precision * relevant
    return at_relevant.sum(1) / relevant.sum(1)


def _average_rank_percentile(relevant: Tensor) -> Tensor:
    """ARP of each query, see `scores`; bool (Q, K) in the order of the ranks."""
    irrelevant = ~relevant
    others = irrelevant.sum(1).clamp(min=1)
    others_before = irrelevant.cumsum(1).double()
    share_before = others_before / others.unsqueeze(1)
    at_relevant = share_before * relevant
    return 100 * at_relevant.sum(1) / relevant.sum(1)


def means(figures: Mapping[str, Tensor]) -> dict[str, float]:
    """m_MAP, m_MR1, m_ARP and m_COMP of `retrieve`: means over the queries; NaN without any.

    So m_COMP is the mean of the queries' own values, not the combination of the means.
    """
    return {f"m_{name}": float(values.mean()) for name, values in figures.items()}
