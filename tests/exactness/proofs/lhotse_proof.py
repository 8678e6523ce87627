"""Lhotse: the state of a sampler whose batches workers have prefetched, and other ranks."""

from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler
from torch.utils.data import DataLoader, Dataset


class Ids(Dataset):
    def __getitem__(self, cuts):
        return [cut.id for cut in cuts]


def sampler_of(world_size=1):
    cuts = CutSet.from_cuts(MonoCut(str(n), 0, 1.0 + n % 10 / 10, 0) for n in range(12))
    return DynamicBucketingSampler(
        cuts, max_duration=3.8, num_buckets=2, shuffle=True, world_size=world_size, rank=0
    )


for workers in (0, 1):
    loader = DataLoader(Ids(), batch_size=None, sampler=sampler_of(), num_workers=workers)
    batches = iter(loader)
    next(batches)
    state = loader.sampler.state_dict()
    print(f"{workers} workers, after 1 batch")
    print("  due: ", list(batches))
    sampler = sampler_of()
    sampler.load_state_dict(state)
    loader = DataLoader(Ids(), batch_size=None, sampler=sampler, num_workers=workers)
    print("  read:", list(loader))

try:
    sampler_of(world_size=2).load_state_dict(sampler_of().state_dict())
except AssertionError as error:
    print("in 2 ranks: AssertionError:", error)
