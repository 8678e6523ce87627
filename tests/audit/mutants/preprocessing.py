"""DP10 to DP13: pictures between their file and the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from tests.audit.mutants import both, bug, twin
from tests.audit.mutants.rows import Rows, train
from tests.audit.mutants.vision import (
    MEAN,
    STD,
    Compose,
    Normalize,
    Resize,
    ToDtype,
    ToImage,
    ToTensor,
    picture,
)
from tests.audit.pictures import Folder, tables


class Pictures:
    """(picture, label) of arrays of 8 bits, or of PIL's: grey to 65535 (I), grey floats to 255
    (F)."""

    def __init__(
        self, transform: Callable | None, pixels: dict | None = None, mode: str = ""
    ) -> None:
        self.transform, self.pixels, self.mode = transform, pixels or {}, mode

    def __call__(self, index: int) -> tuple:
        x = picture(index, **self.pixels)
        if self.mode:
            wide = {"RGB": x, "I": x[..., 0] * np.int32(257), "F": x[..., 0].astype(np.float32)}
            x = Image.fromarray(wide[self.mode])
        return self.transform(x), index % 10


def pictures(*steps: Callable, mode: str = "", **pixels: int) -> DataLoader:
    return train(Rows(32, Pictures(Compose(*steps), pixels, mode)))


def of_files(folder: str, kind: str, swaps: int) -> DataLoader:
    return train(Folder(f"{folder}/{kind}", ToTensor(), swaps))


def with_age(index: int) -> dict:
    """The target is a float of 0 to 255, and no picture."""
    return {"image": ToTensor()(picture(index)), "age": torch.tensor([float(index * 8)])}


def with_grid(index: int) -> torch.Tensor:
    """A grid of 4 x 4 whole numbers, as MONAI's examples have."""
    return torch.arange(16.0).view(1, 4, 4) + index


IMAGENET, BLUE_FIRST = Normalize(MEAN, STD), Normalize(MEAN[::-1], STD[::-1])
SCALE = ToDtype(torch.float32, scale=True)
CASES = {
    "DP10": [
        bug("0-1 for imagenet", lambda: pictures(ToTensor()), "--expect imagenet"),
        bug("normalised for 0-1", lambda: pictures(ToTensor(), IMAGENET), "--expect 0-1"),
        bug("constants blue first", lambda: pictures(ToTensor(), BLUE_FIRST), "--expect imagenet"),
        twin(
            "normalised for imagenet", lambda: pictures(ToTensor(), IMAGENET), "--expect imagenet"
        ),
        twin(
            "dark for imagenet",
            lambda: pictures(ToTensor(), IMAGENET, high=50),
            "--expect imagenet",
        ),
        bug("constants of both", **both(tables("all"))),
        bug("constants of val", **both(tables("val"))),
        twin("constants of train", **both(tables("train"))),
    ],
    "DP11": [
        bug("png blue first", lambda folder: of_files(folder, "png", swaps=1)),
        bug("ppm blue first", lambda folder: of_files(folder, "ppm", swaps=1)),
        twin("png red first", lambda folder: of_files(folder, "png", swaps=0)),
        twin("swapped and swapped back", lambda folder: of_files(folder, "ppm", swaps=2)),
    ],
    "DP12": [
        bug("floats to 255", lambda: pictures(np.float32, ToTensor())),
        bug("sixteen bits", lambda: pictures(ToTensor(), ToDtype(torch.float32), mode="I")),
        bug("grey floats of PIL", lambda: pictures(ToTensor(), mode="F")),
        bug("scaled twice", lambda: pictures(ToImage(), SCALE, SCALE)),
        twin("normalised", lambda: pictures(ToTensor(), IMAGENET)),
        twin("dark pictures", lambda: pictures(ToTensor(), high=20)),
        twin("eight bits that the model scales", lambda: pictures(ToImage())),
        twin(
            "whole numbers that are too few for a picture",
            lambda: train(Rows(64, with_grid), batch_size=64),
        ),
        twin("a target to 255", lambda: train(Rows(32, with_age))),
    ],
    "DP13": [
        bug("normalize, then to tensor", lambda: pictures(IMAGENET, ToTensor(), mode="RGB")),
        bug("to tensor, then resize", lambda: pictures(ToTensor(), Resize(), mode="RGB")),
        bug("three means for grey pictures", lambda: pictures(ToTensor(), IMAGENET, channels=1)),
        twin("the usual order", lambda: pictures(Resize(), ToTensor(), IMAGENET, mode="RGB")),
        twin("names of version 2", lambda: pictures(ToImage(), SCALE, IMAGENET)),
        twin(
            "one mean for grey",
            lambda: pictures(ToTensor(), Normalize((0.5,), (0.25,)), channels=1),
        ),
    ],
}
