"""huggingface/datasets#7901: the state of a shuffled stream lacks what its buffer held.

Needs datasets.
"""

from __future__ import annotations

import datasets
from datasets import Dataset


def stream():
    rows = Dataset.from_dict({"id": list(range(64))}).to_iterable_dataset(num_shards=8)
    shuffled = rows.shuffle(seed=42, buffer_size=16)
    shuffled.set_epoch(1)
    return shuffled


def main():
    due, state = [], None
    rows = stream()
    for number, row in enumerate(rows, 1):
        due.append(row["id"])
        if number == 16:
            state = rows.state_dict()
    restored = stream()
    restored.load_state_dict(state)
    came = [row["id"] for row in restored]
    print(f"datasets {datasets.__version__}")
    print(f"after 16 samples of epoch 1: due {due[16:20]}, restored {came[:4]}")
    print(f"{len(set(due[16:]) - set(came))} of {len(due) - 16} samples due come never")


if __name__ == "__main__":
    main()
