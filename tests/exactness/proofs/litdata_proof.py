"""LitData: one rank that two go on from, at the same and another global batch; an epoch's end."""

import os
import tempfile
from copy import deepcopy

import torch.distributed as dist
import torch.multiprocessing as mp
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import Cache


def loader_of(folder, batch_size):
    dataset = StreamingDataset(folder, shuffle=True, drop_last=True, seed=42)
    return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=0)


def loader_of_state(folder, state):
    loader = loader_of(folder, 2)
    loader.load_state_dict(state)
    return loader


def read(rank, world_size, folder, batch_size, states, batches_and_queue):
    """Restore, read so many batches (all: None), save."""
    batches, queue = batches_and_queue
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29591")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    loader = loader_of(folder, batch_size)
    if states:
        loader.load_state_dict(states[rank if rank < len(states) else 0])
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == batches:
            break
    queue.put((rank, seen, loader.state_dict()))
    dist.barrier()


def ranks(world_size, folder, batch_size, states=None, batches=None):
    """What each rank read, and its state."""
    queue = mp.get_context("fork").Queue()
    arguments = (world_size, folder, batch_size, states, (batches, queue))
    context = mp.start_processes(
        read, args=arguments, nprocs=world_size, join=False, start_method="fork"
    )
    results = sorted((queue.get() for _ in range(world_size)), key=lambda result: result[0])
    while not context.join():
        pass
    return [seen for _, seen, _ in results], [state for _, _, state in results]


def write(folder, samples):
    cache = Cache(folder, chunk_size=4)
    for sample in range(samples):
        cache[sample] = sample
    cache.done()
    cache.merge()
    return folder


with tempfile.TemporaryDirectory() as folder:
    samples = write(f"{folder}/16", 16)
    seen, states = ranks(1, samples, 4, batches=1)
    print("16 samples, 1 rank, batch of 4:", seen)
    print("restored in 2 ranks, batches of 4:", ranks(2, samples, 4, states)[0])
    print("restored in 2 ranks, batches of 2:", ranks(2, samples, 2, states)[0])

    samples = write(f"{folder}/8", 8)
    seen, states = ranks(1, samples, 4, batches=2)
    print("8 samples, 1 rank, the state after the last batch:", seen)
    print("restored:", ranks(1, samples, 4, states)[0])

    loader = loader_of(samples, 2)
    for _ in loader:
        pass
    second = iter(loader)
    print("8 samples, in the second epoch, after:", next(second).tolist())
    state = loader.state_dict()
    print("due:     ", [batch.tolist() for batch in second])
    print("restored:", [batch.tolist() for batch in loader_of_state(samples, deepcopy(state))])
    again = loader_of_state(samples, deepcopy(state)).state_dict()  # at once, nothing is read
    print("restored, saved at once, restored:", end=" ")
    print([batch.tolist() for batch in loader_of_state(samples, again)])
