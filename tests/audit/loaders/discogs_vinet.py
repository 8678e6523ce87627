"""github: raraz15/Discogs-VINet, model/dataset/train_dataset.py and train.py, two versions a
clique.

Features are drawn here instead of read from memmap files. What is random is as there: the second
version and the start of the excerpt come from NumPy's global state."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

torch.multiprocessing.set_sharing_strategy("file_system")

SEED = 27


class TrainDataset(Dataset):
    def __init__(self, context_length):
        self.context_length = context_length
        self.cliques = {f"C-{c}": [f"{c}-{v}" for v in range(2 + c % 3)] for c in range(12)}
        self.indices = [
            (c, i) for c, versions in self.cliques.items() for i in range(len(versions))
        ]

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        clique_id, version_pos = self.indices[index]
        versions = self.cliques[clique_id]
        possible_indices = np.delete(np.arange(len(versions)), version_pos)
        anchors = [versions[version_pos], versions[np.random.choice(possible_indices)]]
        labels = [int(clique_id.split("C-")[1])] * 2
        return torch.stack([self.load_cqt(anchor) for anchor in anchors], 0), labels

    def load_cqt(self, yt_id):
        clique, version = map(int, yt_id.split("-"))
        stored = np.random.default_rng([clique, version]).random((120 + 7 * version, 84))
        start = np.random.randint(0, len(stored) - self.context_length)
        feature = np.array(stored[start : start + self.context_length], dtype=np.float32)
        feature = np.where(feature < 0, 0, feature)
        feature /= np.max(feature) + 1e-6
        return torch.from_numpy(feature.T)

    @staticmethod
    def collate_fn(items):
        anchors = torch.cat([item[0] for item in items], 0)
        labels = torch.tensor([it for item in items for it in item[1]])
        return anchors, labels


def train_loader():
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    train_dataset = TrainDataset(context_length=100)
    return DataLoader(
        train_dataset,
        batch_size=4,
        shuffle=True,
        collate_fn=train_dataset.collate_fn,
        drop_last=True,
        num_workers=2,
    )
