"""webdataset, litdata, mosaicml-streaming, grain and lhotse, after their documentation."""

from __future__ import annotations

import random
import wave
from functools import partial

import torch
from torch.utils.data import DataLoader

from tests.audit.field.data import SAMPLES, Rows, folder, item, made_once, tars


def webdataset(**options):
    import webdataset as wds

    dataset = wds.WebDataset(tars(folder()), shardshuffle=False, **options)
    dataset = dataset.decode().to_tuple("__key__", "txt").batched(4)
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


def web_by_node():
    import webdataset as wds

    return webdataset(nodesplitter=wds.split_by_node)


def web_every_node():
    return webdataset(nodesplitter=None)


def web_every_worker():
    return webdataset(workersplitter=None)


def web_alone():
    return webdataset()


def web_shuffled():
    import webdataset as wds

    dataset = wds.WebDataset(tars(folder()), shardshuffle=8).shuffle(16)
    dataset = dataset.decode().to_tuple("__key__", "txt").batched(4)
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


def lit():
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    inputs = list(range(64))
    make = partial(optimize, item, inputs, chunk_size=8, num_workers=1)
    place = made_once("lit", lambda place: make(output_dir=place))
    return StreamingDataLoader(StreamingDataset(place, shuffle=True), batch_size=4, num_workers=2)


def lit_combined():
    """Lightning-AI/litData#363."""
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

    parts = []
    for part in range(2):
        inputs = list(range(60 * part, 60 * part + 60))
        make = partial(optimize, item, inputs, chunk_size=10, num_workers=1)
        place = made_once(f"lit{part}", lambda place, make=make: make(output_dir=place))
        parts.append(StreamingDataset(place))
    both = CombinedStreamingDataset(parts, iterate_over_all=True)
    return StreamingDataLoader(both, batch_size=4, num_workers=2)


def mds():
    from streaming import MDSWriter, StreamingDataset

    place = str(folder() / "mds")
    with MDSWriter(out=place, columns={"id": "int"}, size_limit=200) as writer:
        for row in range(64):
            writer.write({"id": row})
    dataset = StreamingDataset(local=place, batch_size=8, shuffle=True)
    return DataLoader(dataset, batch_size=8, num_workers=2)


def grain_map():
    import grain

    return grain.MapDataset.source(range(64)).shuffle(seed=10).batch(4).to_iter_dataset()


def grain_sharded():
    import grain
    import torch.distributed as dist

    rows = grain.MapDataset.range(dist.get_rank(), 64, dist.get_world_size())
    return rows.shuffle(seed=10).batch(4).to_iter_dataset()


def grain_unsharded():
    import grain

    return grain.MapDataset.range(64).shuffle(seed=10).batch(4).to_iter_dataset()


def bucketing(*, workers=2):
    from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset
    from lhotse.dataset.input_strategies import AudioSamples

    sampler = DynamicBucketingSampler(
        cuts(folder(), SAMPLES), max_duration=4.0, num_buckets=2, shuffle=True
    )
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples())
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)


def simple_cuts():
    from lhotse.dataset import K2SpeechRecognitionDataset, SimpleCutSampler
    from lhotse.dataset.input_strategies import AudioSamples

    sampler = SimpleCutSampler(cuts(folder(), SAMPLES), max_duration=4.0, shuffle=True)
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples())
    return DataLoader(dataset, sampler=sampler, batch_size=None)


class Augmented(Rows):
    def __getitem__(self, row):
        return super().__getitem__(row)["x"] + random.random()


def lhotse_seeded():
    """make_worker_init_fn knows no epoch."""
    from lhotse.dataset.dataloading import make_worker_init_fn

    options = {"num_workers": 2, "worker_init_fn": make_worker_init_fn(seed=0)}
    return DataLoader(Augmented(), batch_size=4, shuffle=True, **options)


def lhotse_torch_seed():
    """The same data set, seeded by torch."""
    torch.manual_seed(0)
    return DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2)


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
