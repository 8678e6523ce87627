"""The loss of CLEWS: versions of a clique near each other, tracks of different cliques apart."""

from __future__ import annotations

import math

from torch import Tensor

from millrace.music.models.config import ClewsConfig
from millrace.music.training.distances import reduced, shingle_distances

# In the order of the original.
LOGGED = ("l_main", "l_cent", "l_cont", "v_dpos", "v_dneg", "v_zmax", "v_zmean", "v_zstd")
_EXPONENT = 10.0  # exp(10 - gamma d) does not vanish in float32 for any distance that counts


def contrastive_loss(
    embeddings: Tensor, cliques: Tensor, ids: Tensor, config: ClewsConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """(Loss, what is logged of it) of embeddings (B, S, Z) with the cliques and ids (B,) of their
    tracks.

    mean(d+) + log(1 + beta mean(exp(10 - gamma d-))), beta = 1 / (epsilon e^10); d: distances of
    tracks. The means are over the pairs of this batch, so figures depend on its size, and on how
    tracks are split over ranks. Tracks of equal ids are no positive pair. Without any positive or
    negative pair that part is 0: it is for sampling to give every batch two cliques. Logged values
    are scalars without gradients.
    """
    distances = shingle_distances(embeddings, embeddings)
    near, far = (
        reduced(distances, each) for each in (config.loss_redux_pos, config.loss_redux_neg)
    )
    same_clique = cliques[:, None] == cliques
    positive, negative = same_clique & (ids[:, None] != ids), ~same_clique

    beta = 1 / (config.loss_epsilon * math.exp(_EXPONENT))
    centring = _mean_of(near, positive)
    contrast = (beta * _mean_of((_EXPONENT - config.loss_gamma * far).exp(), negative)).log1p()
    loss, values = centring + contrast, embeddings.detach().float()
    logged = (loss, centring, contrast, centring, _mean_of(far, negative))
    logged += (values.abs().max(), values.mean(), values.std())
    return loss, {name: value.detach() for name, value in zip(LOGGED, logged, strict=True)}


def _mean_of(values: Tensor, pairs: Tensor) -> Tensor:
    """Mean of the values of the marked pairs; 0 without any."""
    return values.masked_fill(~pairs, 0).sum() / pairs.sum().clamp(min=1)
