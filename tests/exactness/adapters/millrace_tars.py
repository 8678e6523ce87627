"""`open_tars` of Millrace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millrace.tars.loader import open_tars
from tests.exactness.adapters import About, OfMillrace, Place, Setting
from tests.tars.tars import write_tar

ABOUT = About(
    title="Millrace `open_tars`",
    packages=("millrace",),
    follows="docs/python.md, Any tars",
    promise="goes on at the next batch, with any number of ranks and workers",
    promised=("same", "workers", "ranks"),
)
TARS = 3


def write(folder: Path, samples: int) -> None:
    for number in range(TARS):
        members = [(f"{sample}.txt", b"%d" % sample) for sample in range(number, samples, TARS)]
        write_tar(folder / f"part-{number}.tar", members)


class TarBatches(OfMillrace):
    def __init__(self, setting: Setting, place: Place) -> None:
        self.loader = open_tars(
            setting.folder / "part-*.tar",
            batch_size=setting.batch_size,
            decode={"txt": int},
            seed=setting.seed,
            rank=place.rank,
            world_size=place.world_size,
            workers=place.workers,
        )

    def batches(self, epoch: int) -> Iterator[list[int]]:
        self.loader.set_epoch(epoch)
        for batch in self.loader:
            yield [] if batch.filler else [sample["txt"] for sample in batch.samples]


open = TarBatches
