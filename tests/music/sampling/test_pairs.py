"""Which tracks of a batch are versions of each other."""

from __future__ import annotations

import torch

from millrace.music.sampling.pairs import version_pairs


def test_a_recording_is_never_its_own_positive_however_often_it_stands_in_a_batch():
    cliques, ids = torch.tensor([0, 0, 0, 1]), torch.tensor([5, 6, 5, 7])
    pairs = version_pairs(cliques, ids, cliques, ids)
    found = {(row, column) for row in range(4) for column in range(4) if pairs[row, column]}
    assert found == {(0, 1), (1, 0), (1, 2), (2, 1)}


def test_queries_and_candidates_may_be_different_tracks():
    queries = torch.tensor([3]), torch.tensor([8])
    candidates = torch.tensor([3, 3, 4]), torch.tensor([8, 9, 10])
    assert version_pairs(*queries, *candidates).tolist() == [[False, True, False]]
