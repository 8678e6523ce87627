"""Loaders of real packages, as their documentation writes them, over files that this file makes.

Each takes the folder of the files; docs/audit/packages.md has what the audit said. Not run in the
suite: the packages are not among its requirements."""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

SAMPLES = 96


def torch_datasets(folder):
    """torch's data sets over a tensor file, with DistributedSampler."""
    values = torch.load(Path(folder, "values.pt"), weights_only=True)
    parts = [
        StackDataset(x=TensorDataset(part), y=part[:, 0]) for part in values.split(SAMPLES // 2)
    ]
    train, _ = random_split(
        ConcatDataset(parts), [64, 32], generator=torch.Generator().manual_seed(0)
    )
    return DataLoader(train, batch_size=8, num_workers=2, sampler=DistributedSampler(train))


def webdataset(folder, split="node", shuffle=0):
    """README of webdataset: WebDataset(...).decode().to_tuple().batched() in a WebLoader."""
    import webdataset as wds

    nodes = {"worker": None, "neither": None, "default": wds.single_node_only}.get(
        split, wds.split_by_node
    )
    workers = None if split == "neither" else wds.split_by_worker
    urls, resampled = str(Path(folder, "shard-{000000..000007}.tar")), split == "resampled"
    shards = {"resampled": resampled, "shardshuffle": int(shuffle) or False}
    dataset = wds.WebDataset(urls, nodesplitter=nodes, workersplitter=workers, **shards)
    dataset = dataset.shuffle(16).with_epoch(24) if resampled else dataset
    dataset = dataset.decode().to_tuple("__key__", "x.pth").batched(4)
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


def lhotse(folder):
    """Lhotse's documentation, "PyTorch datasets": the sampler makes the batches and splits them by
    rank."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset
    from lhotse.dataset.input_strategies import AudioSamples

    cuts = CutSet.from_file(Path(folder, "cuts.jsonl.gz"))
    sampler = DynamicBucketingSampler(cuts, max_duration=4.0, num_buckets=2, shuffle=True)
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples())
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)


def datasets_map(folder, sampler=1):
    from datasets import Dataset

    dataset = Dataset.from_parquet(str(Path(folder, "rows.parquet")), cache_dir=folder).with_format(
        "torch"
    )
    chosen = DistributedSampler(dataset) if sampler == 1 else None
    return DataLoader(dataset, batch_size=8, num_workers=2, sampler=chosen, shuffle=chosen is None)


def datasets_iterable(folder, split=1):
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    dataset = Dataset.from_parquet(str(Path(folder, "rows.parquet")), cache_dir=folder)
    dataset = (
        dataset.to_iterable_dataset(num_shards=8)
        .shuffle(seed=42, buffer_size=16)
        .with_format("torch")
    )
    if split:
        dataset = split_dataset_by_node(
            dataset, rank=dist.get_rank(), world_size=dist.get_world_size()
        )
    return DataLoader(dataset, batch_size=8, num_workers=2)


def streaming(folder):
    from streaming import StreamingDataset

    dataset = StreamingDataset(local=str(Path(folder, "mds")), batch_size=8, shuffle=True)
    return DataLoader(dataset, batch_size=8, num_workers=2)


def accelerate(folder, stateful=1, seedable=0):
    """huggingface/accelerate#4195: the state has the position, not the order of the epoch."""
    from accelerate import Accelerator, DataLoaderConfiguration

    stateful, seedable = bool(stateful), bool(seedable)
    config = DataLoaderConfiguration(
        use_stateful_dataloader=stateful, use_seedable_sampler=seedable
    )
    torch.manual_seed(1234)
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=4, shuffle=True)
    return Accelerator(cpu=True, dataloader_config=config).prepare_data_loader(loader)


def accelerate_stream(folder):
    """A share of a stream that is prepared, and so shared out again."""
    from accelerate import Accelerator
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    rows = Dataset.from_parquet(str(Path(folder, "rows.parquet")), cache_dir=folder)
    rows = rows.to_iterable_dataset(num_shards=8).with_format("torch")
    share = split_dataset_by_node(rows, rank=dist.get_rank(), world_size=dist.get_world_size())
    return Accelerator(cpu=True).prepare(DataLoader(share, batch_size=4, num_workers=0))


def litdata(folder):
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset

    parts = [StreamingDataset(str(Path(folder, name))) for name in ("lit0", "lit1")]
    both = CombinedStreamingDataset(parts, iterate_over_all=True)
    return StreamingDataLoader(both, batch_size=4, num_workers=2)


def datasets_stateful(folder):
    from datasets import Dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = Dataset.from_parquet(str(Path(folder, "rows.parquet")), cache_dir=folder)
    dataset = (
        dataset.to_iterable_dataset(num_shards=8)
        .shuffle(seed=42, buffer_size=16)
        .with_format("torch")
    )
    return StatefulDataLoader(dataset, batch_size=8, num_workers=2)


def torchdata_sampler(folder, workers=2):
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    dataset = TensorDataset(torch.load(Path(folder, "values.pt"), weights_only=True))
    sampler = StatefulDistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    return StatefulDataLoader(dataset, batch_size=4, num_workers=workers, sampler=sampler)


def torchdata_nodes(folder):
    from torch.utils.data import RandomSampler, default_collate
    from torchdata import nodes

    dataset = TensorDataset(torch.load(Path(folder, "values.pt"), weights_only=True))
    rows = nodes.ParallelMapper(
        nodes.SamplerWrapper(RandomSampler(dataset)), dataset.__getitem__, 2
    )
    batches = nodes.Mapper(nodes.Batcher(rows, 4, drop_last=False), default_collate)
    return nodes.Loader(batches)


def generate(folder):
    """The files of all loaders above whose package is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    values = torch.arange(SAMPLES * 4, dtype=torch.float32).view(SAMPLES, 4)
    torch.save(values, folder / "values.pt")
    for write in (write_tars, write_cuts, write_rows, write_mds, write_lit):
        try:
            write(folder, values)
        except ImportError as error:
            print(error)


def write_tars(folder, values):
    import webdataset as wds

    for shard in range(8):
        with wds.TarWriter(str(folder / f"shard-{shard:06d}.tar")) as tar:
            for row in range(12 * shard, 12 * shard + 12):
                tar.write({"__key__": f"{row:05d}", "x.pth": values[row]})


def write_cuts(folder, values):
    cuts(folder, SAMPLES).to_file(folder / "cuts.jsonl.gz")


def cuts(folder, samples):
    """Cuts of half a second and more."""
    from lhotse import CutSet, Recording, SupervisionSegment

    made = []
    for row in range(samples):
        path = folder / f"{row:03d}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            noise = torch.randn(4000 + 80 * row, generator=torch.Generator().manual_seed(row))
            file.writeframes((noise * 3000).short().numpy().tobytes())
        cut = Recording.from_file(path, recording_id=f"r{row:03d}").to_cut()
        cut.supervisions = [
            SupervisionSegment(cut.id, cut.recording_id, 0, cut.duration, text=f"text {row}")
        ]
        made.append(cut)
    return CutSet.from_cuts(made)


def write_rows(folder, values):
    from datasets import Dataset

    rows = {"id": list(range(SAMPLES)), "x": values.tolist()}
    Dataset.from_dict(rows).to_parquet(str(folder / "rows.parquet"))


def write_mds(folder, values):
    from streaming import MDSWriter

    columns = {"id": "int", "x": "ndarray:float32:4"}
    with MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=1000) as writer:
        for row in range(SAMPLES):
            writer.write({"id": row, "x": values[row].numpy()})


def write_lit(folder, values):
    from litdata import optimize

    for part in range(2):
        inputs = list(range(60 * part, 60 * part + 60))
        optimize(item, inputs, str(folder / f"lit{part}"), chunk_size=10, num_workers=1)


def item(number):
    return {"id": number, "x": torch.arange(4.0) + number}


if __name__ == "__main__":
    generate(Path(sys.argv[1]).resolve())
