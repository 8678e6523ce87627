"""The loss: its logged values and gradients are upstream's; which pairs count."""

from __future__ import annotations

import pytest
import torch

from millrace.music.models.config import ClewsConfig
from millrace.music.training.loss import contrastive_loss
from tests.music import seeded


def test_loss_logged_values_and_gradients_are_those_of_upstream():
    model, expected = seeded.tiny().train(), seeded.expected()
    embeddings = model(seeded.features(), seeded.noise())
    loss, logged = contrastive_loss(embeddings, seeded.CLIQUES, seeded.IDS, model.config)
    assert {name: float(value) for name, value in logged.items()} == pytest.approx(
        expected["loss"], abs=1e-5
    )
    assert list(logged) == list(expected["loss"]) and float(logged["l_main"]) == loss.item()
    loss.backward()
    for name, parameter in model.named_parameters():
        size = seeded.direction(name, parameter.grad)
        assert size == pytest.approx(expected["gradients"][name], rel=1e-4, abs=1e-4), name


def test_tracks_of_one_recording_are_no_positive_pair():
    embeddings = seeded.uniform("embeddings", 6, 2, 8)
    cliques, ids = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 3, 4, 4])
    logged = contrastive_loss(embeddings, cliques, ids, ClewsConfig(loss_redux_pos="min"))[1]
    # Whatever the two versions of recording 4 are like, pairs of them do not count.
    pairs = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5)]
    means = [(embeddings[i, :, None] - embeddings[j]).square().mean(-1).min() for i, j in pairs]
    assert float(logged["v_dpos"]) == pytest.approx(float(torch.stack(means).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("cliques", "ids", "zero"),
    [([0] * 4, [0, 1, 2, 3], "l_cont"), ([0, 1, 2, 3], [0, 1, 2, 3], "l_cent")],
)
def test_a_part_without_pairs_is_zero_and_has_gradients(cliques, ids, zero):
    embeddings = seeded.uniform("embeddings", 4, 2, 8).requires_grad_()
    loss, logged = contrastive_loss(
        embeddings, torch.tensor(cliques), torch.tensor(ids), ClewsConfig()
    )
    loss.backward()
    assert float(logged[zero]) == 0 and loss.item() > 0 and embeddings.grad.isfinite().all()


def test_far_tracks_of_other_cliques_give_no_overflow():
    embeddings = 1e3 * seeded.uniform("embeddings", 4, 2, 8, low=-1)
    loss, logged = contrastive_loss(
        embeddings, torch.tensor([0, 0, 1, 1]), torch.arange(4), ClewsConfig()
    )
    assert loss.isfinite() and float(logged["l_cont"]) < 1e-6
