"""Loaders and samplers of frameworks: lightning, monai, torch_geometric, tensordict, kornia,
catalyst, pytorch-metric-learning, skorch."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from tests.audit.field.data import SAMPLES, Rows


def data_module():
    from lightning import LightningDataModule

    class Module(LightningDataModule):
        def setup(self, stage):
            self.rows = Rows()

        def train_dataloader(self):
            return DataLoader(self.rows, batch_size=8, shuffle=True, num_workers=2)

    return Module()


def combined():
    from lightning.pytorch.utilities import CombinedLoader

    loaders = {
        "a": DataLoader(Rows(), batch_size=4, shuffle=True),
        "b": DataLoader(Rows(), batch_size=8, shuffle=True),
    }
    return CombinedLoader(loaders, "max_size_cycle")


def fabric():
    from lightning.fabric import Fabric

    loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2)
    return Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)


def monai_items():
    return [{"id": row, "x": torch.arange(16.0).view(1, 4, 4) + row} for row in range(SAMPLES)]


def monai_cache():
    from monai.data import CacheDataset, DataLoader
    from monai.transforms import EnsureTyped

    dataset = CacheDataset(monai_items(), EnsureTyped(keys="x"), progress=False)
    return DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)


def monai_random():
    from monai.data import DataLoader, Dataset
    from monai.transforms import RandGaussianNoised

    dataset = Dataset(monai_items(), RandGaussianNoised(keys="x", prob=1.0))
    return DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)


def monai_torch_loader():
    """MONAI's random transforms behind torch's own loader: nobody seeds them in the workers."""
    from monai.data import Dataset
    from monai.transforms import RandGaussianNoised

    dataset = Dataset(monai_items(), RandGaussianNoised(keys="x", prob=1.0))
    return DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)


def monai_thread():
    from monai.data import Dataset, ThreadDataLoader

    return ThreadDataLoader(Dataset(monai_items()), batch_size=8, shuffle=True, num_workers=0)


def graphs():
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    edges = torch.tensor([[0, 1], [1, 0]])
    data = [Data(x=torch.full((2, 3), float(row)), edge_index=edges) for row in range(SAMPLES)]
    return DataLoader(data, batch_size=8, shuffle=True, num_workers=2)


def graphs_by_size():
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader, DynamicBatchSampler

    edges = torch.tensor([[0, 1], [1, 0]])
    data = [
        Data(x=torch.full((2 + row % 3, 3), float(row)), edge_index=edges) for row in range(SAMPLES)
    ]
    batches = DynamicBatchSampler(data, max_num=20, shuffle=True)
    return DataLoader(data, batch_sampler=batches)


def first(batch):
    return batch


def tensordict():
    from tensordict import TensorDict

    values = {"id": torch.arange(SAMPLES), "x": torch.arange(SAMPLES * 4.0).view(SAMPLES, 4)}
    rows = TensorDict(values, batch_size=[SAMPLES])
    return DataLoader(rows, batch_size=8, shuffle=True, collate_fn=first)


class Noisy(Rows):
    def __init__(self, noise):
        self.noise = noise

    def __getitem__(self, row):
        sample = super().__getitem__(row)
        return {"id": row, "image": self.noise(sample["x"].view(1, 1, 2, 2) / 256)[0]}


def kornia():
    from kornia.augmentation import RandomGaussianNoise

    dataset = Noisy(RandomGaussianNoise(p=1.0))
    return DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)


def labelled():
    return TensorDataset(torch.arange(SAMPLES * 4.0).view(SAMPLES, 4), torch.arange(SAMPLES) % 4)


def per_class():
    from pytorch_metric_learning.samplers import MPerClassSampler

    sampler = MPerClassSampler([row % 4 for row in range(SAMPLES)], m=4, length_before_new_iter=64)
    return DataLoader(labelled(), batch_size=16, sampler=sampler, num_workers=2)


def balanced():
    from catalyst.data import BalanceClassSampler

    sampler = BalanceClassSampler([row % 4 for row in range(SAMPLES)], mode="upsampling")
    return DataLoader(labelled(), batch_size=8, sampler=sampler, num_workers=2)


def wrapped_sampler():
    from catalyst.data import DistributedSamplerWrapper

    dataset = labelled()
    generator = torch.Generator().manual_seed(0)
    sampler = DistributedSamplerWrapper(RandomSampler(dataset, generator=generator))
    return DataLoader(dataset, batch_size=8, sampler=sampler)


def skorch():
    from skorch.dataset import Dataset

    values = torch.arange(SAMPLES * 4.0).view(SAMPLES, 4)
    return DataLoader(Dataset(values, torch.arange(SAMPLES) % 4), batch_size=8, shuffle=True)
