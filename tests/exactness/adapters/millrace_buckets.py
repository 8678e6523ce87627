"""`open_loader` of Millrace, over buckets of clips that are not decoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from millrace.asr.planning.loader import open_loader
from tests.asr.audio_tars import write_buckets, write_tar
from tests.exactness.adapters import About, OfMillrace, Place, Setting

ABOUT = About(
    title="Millrace `open_loader`",
    packages=("millrace",),
    follows="docs/python.md, Resume",
    promise="goes on at the next batch, with any number of ranks and workers",
    promised=("same", "workers", "ranks"),
)


def write(folder: Path, samples: int) -> None:
    """Clips of 1.0 to 1.9 s in two buckets."""
    tar = folder / "clips.tar"
    places = write_tar(tar, {f"clip_{sample}": b"%d" % sample for sample in range(samples)})
    rows = []
    for sample, (name, (offset, size)) in enumerate(places.items()):
        row = {"tar_path": str(tar), "tar_member_name": name, "offset": offset, "size": size}
        row |= {"sample_id": sample, "duration_s": 1.0 + sample % 10 / 10, "transcript": name}
        rows.append(row | {"language": None})
    write_buckets(folder / "buckets", {"b_0": rows[::2], "b_1": rows[1::2]}, [tar])


def decode(member: bytes) -> np.ndarray:
    """A clip's length in memory does not matter here, only which one it is."""
    return np.full(16, float(member) / 1000, np.float32)


class BucketBatches(OfMillrace):
    def __init__(self, setting: Setting, place: Place) -> None:
        self.loader = open_loader(
            setting.folder / "buckets",
            workers=place.workers,
            seconds=1.9 * setting.batch_size,
            seed=setting.seed,
            rank=place.rank,
            world_size=place.world_size,
            decode=decode,
        )

    def batches(self, epoch: int) -> Iterator[list[int]]:
        self.loader.set_epoch(epoch)
        for batch in self.loader:
            yield [] if batch.filler else [int(sample) for sample in batch.sample_ids]


open = BucketBatches
