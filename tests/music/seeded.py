"""Weights, features and tracks that are the same everywhere: drawn for their names, uniformly."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from millrace.common.training import seeding
from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGS

BATCH, SHINGLES = 6, 2
CLIQUES, IDS = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 2, 3, 4, 4])
REDUCTIONS = ("min", "bpwr-5")
FIXTURE = Path(__file__).parent / "models/upstream.json"


@functools.cache
def expected() -> dict[str, Any]:
    """What sony/clews makes of these inputs; upstream.py wrote it."""
    return json.loads(FIXTURE.read_text())


def uniform(name: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    draws = seeding.generator(0, name).random(shape)
    return torch.from_numpy(low + (high - low) * draws).float()


def noise() -> torch.Generator:
    """What the front end's noise is drawn from."""
    return torch.Generator().manual_seed(5)


def set_weights(model: nn.Module) -> None:
    """Weights at which no part of the model is without effect: new ones have residual gains of
    0."""
    state = {}
    for name, value in model.state_dict().items():
        if value.ndim > 1 and value.numel() > 1:
            limit = math.sqrt(3 / value[0].numel())
            state[name] = uniform(name, *value.shape, low=-limit, high=limit)
        elif name.endswith(("bias", "mean")):
            state[name] = uniform(name, *value.shape, low=-0.2, high=0.2)
        elif value.is_floating_point():
            state[name] = uniform(name, *value.shape, low=0.5, high=1.5)
    model.load_state_dict({**model.state_dict(), **state})


def tiny() -> Clews:
    model = Clews(CONFIGS["clews-tiny"])
    set_weights(model)
    return model


def features(frames: int = 200) -> Tensor:
    """(6, 2, 84, frames), some below 0, one silent part, loud and quiet tracks."""
    values = uniform("features", BATCH, SHINGLES, 84, frames, low=-0.1, high=1.0) ** 3
    values[1, 0, :40] = 0
    return values * uniform("loudness", BATCH, SHINGLES, 1, 1, low=0.01, high=20)


def distances() -> tuple[Tensor, Tensor, Tensor]:
    """Of shingles: (5, 6, 4, 7), with what is filling in queries (5, 4) and candidates (6, 7)."""
    filled = uniform("filled queries", 5, 4) < 0.3, uniform("filled candidates", 6, 7) < 0.3
    filled[0][:, 0], filled[1][:, 0] = False, False
    return uniform("distances", 5, 6, 4, 7), *filled


def tracks() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(cliques, ids, embeddings, filled) of 200 tracks of 50 cliques, 12 shingles at most, 16
    dimensions."""
    cliques = torch.arange(200) // 4
    middle = uniform("cliques", 50, 1, 16, low=-1)[cliques]
    embeddings = middle + 3 * uniform("tracks", 200, 12, 16, low=-1)
    lengths = 3 + (uniform("lengths", 200) * 10).long()
    filled = torch.arange(12) >= lengths[:, None]
    ids = torch.arange(200)
    ids[1] = 0  # one recording under two names
    return cliques, ids, embeddings.masked_fill(filled[..., None], 0), filled


def direction(name: str, gradient: Tensor) -> list[float]:
    """Two numbers that a gradient as a whole has to match: its norm, and its product with random
    signs."""
    signs = uniform(f"signs of {name}", *gradient.shape, low=-1).sign()
    return [float(gradient.norm()), float((gradient * signs).sum())]
