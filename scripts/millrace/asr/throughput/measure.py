"""What the throughput report counts of a batch: samples, seconds, padding, and of which buckets
they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from millrace.asr.loading.collate import Batch
from millrace.common.loading.decode import SAMPLING_RATE
from millrace.common.throughput.run import StepLine


class BucketMeasure:
    """Adds a batch to the line of its step; for millrace.common.throughput.recorder.

    `rows` are the numbers of rows of the buckets, in their order."""

    def __init__(self, rows: Mapping[str, int]) -> None:
        self._names = list(rows)
        # Where the rows of each bucket end in the concatenation of the bucket parquets.
        self._ends = np.cumsum(list(rows.values()))

    def __call__(self, line: StepLine, batch: Batch) -> None:
        line.setdefault("audio_seconds", 0.0)
        line.setdefault("padded_audio_seconds", 0.0)
        buckets = line.setdefault("buckets", {})
        if not batch.filler:  # whose samples are another batch's
            seconds = batch.lengths.cpu().numpy() / SAMPLING_RATE
            line["samples"] += len(batch)
            line["audio_seconds"] += float(seconds.sum())
            line["padded_audio_seconds"] += batch.audio.numel() / SAMPLING_RATE
            self._add(buckets, batch.rows, seconds)
        line["bucket"] = next(iter(buckets)) if len(buckets) == 1 else None

    def _add(
        self, buckets: dict[str, tuple[int, float]], rows: np.ndarray, seconds: np.ndarray
    ) -> None:
        """Add samples and seconds of audio to those of each bucket."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(numbers):
            inside = numbers == number
            name = self._names[number]
            samples, audio = buckets.get(name, (0, 0.0))
            samples += int(inside.sum())
            audio += float(seconds[inside].sum())
            buckets[name] = (samples, audio)
