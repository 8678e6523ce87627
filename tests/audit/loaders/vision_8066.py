"""github: pytorch/vision#8066, mended in #8067: transforms are lost when a wrapped data set is
pickled.

torchvision 0.16.0's wrapper, reduced to what matters: it takes the transforms away from the data
set to apply them itself, and `__reduce__` wraps the data set, which has none any more, anew. Its
data set is VOCDetection; here 8 images of the same kind (the image first, then its target)."""

import torch
from torch.utils.data import DataLoader, Dataset


class VisionDataset(Dataset):
    def __init__(self, transforms=None):
        self.transforms = transforms

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        image = torch.randint(
            0, 256, (3, 8, 8), generator=torch.Generator().manual_seed(index)
        ).byte()
        target = {"labels": torch.tensor([index % 3])}
        return self.transforms(image, target) if self.transforms else (image, target)


class Released(Dataset):
    def __init__(self, dataset):
        self._dataset = dataset
        self.transforms, dataset.transforms = dataset.transforms, None

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        sample = self._dataset[index]
        return sample if self.transforms is None else self.transforms(*sample)

    def __reduce__(self):
        return type(self), (self._dataset,)


class Mended(Released):
    def __reduce__(self):
        dataset = VisionDataset(self.transforms)
        return type(self), (dataset,)


def to_float(image, target):
    return image.float() / 255, target


def _no_collate(batch):
    return batch


def loader(wrapper):
    return DataLoader(
        wrapper(VisionDataset(to_float)),
        num_workers=2,
        multiprocessing_context="spawn",
        collate_fn=_no_collate,
    )


def released():
    return loader(Released)


def mended():
    return loader(Mended)
