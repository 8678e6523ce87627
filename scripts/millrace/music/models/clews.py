"""CLEWS (Serrà et al. 2025): an embedding for every shingle of a track."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millrace.common.errors import MillraceError
from millrace.music.models.config import ClewsConfig
from millrace.music.models.layers import GeMPool, IbnBlock, ScaledMagnitudes


class Clews(nn.Module):
    """CQT magnitudes -> strided convolutions -> IBN residual blocks -> GeM -> batch norm and projection.

    Takes what the features contract promises: linear magnitudes of `config.bins` bins, pooled to frames of
    `config.frame_seconds`. It has no CQT of its own. Parameters are named and shaped as in sony/clews:

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
        stages = zip(config.backbone_blocks, config.backbone_channels, config.backbone_down, strict=True)
        for blocks, width, stride in stages:
            for number in range(blocks):
                self.backbone.append(IbnBlock(channels, width, 1 if number else stride))
                channels = width
        self.pool = GeMPool()
        self.proj = nn.Sequential(nn.BatchNorm1d(channels), nn.Linear(channels, config.zdim, bias=False))

    def forward(self, shingles: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Embeddings (B, S, zdim) of shingles (B, S, bins, frames), which may be longer than in training.

        In evaluation an embedding depends on its shingle and the noise alone: with a generator seeded for
        each track it is the same in any batch.
        """
        bins, frames = self.config.bins, self.config.shingle_frames
        if shingles.ndim != 4 or shingles.shape[2] != bins or shingles.shape[3] < frames:
            problem = (
                f"the model takes shingles (B, S, {bins}, {frames} or more), not {tuple(shingles.shape)}"
            )
            remedy = "Is the feature of another contract, or transposed? Shorter tracks are repeated"
            raise MillraceError(problem, remedy=remedy)
        scale, *convolutions = self.frontend
        hidden = scale(shingles.flatten(0, 1).unsqueeze(1), generator)
        for layer in (*convolutions, self.backbone, self.pool, self.proj):
            hidden = layer(hidden)
        return hidden.unflatten(0, shingles.shape[:2])

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())
