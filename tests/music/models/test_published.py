"""Published checkpoints: loaded strictly, and nothing in them is run."""

from __future__ import annotations

import os
import sys
import types
from collections import defaultdict
from typing import Any

import pytest
import torch

from millrace.music.models.config import read_yaml
from millrace.music.models.published import load_published
from tests.music import seeded
from tests.refusals import refused

CONFIGURATION = """
model:
  name: "clews"
  frontend: {channels: [8, 16]}
  backbone: {blocks: [1, 1, 1, 1], channels: [16, 32, 64, 64]}
  zdim: 64
  loss: {gamma: 5, epsilon: 1e-6}
"""


class Calls:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.system, ("true",)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder as Fabric and OmegaConf leave it: the configuration is in the checkpoint as an
    object."""
    module = types.ModuleType("omegaconf.dictconfig")
    module.DictConfig = type("DictConfig", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, "omegaconf.dictconfig", module)
    (tmp_path / "configuration.yaml").write_text(CONFIGURATION)
    weights = seeded.tiny().state_dict() | {"cqt.0.cqt_kernels_real": torch.zeros(84, 1, 16)}
    conf = module.DictConfig()
    conf.content = {"a": (module.DictConfig(), Any, dict), "cache": defaultdict(dict)}
    state = {"model": weights, "optim": {"state": {}}, "conf": conf, "epoch": 3}

    def save(**changes: object) -> str:
        torch.save(state | changes, tmp_path / "checkpoint_best.ckpt")
        monkeypatch.delitem(sys.modules, "omegaconf.dictconfig")
        return str(tmp_path / "checkpoint_best.ckpt")

    return save


def test_a_checkpoint_loads_strictly_without_omegaconf(run):
    model = load_published(run())
    assert not model.training
    for name, value in seeded.tiny().state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.parametrize(
    "changed, problem",
    [
        ({"pool.p": None}, 'Missing key.*"pool.p"'),
        ({"other": torch.ones(1)}, 'Unexpected key.*"other"'),
        ({"proj.1.weight": torch.ones(2048, 64)}, "size mismatch for proj.1.weight"),
        ({"other": Calls()}, r"would run or build posix\.system"),
    ],
)
def test_what_else_a_checkpoint_holds_is_refused_by_name(run, changed, problem):
    weights = {n: v for n, v in (seeded.tiny().state_dict() | changed).items() if v is not None}
    with refused(problem):
        load_published(run(model=weights))


@pytest.mark.parametrize("cut", [0, 100, -10])
def test_a_damaged_checkpoint_is_refused(run, cut):
    path = run()
    with open(path, "r+b") as file:
        file.truncate(cut % os.path.getsize(path))
    with refused("this is no checkpoint"):
        load_published(path)


def test_files_that_are_missing_are_named(tmp_path):
    with refused(r"configuration\.yaml: cannot be read"):
        load_published(tmp_path / "checkpoint_best.ckpt")
    (tmp_path / "configuration.yaml").write_text(CONFIGURATION)
    with refused(r"best\.ckpt: cannot be read"):
        load_published(tmp_path / "checkpoint_best.ckpt")
    (tmp_path / "configuration.yaml").write_text("model:\n  zdim: no\n")
    with refused(r"configuration\.yaml: model\.zdim is False"):
        load_published(tmp_path / "checkpoint_best.ckpt")


def test_numbers_with_exponents_are_numbers(tmp_path):
    (tmp_path / "conf.yaml").write_text(
        "lr: 2e-4   # as published\nmore: [-2E+3, 1.5e3, 1e, e6, 12, 2e-4x]\n"
    )
    content = read_yaml(tmp_path / "conf.yaml")
    assert content == {"lr": 2e-4, "more": [-2e3, 1.5e3, "1e", "e6", 12, "2e-4x"]}
