"""What a data set checks where its first batch leaves it, and before its workers start."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.common.errors import MillraceError
from millrace.common.loading.loader import BatchLoader
from millrace.image.training.batches import RecordBatches
from millrace.image.training.plan import BlockPlan, Shape
from millrace.music.sampling.dataset import CliqueDataset
from millrace.music.sampling.plan import Blocks, plan_anchors
from millrace.music.training import conf
from millrace.music.training.task import VersionTask
from tests.asr import audio_tars
from tests.asr.loading.test_dataset import ListedPlan
from tests.image.record_sets import write_set
from tests.music import versions
from tests.refusals import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("boundary")


@pytest.fixture(scope="module")
def asr(folder):
    table = RowTable.open(audio_tars.corpus(folder / "asr", tars=1, members=4))
    return BucketedDataset(table, ListedPlan([[[0, 1, 2, 3]]]))


@pytest.fixture(scope="module")
def image(folder):
    records = write_set(folder / "image", [16])
    data = RecordBatches(records, folder, 4, 16)
    data.plan = BlockPlan(16, 1, {1: Shape(16)})
    return data


@pytest.fixture(scope="module")
def music(folder):
    versions.corpus(folder / "music")
    task = VersionTask(conf.read(versions.overrides(folder / "music")), folder)
    data: CliqueDataset = task.batch_loader(0).dataset
    data.plan = plan_anchors(data.cliques, Blocks(4, 1), 0, 1)
    return data


@pytest.mark.parametrize(
    "lane, field, change, words",
    [
        ("asr", "audio", lambda x: x * 32768, "not float32 from -1 to 1"),
        ("asr", "audio", lambda x: x.abs() * -32768, "not float32 from -1 to 1"),
        ("asr", "audio", lambda x: x.double(), "sound is torch.float64"),
        ("asr", "audio", lambda x: x * float("nan"), "from nan to nan"),
        ("image", "images", lambda x: x.float() / 255, "images are torch.float32"),
        ("image", "images", lambda x: x.permute(0, 3, 1, 2), "not uint8 (n, 4, 4, 3)"),
        ("image", "images", lambda x: x[..., :1], "not uint8 (n, 4, 4, 3)"),
        ("image", "images", lambda x: (x > 6).byte(), "they were scaled to [0, 1] before"),
        ("music", "x", lambda x: 20 * (x + 1e-9).log10() - 40, "of decibels they are"),
        ("music", "x", lambda x: x.transpose(2, 3), "shingles are torch.float32"),
        ("music", "x", lambda x: x * float("inf"), "NaN or infinite"),
    ],
)
def test_values_that_no_model_expects_end_training_at_its_first_batch(
    lane, field, change, words, request, monkeypatch
):
    data = request.getfixturevalue(lane)
    assert len(list(BatchLoader(data))) == len(data)
    right = data.load
    monkeypatch.setattr(
        data,
        "load",
        lambda *args: replace(batch := right(*args), **{field: change(getattr(batch, field))}),
    )
    with pytest.raises(MillraceError) as caught:
        next(iter(BatchLoader(data)))
    assert words in str(caught.value) and "step 0" in str(caught.value)


@pytest.mark.parametrize("rows", [[0, 4], [-1, 0]])
def test_a_plan_of_other_rows_than_there_are_is_refused(asr, rows):
    data = BucketedDataset(asr.table, ListedPlan([[np.array(rows)]]))
    with refused(f"rows {min(rows)} to {max(rows)} of 4"):
        next(iter(BatchLoader(data)))


def test_no_worker_can_free_what_a_cycle_of_before_holds_of_a_gpu(asr, monkeypatch):
    class Event:
        pass

    event = Event()
    event.itself = event
    is_there = weakref.ref(event)
    del event
    seen = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    loader = BatchLoader(asr, workers=1)
    gc.disable()
    try:
        for _ in loader:
            seen.append(is_there())
    finally:
        gc.enable()
        loader.close()
    assert seen and not any(seen)


@pytest.mark.parametrize("lane", ["image", "music"])
def test_workers_are_not_started_without_room_for_their_batches(lane, request, monkeypatch):
    data = request.getfixturevalue(lane)
    size = sum(
        t.numel() * t.element_size()
        for t in vars(next(iter(BatchLoader(data)))).values()
        if torch.is_tensor(t)
    )
    for free, fits in ((3 * size, True), (size, False)):
        monkeypatch.setattr(
            os, "statvfs", lambda path, free=free: SimpleNamespace(f_bavail=free, f_frsize=1)
        )
        if fits:
            assert data.new_slots(2, 3) is None
            continue
        with refused(r"/dev/shm has 0 MB free.*--shm-size"):
            data.new_slots(2, 3)
