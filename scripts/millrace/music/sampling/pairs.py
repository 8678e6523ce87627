"""Which tracks are versions of each other: a recording is never its own positive."""

from __future__ import annotations

from torch import Tensor


def version_pairs(cliques: Tensor, ids: Tensor, other_cliques: Tensor, other_ids: Tensor) -> Tensor:
    """bool (N, M): tracks of one clique that are different recordings.

    A batch may hold a recording twice: of a small clique that fills all slots, with p_samesong, or
    as an anchor and as a version of another one. An evaluation finds queries among the candidates.
    """
    is_same_clique = cliques[:, None] == other_cliques
    is_other_recording = ids[:, None] != other_ids
    return is_same_clique & is_other_recording
