"""datasets: the same stream, shuffled."""

from __future__ import annotations

from tests.exactness.adapters import Place, Setting, datasets_stream

ABOUT = datasets_stream.ABOUT._replace(
    title="datasets IterableDataset, `shuffle`",
    promise="examples from shuffle buffers are lost when resuming",
    promised=(),
)
write = datasets_stream.write
BUFFER = 16


def open(setting: Setting, place: Place) -> datasets_stream.StreamBatches:
    return datasets_stream.StreamBatches(setting, place, BUFFER)
