"""The loss of CLEWS: versions of a clique near each other, tracks of different cliques apart."""

from __future__ import annotations

import math

from torch import Tensor

from millrace.music.models.config import ClewsConfig
from millrace.music.sampling.pairs import version_pairs
from millrace.music.training.distances import reduced, shingle_distances

_EXPONENT = 10.0  # exp(10 - gamma d) does not vanish in float32 for any distance that counts


def contrastive_loss(
    embeddings: Tensor, cliques: Tensor, ids: Tensor, config: ClewsConfig
) -> Tensor:
    """The loss of embeddings (B, S, Z) with the cliques and ids (B,) of their tracks.

    mean(d+) + log(1 + beta mean(exp(10 - gamma d-))), beta = 1 / (epsilon e^10); d: distances of
    tracks. The means are over the pairs of this batch, so figures depend on its size, and on how
    tracks are split over ranks; `sampling/pairs.py` says which pairs are positive. Without any
    positive or negative pair that part is 0: it is for sampling to give every batch two cliques.
    """
    distances = shingle_distances(embeddings, embeddings)
    near = reduced(distances, config.loss_redux_pos)
    far = reduced(distances, config.loss_redux_neg)
    positive = version_pairs(cliques, ids, cliques, ids)
    negative = cliques[:, None] != cliques

    centring = _mean_of(near, positive)
    beta = 1 / (config.loss_epsilon * math.exp(_EXPONENT))
    closeness = (_EXPONENT - config.loss_gamma * far).exp()
    contrast = (beta * _mean_of(closeness, negative)).log1p()
    return centring + contrast


def _mean_of(values: Tensor, pairs: Tensor) -> Tensor:
    """Mean of the values of the marked pairs; 0 without any."""
    return values.masked_fill(~pairs, 0).sum() / pairs.sum().clamp(min=1)
