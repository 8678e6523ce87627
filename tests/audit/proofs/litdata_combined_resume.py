"""Lightning-AI/litData#363: the state of a CombinedStreamingDataset, restored in mid-epoch.

Needs litdata and torch.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize


def item(number):
    return {"id": number}


def loader(folder):
    parts = [StreamingDataset(f"{folder}/{part}") for part in range(2)]
    both = CombinedStreamingDataset(parts, iterate_over_all=True)
    return StreamingDataLoader(both, batch_size=4, num_workers=2)


def ids(batches):
    return [number for batch in batches for number in batch["id"].tolist()]


def main():
    print(f"litdata {version('litdata')}")
    with tempfile.TemporaryDirectory() as folder:
        for part in range(2):
            inputs = list(range(60 * part, 60 * part + 60))
            optimize(item, inputs, f"{folder}/{part}", chunk_size=10, num_workers=1)
        first = loader(folder)
        seen, due, state = [], [], None
        for _ in first:
            pass
        for step, batch in enumerate(first, 1):
            (seen if step <= 10 else due).extend(ids([batch]))
            if step == 10:
                state = first.state_dict()
        restored = loader(folder)
        restored.load_state_dict(state)
        came = ids(restored)
    print(f"after 10 batches of epoch 1: due {due[:4]}, restored {came[:4]}")
    print(f"{len(set(came) - set(due))} replayed, {len(set(due) - set(came))} skipped")


if __name__ == "__main__":
    main()
