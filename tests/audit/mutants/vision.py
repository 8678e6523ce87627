"""Transforms as torchvision names them, and pictures they are for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(
    index: int, low: int = 0, high: int = 256, channels: int = 3, size: int = 12
) -> np.ndarray:
    """Seeded pixels, height x width x channels, 8 bits."""
    return np.random.default_rng(index).integers(low, high, (size, size, channels), dtype=np.uint8)


class Compose:
    def __init__(self, *transforms: Callable) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: object) -> object:
        for transform in self.transforms:
            x = transform(x)
        return x


class ToTensor:
    """Height x width x channels to channels first; divides by 255 what has 8 bits, and nothing
    else."""

    def __call__(self, x: object) -> torch.Tensor:
        if not isinstance(x, np.ndarray | Image.Image):
            raise TypeError(f"pic should be PIL Image or ndarray. Got {type(x)}")
        x = np.array(x)
        tensor = torch.from_numpy(x[..., None] if x.ndim == 2 else x).permute(2, 0, 1).contiguous()
        return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor


class ToImage:
    def __call__(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).permute(2, 0, 1).contiguous()


class ToDtype:
    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        self.dtype, self.scale = dtype, scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype) / (255 if self.scale else 1)


class Normalize:
    def __init__(self, mean: tuple = MEAN, std: tuple = STD) -> None:
        self.mean, self.std = mean, std

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"img should be Tensor Image. Got {type(x)}")
        mean, std = torch.tensor(self.mean)[:, None, None], torch.tensor(self.std)[:, None, None]
        return x.clone().sub_(mean).div_(std)


class Resize:
    def __call__(self, x: Image.Image) -> Image.Image:
        if not isinstance(x, Image.Image):
            raise TypeError(f"img should be PIL Image. Got {type(x)}")
        return x.resize((8, 8))
