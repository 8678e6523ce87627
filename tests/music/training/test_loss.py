"""The loss: its logged values and gradients are upstream's; which pairs count."""

from __future__ import annotations

import pytest
import torch

from millrace.music.models.config import ClewsConfig
from millrace.music.training.loss import contrastive_loss
from tests.music import seeded


def test_loss_and_gradients_are_those_of_upstream():
    model, expected = seeded.tiny().train(), seeded.expected()
    embeddings = model(seeded.features(), seeded.noise())
    loss = contrastive_loss(embeddings, seeded.CLIQUES, seeded.IDS, model.config)
    assert loss.item() == pytest.approx(expected["loss"]["l_main"], abs=1e-5)
    loss.backward()
    for name, parameter in model.named_parameters():
        size = seeded.direction(name, parameter.grad)
        assert size == pytest.approx(expected["gradients"][name], rel=1e-4, abs=1e-4), name


# No negative pair counts with these.
FAR = ClewsConfig(loss_redux_pos="min", loss_gamma=1e6)


def test_tracks_of_one_recording_are_no_positive_pair():
    embeddings = seeded.uniform("embeddings", 6, 2, 8)
    cliques, ids = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 3, 4, 4])
    loss = contrastive_loss(embeddings, cliques, ids, FAR)
    # Whatever the two versions of recording 4 are like, pairs of them do not count.
    pairs = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5)]
    means = [(embeddings[i, :, None] - embeddings[j]).square().mean(-1).min() for i, j in pairs]
    assert float(loss) == pytest.approx(float(torch.stack(means).mean()), rel=1e-5)


@pytest.mark.parametrize("cliques", [[0] * 4, [0, 1, 2, 3]])
def test_a_part_without_pairs_is_zero_and_has_gradients(cliques):
    embeddings = seeded.uniform("embeddings", 4, 2, 8).requires_grad_()
    loss = contrastive_loss(embeddings, torch.tensor(cliques), torch.arange(4), ClewsConfig())
    loss.backward()
    assert loss.item() > 0 and embeddings.grad.isfinite().all()
    # Without positive pairs, and without near negative ones, nothing is left.
    no_positive = contrastive_loss(embeddings, torch.arange(4), torch.arange(4), FAR)
    assert no_positive.item() == 0


def test_far_tracks_of_other_cliques_give_no_overflow():
    embeddings = 1e3 * seeded.uniform("embeddings", 4, 2, 8, low=-1)
    cliques = torch.tensor([0, 0, 1, 1])
    loss = contrastive_loss(embeddings, cliques, torch.arange(4), ClewsConfig())
    assert loss.isfinite()
