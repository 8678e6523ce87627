"""datasets: a stream that goes on from its state: in order, shuffled, in other ranks."""

import datasets
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

datasets.utils.logging.set_verbosity_error()


def loader_of(buffer_size=0, rank=0, world_size=1, workers=0):
    stream = Dataset.from_dict({"id": range(16)}).to_iterable_dataset(num_shards=4)
    if buffer_size:
        stream = stream.shuffle(seed=0, buffer_size=buffer_size)
    stream = split_dataset_by_node(stream, rank, world_size)
    return StatefulDataLoader(stream, batch_size=4, num_workers=workers)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


for buffer_size in (0, 8):
    loader = loader_of(buffer_size)
    batches = iter(loader)
    print(f"shuffle buffer of {buffer_size}, after 1 batch: {ids([next(batches)])}")
    state = loader.state_dict()
    print("  due: ", ids(batches))
    loader = loader_of(buffer_size)
    loader.load_state_dict(state)
    try:
        print("  read:", ids(loader))
    except Exception as error:
        print(f"  {type(error).__name__}: {error}")

loader = loader_of()
print("after 1 batch by rank 0 of 1:", ids([next(iter(loader))]))
state = loader.state_dict()
for rank in range(2):
    loader = loader_of(rank=rank, world_size=2)
    loader.load_state_dict(state)
    print(f"  then by rank {rank} of 2:", ids(loader))

loader = loader_of()
batches = iter(loader)
print("saved after", ids([next(batches)]))
state = loader.state_dict()
print("  due: ", ids(batches))
loader = loader_of()
loader.load_state_dict(state)
state = loader.state_dict()
loader = loader_of()
loader.load_state_dict(state)
print("  restored, saved at once, restored:", ids(loader))
