"""Runs sony/clews on the seeded inputs, prints how far ours is from it, and writes
models/upstream.json.

Not needed to run the tests. With a clone of https://github.com/sony/clews, and einops installed:

    python -m tests.music.upstream CLONE [--full]

--full also compares the model at its published size (8 GB of memory, a minute).
"""

from __future__ import annotations

import functools
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGS, ClewsConfig, flat, read_yaml
from millrace.music.training.augment import Augmentations
from millrace.music.training.distances import reduced
from millrace.music.training.loss import contrastive_loss
from millrace.music.training.metrics import Tracks, retrieve
from tests.music import seeded


class Section(dict):
    """A section of a configuration with its keys as attributes."""

    __getattr__ = dict.__getitem__


def resize(size: tuple[int, int]) -> Any:
    """What torchvision's Resize does to tensors."""
    return functools.partial(F.interpolate, size=size, mode="bilinear", antialias=True)


def import_upstream(clone: Path) -> types.SimpleNamespace:
    """Upstream's modules, without those of its waveform path."""
    for name in ("nnAudio", "torchaudio", "torchvision", "julius"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["nnAudio"].features = types.SimpleNamespace(
        CQT1992v2=lambda **_: torch.nn.Identity()
    )
    sys.modules["torchvision"].transforms = types.SimpleNamespace(Resize=resize)
    sys.path.insert(0, str(clone))
    from lib import augmentations, eval, tensor_ops
    from models import clews

    return types.SimpleNamespace(
        model=clews.Model, augment=augmentations.Augment, eval=eval, ops=tensor_ops
    )


def section(clone: Path, name: str, ours: ClewsConfig) -> Section:
    """Upstream's `model` section for a configuration of ours."""
    model = read_yaml(clone / f"config/{name}-clews.yaml")["model"]
    model["frontend"]["channels"] = list(ours.frontend_channels)
    for key in ("blocks", "channels", "down"):
        model["backbone"][key] = list(getattr(ours, f"backbone_{key}"))
    return json.loads(json.dumps({**model, "zdim": ours.zdim}), object_hook=Section)


def differ(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    print(f"{name:40s} {float((ours.double() - theirs.double()).detach().abs().max()):.2e}")


def rounded(values: torch.Tensor) -> list:
    return [float(f"{value:.9g}") for value in values.flatten().tolist()]


def compare_model(theirs: torch.nn.Module, ours: Clews, size: str) -> dict[str, Any]:
    """Embeddings, loss and gradients of one batch, with the same weights."""
    seeded.set_weights(ours)
    theirs.load_state_dict(ours.state_dict())
    result: dict[str, Any] = {}
    for mode in ("eval", "train"):
        getattr(theirs, mode)()
        getattr(ours, mode)()
        torch.manual_seed(seeded.noise().initial_seed())
        embedded, _ = theirs.embed(seeded.features())
        mine = ours(seeded.features(), seeded.noise())
        differ(f"{size}: embeddings, {mode}", mine, embedded)
        result[mode] = rounded(embedded)
    loss, values = theirs.loss(seeded.CLIQUES, seeded.IDS, embedded)
    my_loss, my_values = contrastive_loss(mine, seeded.CLIQUES, seeded.IDS, ours.config)
    for name, value in values.items():
        differ(f"{size}: {name}", my_values[name], value)
    result["loss"] = {name: float(value) for name, value in values.items()}
    loss.backward()
    my_loss.backward()
    gradients, mine = ({n: p.grad for n, p in model.named_parameters()} for model in (theirs, ours))
    worst = max(gradients, key=lambda name: float((mine[name] - gradients[name]).abs().max()))
    differ(f"{size}: gradients, worst: {worst}", mine[worst], gradients[worst])
    result["gradients"] = {name: seeded.direction(name, value) for name, value in gradients.items()}
    return result


def compare_reductions(ops: Any) -> dict[str, list]:
    values, queries, candidates = seeded.distances()
    masks = {"all": torch.zeros_like(values, dtype=torch.bool)}
    masks["filled"] = (queries[:, None, :, None] | candidates[None, :, None]).expand_as(values)
    result = {}
    for strategy in seeded.REDUCTIONS:
        for name, mask in masks.items():
            theirs = ops.distance_tensor_redux(values, strategy, mask=mask)
            differ(
                f"{strategy}, {name}",
                reduced(values.masked_fill(mask, torch.inf), strategy),
                theirs,
            )
            result[f"{strategy} {name}"] = rounded(theirs)
    return result


def compare_retrieval(theirs: torch.nn.Module, evaluation: Any) -> dict[str, Any]:
    *arrays, filled = seeded.tracks()
    mine, result = Tracks(*arrays, filled), {}
    for strategy in ("bpwr-5", "bpwr-10", "min"):
        figures = evaluation.compute(theirs, *arrays, *arrays, filled, filled, strategy)
        figures = dict(zip(("MAP", "MR1", "ARP"), figures, strict=True))
        figures["COMP"] = (figures["ARP"] * (1 - figures["MAP"])) ** 0.5
        my_figures = retrieve(mine, mine, strategy)
        for name, value in figures.items():
            differ(f"{strategy}: {name}, worst query", my_figures[name], value)
            differ(f"{strategy}: mean {name}", my_figures[name].mean(), value.mean())
        result[strategy] = {name: float(value.double().mean()) for name, value in figures.items()}
    return result


def compare_augmentations(upstream: Any) -> dict[str, list]:
    shingles, result = seeded.features(30)[:1, :, :12], {}
    stretch = {"p": 1.0, "pad_mode": "repeat"}
    for name, options in {
        "timestretch": stretch | {"r": [0.7, 0.7], "cut_mode": "start"},
        "timestretch, longer": stretch | {"r": [1.4, 1.4], "cut_mode": "end"},
        "timestretch, zeros": stretch | {"r": [0.4, 0.4], "cut_mode": "start", "pad_mode": "zeros"},
        "pitchtranspose": {"p": 1.0, "r": [3, 3]},
        "pitchtranspose, down": {"p": 1.0, "r": [-3, -3]},
    }.items():
        section = {(kind := name.partition(",")[0]): options}
        theirs = upstream(Section({kind: Section(options)})).cqgram(shingles)
        mine = Augmentations(section)(shingles[0], np.random.default_rng(0))
        differ(name, mine, theirs[0])
        result[name] = [section, rounded(theirs)]
    return result


def main(clone: Path, full: bool) -> None:
    torch.set_num_threads(1)
    upstream = import_upstream(clone)
    fixture: dict[str, Any] = {"clews": "https://github.com/sony/clews", "shapes": {}, "counts": {}}
    for name in ("shs", "dvi"):
        config = ClewsConfig.from_keys(
            flat({"model": read_yaml(clone / f"config/{name}-clews.yaml")["model"]})
        )
        assert config == CONFIGS[f"clews-{name}"]
        with torch.device("meta"):
            models = upstream.model(section(clone, name, config)), Clews(config)
        fixture["shapes"], mine = (
            {n: list(v.shape) for n, v in m.state_dict().items()} for m in models
        )
        assert list(fixture["shapes"].items()) == list(mine.items())
        fixture["counts"][f"clews-{name}"] = sum(
            parameter.numel() for parameter in models[0].parameters()
        )
    print(f"names and shapes are equal; parameters: {fixture['counts']}")

    tiny = CONFIGS["clews-tiny"]
    theirs = upstream.model(section(clone, "dvi", tiny))
    fixture |= compare_model(theirs, Clews(tiny), "tiny")
    fixture["reductions"] = compare_reductions(upstream.ops)
    fixture["retrieval"] = compare_retrieval(theirs, upstream.eval)
    fixture["augmentations"] = compare_augmentations(upstream.augment)
    seeded.FIXTURE.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(f"{seeded.FIXTURE}: {seeded.FIXTURE.stat().st_size} bytes")
    if full:
        config = CONFIGS["clews-dvi"]
        compare_model(upstream.model(section(clone, "dvi", config)), Clews(config), "full")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--full" in sys.argv)
