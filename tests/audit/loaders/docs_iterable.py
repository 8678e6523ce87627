"""PyTorch documentation, torch.utils.data.IterableDataset, examples 1 and 2, as printed there."""

import math

import torch


class Plain(torch.utils.data.IterableDataset):
    def __init__(self, start, end):
        super().__init__()
        assert end > start, "this example only works with end >= start"
        self.start = start
        self.end = end

    def __iter__(self):
        return iter(range(self.start, self.end))


class SplitInIter(Plain):
    def __iter__(self):
        worker_info = torch.utils.data.get_worker_info()
        if worker_info is None:  # single-process data loading, return the full iterator
            iter_start = self.start
            iter_end = self.end
        else:  # in a worker process
            # split workload
            per_worker = math.ceil((self.end - self.start) / float(worker_info.num_workers))
            worker_id = worker_info.id
            iter_start = self.start + worker_id * per_worker
            iter_end = min(iter_start + per_worker, self.end)
        return iter(range(iter_start, iter_end))


def worker_init_fn(worker_id):
    worker_info = torch.utils.data.get_worker_info()
    dataset = worker_info.dataset  # the dataset copy in this worker process
    overall_start = dataset.start
    overall_end = dataset.end
    # configure the dataset to only process the split workload
    per_worker = math.ceil((overall_end - overall_start) / float(worker_info.num_workers))
    worker_id = worker_info.id
    dataset.start = overall_start + worker_id * per_worker
    dataset.end = min(dataset.start + per_worker, overall_end)


def duplicated():
    return torch.utils.data.DataLoader(Plain(start=3, end=7), num_workers=2)


def split_in_iter():
    return torch.utils.data.DataLoader(SplitInIter(start=3, end=7), num_workers=2)


def split_in_worker_init():
    return torch.utils.data.DataLoader(
        Plain(start=3, end=7), num_workers=2, worker_init_fn=worker_init_fn
    )
