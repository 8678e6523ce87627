"""github: pytorch/pytorch#5059, the script of its description; and a remedy that is copied because
of it."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader


class RandomDataset:
    def __getitem__(self, ind):
        return np.array([ind, np.random.randint(1, 10000), random.randint(10000, 20000), 0])

    def __len__(self):
        return 20


class TestDataset(torch.utils.data.Dataset):
    """github: mapooon/SelfBlendedImages#27.

    NumPy's state after torch's seeding (1.9 and later) begins with 2147483648 whatever the seed,
    so the sum below is the same in every epoch."""

    def __init__(self):
        self.datas = np.arange(16)

    def __len__(self):
        return len(self.datas)

    def __getitem__(self, index):
        return self.datas[index], np.random.uniform(0.0, 1.0)

    def worker_init_fn(self, worker_id):
        np.random.seed(np.random.get_state()[1][0] + worker_id)


def described():
    return DataLoader(RandomDataset(), 10, shuffle=False, num_workers=4)


def remedy():
    dataset = TestDataset()
    return DataLoader(
        dataset, batch_size=2, shuffle=True, worker_init_fn=dataset.worker_init_fn, num_workers=2
    )
