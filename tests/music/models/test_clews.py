"""CLEWS: as published, in names, shapes and numbers; its configurations."""

from __future__ import annotations

import pytest
import torch

from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGS, ClewsConfig, flat
from tests.music import seeded
from tests.refusals import refused


@pytest.mark.parametrize("name, zdim", [("clews-dvi", 1024), ("clews-shs", 2048)])
def test_parameters_are_named_and_shaped_as_upstream(name, zdim):
    with torch.device("meta"):
        model = Clews(ClewsConfig(zdim=zdim))
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    projection = {"proj.1.weight": [zdim, 2048]}
    assert shapes == seeded.expected()["shapes"] | projection
    assert model.parameter_count == seeded.expected()["counts"][name]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_embeddings_are_those_of_upstream(mode):
    model = getattr(seeded.tiny(), mode)()
    with torch.no_grad():
        embeddings = model(seeded.features(), seeded.noise())
    expected = torch.tensor(seeded.expected()[mode]).reshape(6, 2, 64)
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=0)


def test_a_track_embeds_the_same_in_any_batch_and_at_any_loudness():
    model, features = seeded.tiny().eval(), seeded.features()
    with torch.no_grad():
        alone = model(features[2:3], seeded.noise())
        louder = model(100 * features[2:3], seeded.noise())
        beside = model(torch.cat([features[2:3], features[:2]]), seeded.noise())[:1]
    torch.testing.assert_close(alone, beside, atol=1e-4, rtol=0)
    torch.testing.assert_close(alone, louder, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(2, 84, 200), (1, 2, 200, 84), (1, 2, 72, 200), (1, 2, 84, 199)])
def test_features_of_another_form_are_refused(shape):
    with refused("takes shingles"):
        seeded.tiny()(torch.rand(shape))
    assert seeded.tiny().eval()(torch.rand(1, 1, 84, 260)).shape == (1, 1, 64)


def test_the_published_contract():
    config = ClewsConfig()
    assert (config.bins, config.shingle_frames) == (84, 200)
    assert config.frame_seconds == pytest.approx(0.1)
    section = {
        "name": "clews",
        "shingling": {"len": 20, "hop": 20},
        "backbone": {"blocks": [3, 4, 6, 3]},
        "zdim": 2048,
        "loss": {"redux": {"pos": "bpwr-5", "neg": "min"}, "gamma": 5},
    }
    assert ClewsConfig.from_keys(flat({"model": section})) == ClewsConfig(zdim=2048)


def test_a_new_model_passes_its_skips_and_takes_magnitudes_as_they_are():
    """As published; its pool has the power 3."""
    model = Clews(CONFIGS["clews-tiny"])
    hidden = torch.rand(2, 16, 4, 4)
    torch.testing.assert_close(model.backbone[0](hidden), model.backbone[0].skip(hidden))
    scale = model.frontend[0]
    assert (scale.gain.item(), scale.bias.item()) == (1, 0)
    # Below 0 no root would be a number.
    assert scale(torch.rand(2, 1, 84, 40) - 0.5).isfinite().all()
    cubes = hidden.flatten(2).pow(3).mean(-1)
    torch.testing.assert_close(model.pool(hidden), cubes.pow(1 / 3))


@pytest.mark.parametrize("length, frames", [(20.0, 200), (2.3, 23), (0.7, 7)])
def test_a_shingle_has_the_frames_nearest_to_its_length(length, frames):
    section = {"shingling": {"len": length, "hop": 0.2}}
    assert ClewsConfig.from_keys(flat({"model": section})).shingle_frames == frames


def test_only_what_is_cut_into_halves_has_an_even_number_of_channels():
    section = {"name": "clews-tiny", "frontend": {"channels": [7, 16]}}
    config = ClewsConfig.from_keys(flat({"model": section}))
    assert Clews(config)(torch.rand(1, 2, 84, 200)).shape == (1, 2, 64)


@pytest.mark.parametrize(
    "section, problem",
    [
        ({"shingling": {"len": 0.6}}, "too short in frames of 0.1 s. Give 7 frames or more"),
        ({"frontend": {"channels": [8]}}, "is no network. Give two channels in front"),
        ({"frontend": {"channels": [8, 15]}}, "channels that are even"),
        ({"zdim": True}, "model.zdim is True"),
        ({"name": "cqtnet"}, "'cqtnet'. Set it to clews or clews-tiny"),
        ({"cqt": {"hop": 1}}, "no key model.cqt.hop"),
        ({"zdim": "1024"}, "model.zdim is '1024'"),
        ({"zdim": 0}, "zdim is 0"),
        ({"backbone": {"blocks": [], "channels": [], "down": []}}, r"backbone.blocks is \[\]"),
        ({"backbone": {"down": [1, 2, 2]}}, "is no network"),
        ({"backbone": {"channels": [256, 512, 1023, 2048]}}, "channels that are even"),
        ("clews", "there is no key model"),
    ],
)
def test_a_model_section_with_a_mistake_is_refused(section, problem):
    with refused(problem):
        ClewsConfig.from_keys(flat({"model": section}))
