"""huggingface/accelerate#4195: the state has the position, not the order of the epoch.

Needs accelerate, torchdata and torch.
"""

from __future__ import annotations

import accelerate
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset


def prepared():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=4, shuffle=True)
    config = DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
    return Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def main():
    loader = prepared()
    epoch0 = [batch.tolist() for (batch,) in loader]
    for step, _ in enumerate(loader, 1):
        if step == 5:
            state = loader.state_dict()
            break

    whole = prepared()
    for _ in whole:
        pass
    due = [batch.tolist() for (batch,) in whole][5:]

    loader = prepared()
    loader.load_state_dict(state)
    came = [batch.tolist() for (batch,) in loader]
    due_ids = {number for batch in due for number in batch}
    came_ids = {number for batch in came for number in batch}
    print(f"accelerate {accelerate.__version__}, torch {torch.__version__}")
    print(f"after batch 5 of epoch 1: due {due[0]}, restored {came[0]}, epoch 0 had {epoch0[5]}")
    print(f"{len(came_ids - due_ids)} samples replayed, {len(due_ids - came_ids)} skipped")


if __name__ == "__main__":
    main()
