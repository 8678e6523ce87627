"""The models are those of PyTorch's ImageNet example."""

from __future__ import annotations

import pytest
import torch

from millrace.image.models import resnet


# Parameters as torchvision has them, for 1,000 classes.
@pytest.mark.parametrize("arch, parameters", [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_models_have_torchvisions_number_of_parameters(arch, parameters):
    model = resnet.build(arch, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert not model.config.downsample_in_bottleneck  # strides in the 3 x 3 convolutions


@pytest.mark.parametrize("size", [8, 32])
def test_the_small_one_takes_images_of_a_few_pixels(size):
    model, images = resnet.build("resnet_small", 10), torch.zeros(2, 3, size, size)
    assert model(images).logits.shape == (2, 10)
    assert model.resnet.embedder(images).shape == (2, 16, size, size)
