"""SpecAugment (Park et al. 2019): bands of frequency and spans of time set to zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from millrace.common.training import seeding


@dataclass(frozen=True)
class SpecAugment:
    """`bands` bands of at most `band_bins` mel bins, `spans` spans of at most `span_share` of the clip."""

    bands: int = 2
    band_bins: int = 12
    spans: int = 2
    span_share: float = 0.05

    def draw(
        self, seed: int, epoch: int, sample_ids: Sequence[int], frames: Sequence[int], bins: int
    ) -> torch.Tensor:
        """int64 (B, bands + spans, 2): first and end of what is masked, in bins for bands, in frames for
        spans; drawn for (seed, epoch, sample id), whatever else is in the batch."""
        masks = np.zeros((len(sample_ids), self.bands + self.spans, 2), dtype=np.int64)
        for row, (sample_id, length) in enumerate(zip(sample_ids, frames, strict=True)):
            draws = seeding.generator(seed, "spec_augment", epoch, int(sample_id))
            sides = [(bins, min(self.band_bins, bins))] * self.bands
            sides += [(length, int(self.span_share * length))] * self.spans
            for number, (size, max_width) in enumerate(sides):
                width = int(draws.integers(0, max_width + 1))
                first = int(draws.integers(0, max(size - width, 0) + 1))
                masks[row, number] = first, first + width
        return torch.from_numpy(masks)

    def apply(self, features: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Features (B, bins, L) with zeros inside the masks of `draw`."""
        bins = torch.arange(features.shape[1], device=features.device)
        frames = torch.arange(features.shape[2], device=features.device)
        bands, spans = masks[:, : self.bands], masks[:, self.bands :]
        in_band = ((bins >= bands[..., :1]) & (bins < bands[..., 1:])).any(1)
        in_span = ((frames >= spans[..., :1]) & (frames < spans[..., 1:])).any(1)
        return features.masked_fill(in_band[:, :, None] | in_span[:, None], 0.0)
