"""CLEWS (Serrà et al. 2025): the layers of the network, its noise and pooling, and an embedding for
every shingle of a track.

Attributes are named as in sony/clews, so that the parameters have the names of published
checkpoints.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millrace.common.errors import MillraceError
from millrace.music.models.config import ClewsConfig

_EPSILON = 1e-6  # of noise, scaling and pooling
_GEM_POWER = 3.0  # of a new model


class ScaledMagnitudes(nn.Module):
    """Linear magnitudes to powers of them, each shingle scaled to 0..1, with a trace of noise.

    The noise keeps silent frames from being exactly equal. It is drawn in evaluation too; a shingle
    without any magnitude becomes noise scaled up to 0..1.
    """

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power
        self.gain = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, magnitudes: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Magnitudes (N, 1, C, T); without a generator, noise comes from torch's own."""
        scaled = _scaled(magnitudes.clamp(min=0).pow(self.power))
        noise = torch.rand(
            scaled.shape, generator=generator, dtype=scaled.dtype, device=scaled.device
        )
        return self.gain * _scaled(scaled + _EPSILON * noise) + self.bias


def _scaled(shingles: Tensor) -> Tensor:
    shingles = shingles - shingles.amin((2, 3), keepdim=True)
    return shingles / (shingles.amax((2, 3), keepdim=True) + _EPSILON)


class InstanceBatchNorm2d(nn.Module):
    """IBN (Pan et al. 2018): the first half of the channels normalised by batch, the second by
    instance."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels // 2)
        self.inst = nn.InstanceNorm2d(channels // 2, affine=True)

    def forward(self, hidden: Tensor) -> Tensor:
        by_batch, by_instance = hidden.chunk(2, dim=1)
        return torch.cat([self.bn(by_batch), self.inst(by_instance)], dim=1)


class IbnBlock(nn.Module):
    """A residual block that normalises first. Its `gain` begins at 0, so a new block passes its
    skip only."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        middle = max(1, max(channels_in, channels_out) // 2)
        middle += middle % 2
        self.convs = nn.Sequential(
            InstanceBatchNorm2d(channels_in),
            nn.ReLU(inplace=True),
            _convolution(channels_in, middle, stride),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            _convolution(middle, channels_out),
        )
        self.skip: nn.Module = nn.Identity()
        if channels_in != channels_out or stride != 1:
            convolution = _convolution(channels_in, channels_out, stride)
            self.skip = nn.Sequential(
                nn.BatchNorm2d(channels_in), nn.ReLU(inplace=True), convolution
            )
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.gain * self.convs(hidden) + self.skip(hidden)


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Module:
    """3x3, named `conv` within a module of its own."""
    convolution = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(OrderedDict(conv=convolution))


class GeMPool(nn.Module):
    """Generalised mean over bins and frames; its power (1 + softplus(p)), above 1, is learned."""

    def __init__(self) -> None:
        super().__init__()
        begin = math.log(math.expm1(_GEM_POWER - 1))
        self.p = nn.Parameter(torch.full((1, 1, 1), begin))

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C)."""
        power = 1 + F.softplus(self.p)
        powers = hidden.flatten(2).clamp(min=_EPSILON).pow(power)
        return powers.mean(-1).pow(1 / power.squeeze(-1))


class Clews(nn.Module):
    """CQT magnitudes -> strided convolutions -> IBN residual blocks -> GeM -> batch norm and
    projection.

    Takes what the features contract promises: linear magnitudes of `config.bins` bins, pooled to
    frames of `config.frame_seconds`. It has no CQT of its own:

        model = Clews(CONFIGS["clews-tiny"])
        embeddings = model(torch.rand(4, 8, 84, 200))  # (4, 8, 64)
    """

    def __init__(self, config: ClewsConfig) -> None:
        super().__init__()
        self.config = config
        first, channels = config.frontend_channels
        self.frontend = nn.Sequential(
            ScaledMagnitudes(config.frontend_cqtpow),
            nn.Conv2d(1, first, (12, 3), stride=(1, 2), bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, channels, (12, 3), stride=2, bias=False),
        )
        self.backbone = nn.Sequential()
        stages = zip(
            config.backbone_blocks, config.backbone_channels, config.backbone_down, strict=True
        )
        for blocks, width, stride in stages:
            for number in range(blocks):
                self.backbone.append(IbnBlock(channels, width, 1 if number else stride))
                channels = width
        self.pool = GeMPool()
        self.proj = nn.Sequential(
            nn.BatchNorm1d(channels), nn.Linear(channels, config.zdim, bias=False)
        )

    def forward(self, shingles: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Embeddings (B, S, zdim) of shingles (B, S, bins, frames), which may be longer than in
        training.

        In evaluation an embedding depends on its shingle and the noise alone: with a generator
        seeded for each track it is the same in any batch.
        """
        bins = self.config.bins
        frames = self.config.shingle_frames
        shape = tuple(shingles.shape)
        if len(shape) != 4 or shape[2] != bins or shape[3] < frames:
            problem = f"the model takes shingles (B, S, {bins}, {frames} or more), not {shape}"
            remedy = (
                "Is the feature of another contract, or transposed? Shorter tracks are repeated"
            )
            raise MillraceError(problem, remedy=remedy)
        scale, *convolutions = self.frontend
        hidden = scale(shingles.flatten(0, 1).unsqueeze(1), generator)
        for layer in (*convolutions, self.backbone, self.pool, self.proj):
            hidden = layer(hidden)
        return hidden.unflatten(0, shape[:2])

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())
