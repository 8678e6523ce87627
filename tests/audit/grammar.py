"""Random loaders: correct ones, drawn by a seed from a grammar, and the same with one bug in
them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from tests.audit.mutants import contract, order, rows
from tests.audit.mutants.randomness import numpy_constant, seed_worker, torch_constant
from tests.audit.mutants.vision import MEAN, STD, Compose, Normalize, Resize, ToTensor, picture

ENTRIES = tuple(f"DP{number}" for number in range(1, 16))
GRAMMAR = {
    "stream": (False, False, True),
    "ranks": (1, 2),
    "workers": (0, 1, 2, 3),
    "batch": (2, 4),
    "content": ("numbers", "numbers", "ragged", "arrays", "files"),
    "noise": ("none", "torch", "numpy", "addressed"),
    "sampler": ("sequential", "random", "weighted", "distributed", "batches", "own"),
    "collate": ("default", "list", "dict", "named"),
    "normalised": (False, True),
    "persistent": (False, True),
    "drop_last": (False, True),
    "pin": (False, True),
    "val": (False, True),
}
NUMBERS, PICTURES, STACKED = ("numbers",), ("arrays", "files"), ("default", "dict", "named")
REPEATED = ("numpy generator", "python generator", "numpy seed", "torch seed")
# What a loader must have for the bug of an entry to be in it; all else stays as drawn.
NEEDS: dict[str, dict[str, tuple]] = {
    "DP1": {"workers": (2, 3), "persistent": (False,), "noise": REPEATED},
    "DP2": {
        "stream": (True,),
        "ranks": (2,),
        "workers": (2, 3),
        "shard": ("none", "worker", "rank"),
    },
    "DP3": {"stream": (True,), "ranks": (2,), "val": (False,), "uneven": (True,)},
    "DP4": {"content": ("ragged",), "collate": ("default",)},
    "DP5": {
        "pin": (True,),
        "collate": ("opaque", "opaque in dict", "pins nothing"),
        "content": NUMBERS,
    },
    "DP6": {"stream": (False,), "workers": (1, 2, 3), "broken": ("lambda", "forgets")},
    "DP7": {"stream": (False,), "broken": ("wraps", "long", "short"), "sampler": ("random", "own")},
    "DP8": {"stream": (False,), "content": NUMBERS, "drop_last": (False,), "rows": (25, 33)},
    "DP9": {"stream": (False,), "workers": (1, 2, 3), "rows": (500_000,), "content": NUMBERS},
    "DP10": {
        "content": PICTURES,
        "normalised": (True,),
        "broken": ("blue constants", "not at all"),
    },
    "DP11": {"content": ("files",), "broken": ("blue first",)},
    "DP12": {"content": PICTURES, "normalised": (False,), "broken": ("255", "twice")},
    "DP13": {"content": PICTURES, "broken": ("normalize first", "resize last")},
    "DP14": {"stream": (False,), "sampler": ("constant", "deaf", "not told")},
    "DP15": {"workers": (2, 3), "content": NUMBERS, "big": (True,), "collate": STACKED},
}
NEEDS["DP8"] |= {"collate": STACKED, "sampler": ("random", "own")}
NEEDS["DP9"] |= {"sampler": ("sequential", "batches")}
BGR = partial(np.flip, axis=2)
# Steps before and after those of a correct picture.
BROKEN: dict[str, tuple[list, list]] = {
    "blue first": ([BGR], []),
    "255": ([], [partial(torch.mul, other=255.0)]),
    "twice": ([], [partial(torch.mul, other=1 / 255)]),
    "normalize first": ([Normalize(MEAN, STD)], []),
    "resize last": ([], [Resize()]),
}


def spec(seed: int, mutation: str = "") -> dict:
    """What is drawn for a seed, with what the mutation needs."""
    rng = random.Random(seed)
    drawn = {name: rng.choice(values) for name, values in GRAMMAR.items()}
    drawn |= {"seed": seed, "shard": "both", "uneven": False, "broken": "", "big": False, "rows": 0}
    drawn |= {name: rng.choice(values) for name, values in NEEDS.get(mutation, {}).items()}
    if drawn["content"] == "ragged" and mutation != "DP4":
        drawn["collate"] = rng.choice(("padded", "list"))
    if drawn["ranks"] == 2 and drawn["sampler"] in ("sequential", "random", "weighted"):
        drawn["sampler"] = "distributed"
    # Whole batches for each rank and each worker of a stream; no last batch of one.
    whole = drawn["batch"] * 12 if drawn["stream"] else drawn["rows"] or 24 + rng.choice((0, 2, 6))
    drawn["rows"] = whole * drawn["ranks"]
    return drawn


def options(seed: int, mutation: str = "", folder: str = "") -> list[str]:
    """The command's options for this loader: all that the audit needs for a decision."""
    drawn = spec(seed, mutation)
    words = ["--loader", "tests.audit.grammar:draw", "--ranks", str(drawn["ranks"])]
    words += ["--arg", f"seed={seed}", "--arg", f"mutation={mutation}", "--arg", f"folder={folder}"]
    words += [
        "--loop",
        f"tests.audit.mutants.order:trains{'' if drawn['sampler'] == 'not told' else '_by_epoch'}",
    ]
    if drawn["content"] == "numbers" and drawn["collate"] in STACKED:
        words += ["--model", "tests.audit.grammar:Model"]
    if drawn["content"] in PICTURES and mutation != "DP12":
        words += ["--expect", "imagenet" if drawn["normalised"] else "0-1"]
    return words + (["--val-loader", "tests.audit.grammar:val"] if drawn["val"] else [])


def write(folder: Path) -> None:
    """The pictures of training and of evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(160):
        Image.fromarray(picture(index, size=8)).save(folder / f"{index:03d}.png")


class Content:
    """A sample by its index: numbers, or a picture, with noise; small enough to be pickled."""

    def __init__(self, drawn: dict, folder: str, first: int) -> None:
        self.content, self.noise, self.first = drawn["content"], drawn["noise"], first
        self.count = 4 << 20 * drawn["big"]
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        paths = sorted(Path(folder).glob("*.png")) if self.content == "files" else []
        # One more than rows: a length that is too short hides a picture that is there.
        start = first % 1000
        self.paths = paths[start : start + drawn["rows"] + (drawn["broken"] == "short")]
        generators = {
            "numpy generator": np.random.default_rng(0),
            "python generator": random.Random(0),
        }
        self.rng = generators.get(self.noise, self.noise.split()[0])
        self.transform = transform(drawn) if self.content in PICTURES else None
        self.cache: dict | None = {} if drawn["rows"] > 100_000 else None

    def __call__(self, index: int) -> dict:
        number = self.first + index
        if self.cache is not None:
            self.cache[index] = torch.full((1 << 16,), float(index))
        if self.transform:
            path = self.paths[index] if self.paths else None
            x = self.transform(np.array(Image.open(path)) if path else picture(number, size=8))
        else:
            x = rows.numbers(number, 3 + index % 4 if self.content == "ragged" else self.count)
        if self.noise == "addressed":
            x = x * (1 - np.random.default_rng((int(self.epoch), index)).random() / 10)
        elif self.noise != "none":
            x = x * (1 - rows.draw(self.rng) / 10)
        return {"x": x, "id": number}


def transform(drawn: dict) -> Callable:
    """The steps of a picture, with what is broken in them."""
    before, after = BROKEN.get(drawn["broken"], ([], []))
    mean, std = (MEAN[::-1], STD[::-1]) if drawn["broken"] == "blue constants" else (MEAN, STD)
    normalised = drawn["normalised"] and drawn["broken"] != "not at all"
    return Compose(*before, ToTensor(), *[Normalize(mean, std)] * normalised, *after)


class Table(contract.Items):
    def set_epoch(self, epoch: int) -> None:
        self.make.epoch.fill_(epoch)


class Forgets(Table):
    def __getstate__(self) -> dict:
        return {**self.__dict__, "items": self.items[::-1]}


class Stream(rows.Stream):
    """A stream shared out over ranks and workers; if it is uneven, rank 0 has twice as much as rank
    1."""

    def __init__(self, drawn: dict, content: Callable) -> None:
        super().__init__(drawn["rows"], "worker" if drawn["uneven"] else drawn["shard"], content)
        self.uneven = drawn["uneven"]

    def __iter__(self) -> Iterator[dict]:
        cut, mine = self.rows * 2 // 3, range(self.rows)
        if self.uneven and self.world == 2:
            mine = mine[cut:] if self.rank else mine[:cut]
        return map(self.make, mine[self.share()])

    def set_epoch(self, epoch: int) -> None:
        self.make.epoch.fill_(epoch)


def by_dict(samples: list) -> dict:
    return contract.as_pair(samples)._asdict()


COLLATES = {"default": default_collate, "list": contract.listed, "dict": by_dict}
COLLATES |= {
    "named": contract.as_pair,
    "padded": contract.padded,
    "opaque": contract.Batch,
    "pins nothing": contract.PinsNothing,
}
COLLATES |= {"opaque in dict": contract.inside_a_dict}
STARTS = {"numpy": seed_worker, "numpy seed": numpy_constant, "torch seed": torch_constant}


def draw(seed: int, mutation: str = "", folder: str = "") -> DataLoader:
    """The loader of a seed; with a mutation, the same with that entry's bug."""
    return loader(spec(seed, mutation), folder, 0)


def val(seed: int, mutation: str = "", folder: str = "") -> DataLoader:
    """Its evaluation: other rows, in order, without noise."""
    drawn = spec(seed, mutation)
    drawn |= {"noise": "none", "sampler": "in order", "drop_last": False, "stream": False}
    return loader({**drawn, "rows": 24 * drawn["ranks"]}, folder, 1_000_100)


def loader(drawn: dict, folder: str, first: int) -> DataLoader:
    length, batch, workers = drawn["rows"], drawn["batch"], drawn["workers"]
    content, collate = Content(drawn, folder, first), COLLATES[drawn["collate"]]
    settings = {"num_workers": workers, "pin_memory": drawn["pin"], "drop_last": drawn["drop_last"]}
    settings |= {"persistent_workers": drawn["persistent"] and workers > 0}
    settings["worker_init_fn"] = STARTS.get(drawn["noise"])
    settings["collate_fn"] = (
        (lambda samples: collate(samples)) if drawn["broken"] == "lambda" else collate
    )
    if drawn["stream"]:
        return DataLoader(Stream(drawn, content), batch, **settings)
    broken = drawn["broken"]
    items = length + {"long": -3, "short": 1}.get(broken, 0)
    data = (Forgets if broken == "forgets" else Table)(items, length, broken == "wraps", content)
    if drawn["sampler"] == "batches":
        del settings["drop_last"]
        return DataLoader(data, batch_sampler=order.Shuffled(length, batch), **settings)
    sampler = {
        "sequential": lambda: None,
        "random": lambda: RandomSampler(data),
        "weighted": lambda: WeightedRandomSampler([1.0 + row % 3 for row in range(length)], length),
        "own": lambda: order.Shuffled(length),
        "deaf": lambda: order.Shuffled(length, deaf=True),
        "constant": lambda: order.Untold(length),
        "in order": lambda: DistributedSampler(data, shuffle=False),
    }.get(drawn["sampler"], lambda: DistributedSampler(data))()
    return DataLoader(data, batch, sampler=sampler, **settings)


class Model(nn.Module):
    """Batch norm over four numbers; takes a batch of any of these loaders, or its tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, batch: object) -> torch.Tensor:
        return self.norm(batch["x"] if isinstance(batch, dict) else getattr(batch, "x", batch))
