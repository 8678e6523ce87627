"""Augmentations of pooled CQT frames: SpecAugment, time stretch, transposition; a track's shingles
apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from millrace.music.training.conf import AUGMENTATIONS


class Augmentations:
    """What a configuration's `augmentations` asks for; conf.read has checked it.

        augment = Augmentations({"pitchtranspose": {"p": 0.1, "r": [-12, 12]}})
        shingles = augment(shingles, seeding.generator(seed, "augment", epoch, track_id))

    Each shingle is drawn for itself, as published: two shingles of a track may be transposed
    differently.
    """

    def __init__(self, section: Mapping[str, Mapping[str, Any]]) -> None:
        self.chosen = []
        for name in section:
            options = {**AUGMENTATIONS[name], **section[name]}
            p = options.pop("p")
            if p:
                self.chosen.append((name, p, options))

    def __call__(self, shingles: Tensor, draws: np.random.Generator) -> Tensor:
        """The shingles (S, C, T) of a track, augmented in an order that is drawn for the track."""
        shingles = shingles.clone()
        for number in draws.permutation(len(self.chosen)):
            name, p, options = self.chosen[number]
            for shingle in shingles:
                if draws.random() < p:
                    shingle.copy_(_KINDS[name](shingle, draws, **options))
        return shingles


def _specaugment(
    shingle: Tensor, draws: np.random.Generator, n: int, full: bool, f_pc: float, t_pc: float
) -> Tensor:
    """Zeros in `n` or fewer bands of up to `f_pc` of the bins and spans of up to `t_pc` of the
    frames.

    full: bands and spans as a whole; otherwise only where they cross.
    """
    shingle = shingle.clone()
    for _ in range(draws.integers(1, n + 1)):
        slices = []
        for size, share in zip(shingle.shape, (f_pc, t_pc), strict=True):
            width = max(1, int(draws.random() * share * size))
            start = int(draws.integers(0, size - width + 1))
            slices.append(slice(start, start + width))
        band, span = slices
        if full:
            shingle[band] = 0
            shingle[:, span] = 0
        else:
            shingle[band, span] = 0
    return shingle


def _timestretch(
    shingle: Tensor, draws: np.random.Generator, r: list[float], pad_mode: str, cut_mode: str
) -> Tensor:
    """As many frames as before, `r` times as slow: interpolated, then filled up or cut (filling
    too)."""
    bins, frames = shingle.shape
    fastest, slowest = r
    length = max(1, int(frames * draws.uniform(fastest, slowest)))
    if length != frames:
        shingle = F.interpolate(
            shingle[None, None], size=(bins, length), mode="bilinear", antialias=True
        )[0, 0]
    if length < frames:
        shingle = shingle.repeat(1, -(-frames // length))
        if pad_mode == "zeros":
            shingle[:, length:] = 0
    spare = shingle.shape[1] - frames
    start = {"start": 0, "end": spare}.get(cut_mode)
    if start is None:
        start = int(draws.integers(0, spare + 1))
    return shingle[:, start : start + frames]


def _pitchtranspose(shingle: Tensor, draws: np.random.Generator, r: list[int]) -> Tensor:
    """Moved by a number of bins between those of `r`, both included; zeros follow."""
    shift = int(draws.integers(r[0], r[1] + 1))
    moved = shingle.roll(shift, 0)
    moved[slice(shift) if shift >= 0 else slice(shift, None)] = 0
    return moved


_KINDS: dict[str, Callable[..., Tensor]] = {
    "specaugment": _specaugment,
    "timestretch": _timestretch,
    "pitchtranspose": _pitchtranspose,
}
