"""A shuffled stream of datasets in torchdata's StatefulDataLoader: restoring its state.

Needs datasets, torch and torchdata.
"""

from __future__ import annotations

from importlib.metadata import version

from datasets import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


def loader():
    rows = Dataset.from_dict({"id": list(range(64))}).to_iterable_dataset(num_shards=8)
    shuffled = rows.shuffle(seed=42, buffer_size=16).with_format("torch")
    return StatefulDataLoader(shuffled, batch_size=8, num_workers=2)


def main():
    print(f"datasets {version('datasets')}, torchdata {version('torchdata')}")
    first = loader()
    for _ in first:
        pass
    for step, _ in enumerate(first, 1):
        if step == 2:
            state = first.state_dict()
            break
    restored = loader()
    restored.load_state_dict(state)
    try:
        came = [batch["id"].tolist() for batch in restored]
    except Exception as error:
        print("restored after 2 batches of epoch 1, it raises:", str(error).splitlines()[-1])
    else:
        print(f"restored after 2 batches of epoch 1: {len(came)} batches of 6 came")


if __name__ == "__main__":
    main()
