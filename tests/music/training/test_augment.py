"""Augmentations: upstream's results for given draws, and how they are drawn."""

from __future__ import annotations

import functools
import logging

import pytest
import torch

from millrace.common.training import seeding
from millrace.music.training import conf
from millrace.music.training.augment import Augmentations
from tests.music import seeded

PUBLISHED = {name: {"p": 0.1} for name in ("specaugment", "timestretch", "pitchtranspose")}
draws = functools.partial(seeding.generator, 1)


@pytest.mark.parametrize("name", list(seeded.expected()["augmentations"]))
def test_stretch_and_transposition_are_those_of_upstream(name):
    section, values = seeded.expected()["augmentations"][name]
    shingles = seeded.features(30)[0, :, :12]
    result = Augmentations(section)(shingles, draws())
    torch.testing.assert_close(
        result, torch.tensor(values).reshape(2, 12, 30), atol=1e-5, rtol=1e-5
    )


def test_what_is_drawn_depends_on_the_address_alone():
    shingles, before = seeded.features()[0], seeded.features()[0]
    augment = Augmentations({name: {"p": 0.5} for name in PUBLISHED})
    first, again, later = (augment(shingles, draws(epoch, 7)) for epoch in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later)
    assert first.shape == shingles.shape and torch.equal(shingles, before)


def test_each_shingle_is_drawn_for_itself_with_probability_p():
    shingles = torch.rand(2000, 6, 8)
    augment = Augmentations({"pitchtranspose": {"p": 0.3, "r": [1, 2]}})
    changed = (augment(shingles, draws()) != shingles).flatten(1).any(1)
    assert 0.25 < float(changed.float().mean()) < 0.35


@pytest.mark.parametrize("full", [True, False])
def test_bands_and_spans_are_zeros_of_at_most_their_share(full):
    options = {"p": 1.0, "n": 1, "full": full, "f_pc": 0.25, "t_pc": 0.1}
    zeros = Augmentations({"specaugment": options})(torch.ones(300, 40, 100), draws()) == 0
    bands, spans = zeros.any(2).sum(1), zeros.any(1).sum(1)
    whole_bands, whole_spans = zeros.all(2).sum(1), zeros.all(1).sum(1)
    if full:
        assert (whole_bands.min(), whole_bands.max(), whole_spans.min(), whole_spans.max()) == (
            1,
            9,
            1,
            9,
        )
        # Each bin and frame, those at the edges too.
        assert zeros.all(2).any(0).all() and zeros.all(1).any(0).all()
    else:
        assert not whole_bands.any() and (bands.max(), spans.max()) == (9, 9)
        assert torch.equal(zeros.sum((1, 2)), bands * spans)


def test_as_many_spans_as_are_asked_for_are_drawn_at_most():
    options = {"p": 1.0, "n": 3, "full": True, "f_pc": 0.0, "t_pc": 0.0}
    zeros = Augmentations({"specaugment": options})(torch.ones(300, 40, 100), draws()) == 0
    assert set(zeros.all(1).sum(1).tolist()) == {1, 2, 3}


def test_moves_and_cuts_reach_both_ends_of_their_range():
    shingles = torch.arange(1.0, 5).expand(300, 6, 4)
    move = Augmentations({"pitchtranspose": {"p": 1.0, "r": [-1, 1]}})(shingles, draws()) == 0
    empty = {(bool(row[0].all()), bool(row[-1].all())) for row in move}
    assert empty == {(True, False), (False, False), (False, True)}
    stretch = {"p": 1.0, "r": [2, 2], "cut_mode": "random"}
    cut = Augmentations({"timestretch": stretch})(shingles, draws())
    assert len(set(map(tuple, cut[:, 0].tolist()))) == 5  # of 8 frames 4 begin at 0 to 4


def test_the_order_is_drawn():
    zeros, stretch = (
        {"p": 1.0, "f_pc": 0.0, "t_pc": 0.0},
        {"p": 1.0, "r": [2, 2], "cut_mode": "start"},
    )
    augment = Augmentations({"specaugment": zeros, "timestretch": stretch})
    results = [augment(torch.ones(1, 3, 8), draws(track))[0] for track in range(100)]
    # A frame of zeros that is stretched afterwards is mixed with its neighbours.
    stretched_first = sum(bool((result == 0).all(0).any()) for result in results)
    assert 30 < stretched_first < 70


def test_waveform_augmentations_are_skipped_in_one_line(caplog):
    with caplog.at_level(logging.INFO, logger="millrace"):
        chosen = conf.read(
            [f"augmentations.{name}.p=0.9" for name in ("length", "gain", "timestretch")]
        )
    assert len(Augmentations(chosen.section("augmentations")).chosen) == 3
    assert [record.message.split(": ")[1] for record in caplog.records] == ["length, gain"]
    assert Augmentations({"timestretch": {"p": 0.0}}).chosen == []
