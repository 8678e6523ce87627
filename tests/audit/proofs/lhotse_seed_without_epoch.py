"""lhotse's make_worker_init_fn seeds by rank and worker: each epoch draws the same numbers.

Needs lhotse and torch.
"""

from __future__ import annotations

import random

import lhotse
from lhotse.dataset.dataloading import make_worker_init_fn
from torch.utils.data import DataLoader, Dataset


class Draws(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, row):
        return random.random()


def main():
    init = make_worker_init_fn(seed=0)
    loader = DataLoader(Draws(), batch_size=4, num_workers=2, worker_init_fn=init)
    epochs = [[number for batch in loader for number in batch.tolist()] for _ in range(2)]
    equal = sum(one == other for one, other in zip(*epochs, strict=True))
    print(f"lhotse {lhotse.__version__}")
    print(f"epoch 0: {epochs[0][:3]}")
    print(f"epoch 1: {epochs[1][:3]}")
    print(f"{equal} of 16 draws are the same in both epochs")


if __name__ == "__main__":
    main()
