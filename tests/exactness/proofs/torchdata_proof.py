"""torchdata: an epoch that goes on from its state, in other ranks, in nodes, at an epoch's end."""

from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

NUMBERS = list(range(8))


def stateful(rank=0, world_size=1, workers=0):
    sampler = StatefulDistributedSampler(NUMBERS, num_replicas=world_size, rank=rank, seed=0)
    return StatefulDataLoader(NUMBERS, batch_size=4, sampler=sampler, num_workers=workers)


def loader_of_nodes():
    sampler = StatefulDistributedSampler(NUMBERS, num_replicas=1, rank=0, seed=0)
    batches = nodes.Batcher(nodes.SamplerWrapper(sampler), 2, drop_last=False)
    return nodes.Loader(batches)


print("StatefulDataLoader, after 1 of 2 batches")
loader = stateful()
print("  read by rank 0 of 1:", next(iter(loader)).tolist())
state = loader.state_dict()
for rank in range(2):
    loader = stateful(rank, 2)
    loader.load_state_dict(state)
    print(f"  then by rank {rank} of 2:", [batch.tolist() for batch in loader])
try:
    loader = stateful(workers=1)
    loader.load_state_dict(state)
    next(iter(loader))
except AssertionError as error:
    print("  then with 1 worker: AssertionError:", error)

print("nodes.Loader, in its second epoch, after 1 of 4 batches")
loader = loader_of_nodes()
first = list(loader)
second = iter(loader)
print("  read:", next(second))
state = loader.state_dict()
print("  due: ", list(second))
loader = loader_of_nodes()
loader.load_state_dict(state)
print("  read:", list(loader))
print("  first epoch:", first)

print("nodes.Loader, the state after the last batch of the first epoch")
loader = loader_of_nodes()
batches = iter(loader)
for _ in range(4):
    next(batches)
state = loader.state_dict()
print("  due:  []")
loader = loader_of_nodes()
loader.load_state_dict(state)
print("  read:", list(loader))
