"""What reads tars for fine-tuning today: the original script's reader, tarfile, webdataset, Lhotse
Shar.

Each gives raw members and padded float32 batches from DataLoader workers, written as its own
documentation shows it. The peers are in requirements-bench.txt, and imported only here.
"""

from __future__ import annotations

import io
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from millrace.asr.throughput.loaders import soundfile_wave

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Member(NamedTuple):
    """One sample of the benchmark's corpus."""

    tar: str
    name: str
    offset: int
    size: int


class OriginalTarReader:
    """The original script's reader: a JSON index per tar, realpath, seek, buffered read."""

    def __init__(self, index_dir: str, max_open_files: int = 64) -> None:
        self.index_dir, self.max_open_files = index_dir, max_open_files
        self._files: OrderedDict[str, io.BufferedReader] = OrderedDict()
        self._indices: dict[str, dict] = {}

    @staticmethod
    def prepare(members: Iterable[Member], index_dir: Path) -> None:
        """Write the JSON indices (beside the tars in the original; here in a folder of their
        own)."""
        indices = {}
        for member in members:
            index = indices.setdefault(member.tar, {})
            index[member.name] = {"offset": member.offset, "size": member.size}
        for tar, index in indices.items():
            (index_dir / f"{tar.replace('/', '%')}.index.json").write_text(json.dumps(index))

    def read(self, tar: str, name: str) -> bytes:
        """The bytes of a member."""
        index = self._indices.get(tar)
        if index is None:
            with open(
                os.path.join(self.index_dir, f"{tar.replace('/', '%')}.index.json")
            ) as handle:
                index = self._indices[tar] = json.load(handle)
        entry = index.get(name) or index.get(name.lstrip("./")) or index.get("./" + name)
        if entry is None:
            raise FileNotFoundError(name)
        handle = self._open(tar)
        handle.seek(entry["offset"])
        return handle.read(entry["size"])

    def _open(self, tar: str) -> io.BufferedReader:
        path = os.path.realpath(tar)
        if path in self._files:
            self._files.move_to_end(path)
            return self._files[path]
        handle = self._files[path] = open(path, "rb")  # noqa: SIM115 - kept open, as in the original
        if len(self._files) > self.max_open_files:
            self._files.popitem(last=False)[1].close()
        return handle


def padded(waves: list) -> tuple[torch.Tensor, torch.Tensor]:
    """(float32 (B, T), int64 (B,)) of waveforms."""
    waves = [torch.as_tensor(wave) for wave in waves]
    lengths = torch.tensor([len(wave) for wave in waves])
    return torch.nn.utils.rnn.pad_sequence(waves, batch_first=True), lengths


class WaveformStream(IterableDataset):
    """The original script's way to feed training: of W workers, each yields every W-th sample's
    waveform."""

    def __init__(self, members: list[Member], reader: OriginalTarReader) -> None:
        self.members, self.reader = members, reader

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        for member in self.members[worker.id :: worker.num_workers]:
            wave = soundfile_wave(self.reader.read(member.tar, member.name))
            yield {"waveform": wave, "name": member.name}


def waveform_batches(
    batches: list[list[Member]], reader: OriginalTarReader, workers: int
) -> Batches:
    """Waveforms from `workers` processes, padded in the trainer into the given batches."""
    members = [member for batch in batches for member in batch]
    loader = DataLoader(WaveformStream(members, reader), batch_size=None, num_workers=workers)
    return _padded_by((sample["waveform"] for sample in loader), [len(batch) for batch in batches])


def _padded_by(waves: Iterator, sizes: Iterable[int]) -> Batches:
    for size in sizes:
        batch = list(islice(waves, size))
        if not batch:
            return
        yield padded(batch)


def webdataset_raw(tars: list[str]) -> Iterator[bytes]:
    """All members' bytes, streamed."""
    import webdataset

    stream = webdataset.WebDataset(tars, shardshuffle=False, empty_check=False)
    return (sample["flac"] for sample in stream)


def webdataset_batches(tars: list[str], batch_size: int, workers: int, batched: bool) -> Batches:
    """Streamed with a shuffle buffer, decoded in workers; padded there if `batched`, else in the
    trainer."""
    import webdataset

    stream = webdataset.WebDataset(
        tars, shardshuffle=len(tars), nodesplitter=None, empty_check=False, seed=1
    )
    stream = stream.shuffle(1000).map(_webdataset_wave)
    if batched:
        stream = stream.batched(batch_size, collation_fn=padded)
    loader = webdataset.WebLoader(stream, batch_size=None, num_workers=workers)
    return iter_lazily(loader) if batched else _padded_by(iter_lazily(loader), repeat(batch_size))


def iter_lazily(loader: Iterable) -> Iterator:
    """Iterate, but start the workers only when the first batch is asked for."""
    yield from loader


def _webdataset_wave(sample: dict) -> np.ndarray:
    return soundfile_wave(sample["flac"])


def lhotse_prepare(members: list[Member], folder: Path, members_per_shard: int) -> None:
    """Write the same audio as Lhotse Shar (tars of FLAC with manifests beside them)."""
    from lhotse import CutSet, Recording
    from lhotse.cut import MonoCut

    def cuts() -> Iterator[MonoCut]:
        for number, member in enumerate(members):
            with open(member.tar, "rb") as handle:
                handle.seek(member.offset)
                raw = handle.read(member.size)
            recording = Recording.from_bytes(
                raw, recording_id=f"{number:07d}-{Path(member.name).stem}"
            )
            yield recording.to_cut()

    folder.mkdir(parents=True, exist_ok=True)
    CutSet(cuts()).to_shar(folder, fields={"recording": "flac"}, shard_size=members_per_shard)


def lhotse_batches(folder: Path, batch_seconds: float, workers: int) -> Batches:
    """Shar with a DynamicBucketingSampler in each worker, audio collated there."""
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler, make_worker_init_fn
    from lhotse.dataset.iterable_dataset import IterableDatasetWrapper

    cuts = CutSet.from_shar(in_dir=folder, split_for_dataloading=True, shuffle_shards=True, seed=1)
    sampler = DynamicBucketingSampler(
        cuts,
        max_duration=batch_seconds,
        num_buckets=10,
        buffer_size=1000,
        shuffle=True,
        rank=0,
        world_size=1,
    )
    dataset = IterableDatasetWrapper(dataset=_LhotseAudio(), sampler=sampler)
    start = make_worker_init_fn(rank=0, world_size=1, seed=1) if workers else None
    return iter_lazily(
        DataLoader(dataset, batch_size=None, num_workers=workers, worker_init_fn=start)
    )


class _LhotseAudio(torch.utils.data.Dataset):
    def __getitem__(self, cuts: object) -> tuple[torch.Tensor, torch.Tensor]:
        from lhotse.dataset.collation import collate_audio

        return collate_audio(cuts)


def lhotse_raw(folder: Path) -> Iterator[bytes]:
    """The audio members' bytes of Shar tars, streamed as Lhotse reads them."""
    from lhotse.shar.readers.tar import TarIterator

    tars = sorted(Path(folder).glob("recording.*.tar"))
    return (recording.sources[0].source for tar in tars for recording, _ in TarIterator(tar))
