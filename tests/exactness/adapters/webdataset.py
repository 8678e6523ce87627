"""webdataset: tars in a WebLoader. It has no state."""

from __future__ import annotations

from collections.abc import Iterator

import webdataset as wds

from tests.exactness.adapters import About, Place, Setting, millrace_tars

ABOUT = About(
    title="webdataset WebLoader",
    packages=("webdataset", "torch"),
    follows="webdataset, README; issues 177, 234 and 271 about resuming",
    promise="keeps no position: `resampled=True` draws with replacement, so that a start anew has"
    " the same distribution",
    promised=(),
    has_state=False,
)
write = millrace_tars.write


class Batches:
    def __init__(self, setting: Setting, place: Place) -> None:
        urls = sorted(map(str, setting.folder.glob("part-*.tar")))
        dataset = wds.WebDataset(urls, nodesplitter=wds.split_by_node, shardshuffle=False)
        dataset = dataset.decode().to_tuple("txt").batched(setting.batch_size)
        self.loader = wds.WebLoader(dataset, batch_size=None, num_workers=place.workers)

    def batches(self, epoch: int) -> Iterator[list[int]]:
        for (texts,) in self.loader:
            yield list(map(int, texts))

    def close(self) -> None: ...


open = Batches
