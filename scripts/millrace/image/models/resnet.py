"""ResNets as PyTorch's ImageNet example names them, of transformers, and one for images of 8 to 64
pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

# Layer type, channels and blocks of each stage. All have strides in the 3 x 3 convolution, as
# torchvision's.
ARCHITECTURES = {
    "resnet18": ("basic", (64, 128, 256, 512), (2, 2, 2, 2)),
    "resnet34": ("basic", (64, 128, 256, 512), (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (256, 512, 1024, 2048), (3, 4, 6, 3)),
    "resnet_small": ("basic", (16, 32, 64), (1, 1, 1)),
}


def build(arch: str, classes: int) -> nn.Module:
    """The model with random weights: float32 (images, 3, height, width) to `.logits` (images,
    classes)."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    layer, channels, blocks = ARCHITECTURES[arch]
    small = arch == "resnet_small"
    config = ResNetConfig(
        embedding_size=16 if small else 64,
        num_labels=classes,
        hidden_sizes=list(channels),
        depths=list(blocks),
        layer_type=layer,
    )
    model = ResNetForImageClassification(config)
    if small:
        # The 7 x 7 convolution of stride 2 and the pooling after it would leave 2 x 2 pixels of 8 x
        # 8.
        first = torch.nn.Conv2d(3, 16, 3, padding=1, bias=False)
        stem = model.resnet.embedder
        stem.embedder.convolution = first
        stem.pooler = torch.nn.Identity()
    return model
