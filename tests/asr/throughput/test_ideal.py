"""The ideal loader: the first batches of another loader, in memory of their own, again and
again."""

from __future__ import annotations

import pytest
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.throughput.loaders import IdealLoader
from millrace.common.loading.loader import BatchLoader
from tests.asr.audio_tars import ListedPlan, corpus

STEPS = [[list(range(start, start + 3))] for start in range(0, 24, 3)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RowTable:
    return RowTable.open(corpus(tmp_path_factory.mktemp("ideal")))


def _loader(table: RowTable, workers: int = 0, start_step: int = 0) -> BatchLoader:
    return BatchLoader(BucketedDataset(table, ListedPlan(STEPS)), workers, start_step)


def test_it_replays_the_first_batches_as_often_as_the_inner_loader_has_steps(
    table: RowTable,
) -> None:
    inner = list(_loader(table))
    batches = list(IdealLoader(_loader(table), cache_batches=3))
    assert [batch.step for batch in batches] == list(range(8))
    for place, batch in enumerate(batches):
        same = inner[place % 3]
        assert torch.equal(batch.audio, same.audio) and batch.transcripts == same.transcripts
        assert batch.sample_ids.tolist() == same.sample_ids.tolist()


def test_a_cache_larger_than_the_epoch_gives_the_epoch_from_private_memory(table: RowTable) -> None:
    loader = IdealLoader(_loader(table, workers=1, start_step=2), cache_batches=100)
    assert len(loader) == 6
    for _ in range(2):
        batches = list(loader)
        assert [(one.step, one.rows.tolist()) for one in batches] == [
            (n, STEPS[n][0]) for n in range(2, 8)
        ]
        assert not any(batch.audio.is_shared() for batch in batches)


def test_after_the_first_batch_nothing_is_read(
    table: RowTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = [], BucketedDataset.load
    monkeypatch.setattr(
        BucketedDataset, "load", lambda self, *rest: loaded.append(1) or load(self, *rest)
    )
    batches = iter(IdealLoader(_loader(table), cache_batches=3))
    next(batches)
    assert len(loaded) == 3
    assert len(list(batches)) == 7 and len(loaded) == 3


def test_changing_a_batch_leaves_the_cache_alone(table: RowTable) -> None:
    widths = set()
    for batch in IdealLoader(_loader(table), cache_batches=1):
        widths.add(tuple(batch.audio.shape))
        assert (
            batch.to("meta") is batch and batch.audio.device.type == "meta"
        )  # as a copy to a GPU does
        batch.transcripts = []
    assert len(widths) == 1
