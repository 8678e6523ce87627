"""What the report counts of batches: of which buckets they are, and nothing twice."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.asr.loading.collate import Batch
from millrace.asr.throughput.measure import BucketMeasure
from tests.asr import clips


@pytest.fixture
def measure() -> BucketMeasure:
    """Of two buckets with four rows each: the first row of the second one is row 4."""
    return BucketMeasure({"b_0_3": 4, "b_3_5": 4})


def measured(measure: BucketMeasure, *batches: Batch) -> dict:
    line = {"step": 0, "batches": 0, "samples": 0}
    for batch in batches:
        measure(line, batch)
    return line


def of_rows(rows: list[int], seconds: list[float], filler: bool = False) -> Batch:
    batch = clips.batch(seconds)
    batch.rows, batch.filler = np.array(rows), filler
    return batch


def test_the_batches_of_a_step_add_up_by_bucket(measure):
    line = measured(measure, of_rows([0, 3, 4], [1.0, 2.0, 4.0]), of_rows([3, 7], [1.0, 0.5]))
    assert line["buckets"] == {"b_0_3": (3, 4.0), "b_3_5": (2, 4.5)} and line["bucket"] is None
    assert line["samples"] == 5
    assert (line["audio_seconds"], line["padded_audio_seconds"]) == (8.5, 3 * 4.0 + 2 * 1.0)
    assert measured(measure, of_rows([4], [1.0]))["bucket"] == "b_3_5"


def test_a_filler_counts_nothing(measure):
    filler = of_rows([0, 1], [1.0, 1.0], filler=True)
    alone = measured(measure, of_rows([4], [1.0]))
    assert measured(measure, of_rows([4], [1.0]), filler) == alone
    assert measured(measure, filler)["samples"] == 0
