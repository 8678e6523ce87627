"""github: huggingface/datasets#5360, "IterableDataset returns duplicated data using PyTorch DDP".

The data set's shards are split by torch's worker_info alone, as in datasets 2.7; then by rank too,
which is what split_dataset_by_node (2.9) does. The package itself is audited in
docs/audit/field.md."""

import os

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = get_worker_info()
        for shard in self.shards[info.id :: info.num_workers] if info else self.shards:
            for row in range(4):
                yield {"id": 100 * shard + row}


def by_worker():
    return DataLoader(Shards(list(range(8))), batch_size=4, num_workers=2)


def by_node():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return DataLoader(Shards(list(range(8))[rank::world_size]), batch_size=4, num_workers=2)
