"""grain: the state of an iterator, restored in mid-epoch, with and without worker processes.

Needs grain.
"""

from __future__ import annotations

from importlib.metadata import version

import grain


def rows():
    return grain.MapDataset.range(64).shuffle(seed=10).batch(4).to_iter_dataset()


def main():
    print(f"grain {version('grain')}")
    first = iter(rows())
    for _ in range(5):
        next(first)
    state = first.get_state()
    due = [batch.tolist() for batch in first]
    restored = iter(rows())
    restored.set_state(state)
    came = [batch.tolist() for batch in restored]
    print(f"after 5 batches: due {due[0]}, restored {came[0]}")
    print(f"the {len(due)} batches that are due come in their order: {came == due}")


if __name__ == "__main__":
    main()
