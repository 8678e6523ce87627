"""github: webdataset/webdataset#172, "detshuffle epoch count the same across epochs".

detshuffle counts its epochs in the object that shuffles, and that is a copy in a worker that ends
with its epoch: each epoch begins at -1 + 1. With persistent workers the copy lives on and
counts."""

import random

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class detshuffle(IterableDataset):
    def __init__(self, shards, seed=0, epoch=-1):
        self.shards = shards
        self.seed = seed
        self.epoch = epoch

    def __iter__(self):
        self.epoch += 1
        shards = list(self.shards)
        random.Random(self.seed + self.epoch).shuffle(shards)
        info = get_worker_info()
        for shard in shards[info.id :: info.num_workers] if info else shards:  # split_by_worker
            for row in range(4):
                yield 100 * shard + row


def described():
    return DataLoader(detshuffle(range(16)), batch_size=4, num_workers=2)


def persistent():
    return DataLoader(detshuffle(range(16)), batch_size=4, num_workers=2, persistent_workers=True)


def longer_than_what_is_read():
    return DataLoader(detshuffle(range(1100)), batch_size=4, num_workers=2, persistent_workers=True)
