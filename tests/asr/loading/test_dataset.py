"""BucketedDataset, BatchLoader: every row once, in order, for any workers; resume, epochs, bad
samples."""

from __future__ import annotations

import logging
import os
import pickle
import tarfile
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.reader import IndexedTarReader
from millrace.asr.loading.row_table import RowTable
from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.planner import plan_epoch
from millrace.common.errors import MillraceError
from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.plan import BatchRequest
from tests.asr.audio_tars import ListedPlan, corpus, encoded
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def dataset_of(buckets, steps=None, **options) -> BucketedDataset:
    table = RowTable.open(buckets)
    steps = steps or [[list(range(at, min(at + 5, len(table))))] for at in range(0, len(table), 5)]
    return BucketedDataset(table, ListedPlan(steps), **options)


def as_seen(batches) -> list:
    """What a run saw, comparable; copied, so that batches are let go."""
    return [
        (b.step, b.rows.tolist(), b.audio.tolist(), b.lengths.tolist(), b.transcripts)
        for b in batches
    ]


def test_a_batch_is_what_soundfile_reads_from_the_tars(tmp_path):
    buckets = corpus(tmp_path)
    parquets = [buckets / "train" / f"{name}.parquet" for name in ("b_0_3", "b_3_5")]
    rows = pa.concat_tables(map(pq.read_table, parquets)).to_pylist()
    dataset = dataset_of(buckets)
    batches = [dataset[step] for step in range(len(dataset))]
    assert sum(map(len, batches)) == 24
    for batch in batches:
        for at, row in enumerate(rows[number] for number in batch.rows):
            with tarfile.open(row["tar_path"]) as tar:
                wave = soundfile.read(tar.extractfile(row["tar_member_name"]), dtype="float32")[0]
            assert np.array_equal(batch.audio[at, : batch.lengths[at]].numpy(), wave)
            assert (
                batch.transcripts[at] == row["transcript"]
                and not batch.audio[at, len(wave) :].any()
            )
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@pytest.mark.parametrize(("worker", "lines"), [(0, 1), (1, 0)])
def test_of_copied_tars_the_first_worker_alone_says_so(
    tmp_path, monkeypatch, caplog, worker, lines
):
    buckets = corpus(tmp_path)
    for tar in tmp_path.glob("*.tar"):
        os.utime(tar, ns=(1, 1))
    place = "millrace.asr.loading.dataset.get_worker_info"
    monkeypatch.setattr(place, lambda: SimpleNamespace(id=worker))
    dataset = dataset_of(buckets)
    assert sum(len(dataset[step]) for step in range(len(dataset))) == 24
    assert caplog.text.count("is a copy of the one that was indexed") == lines


def test_a_slot_has_room_for_the_largest_batch(tmp_path):
    dataset = dataset_of(corpus(tmp_path), [[list(range(24))], [[0]]])
    samples = dataset[0].audio.shape[1]
    slots = dataset.new_slots(workers=1, per_worker=1)
    assert slots.take(0, 24, samples) is not None


def test_a_clip_louder_than_full_scale_ends_no_pass_where_it_comes_first(tmp_path):
    loud = encoded(np.linspace(-20, 20, 1000, dtype=np.float32), "WAV", "FLOAT")
    loader = BatchLoader(dataset_of(corpus(tmp_path, replace={"t0_0.wav": loud})))
    batches = list(loader)
    assert sum(map(len, batches)) == 24
    assert batches[0].audio.max() == 20


@pytest.mark.parametrize(
    "workers, method",
    [
        (1, "fork"),
        (3, "fork"),
        pytest.param(2, "spawn", marks=pytest.mark.long),
        pytest.param(2, "forkserver", marks=pytest.mark.long),
    ],
)
def test_order_and_content_do_not_depend_on_workers(tmp_path, workers, method):
    buckets = corpus(tmp_path, members=20)
    expected = as_seen(BatchLoader(dataset_of(buckets)))
    dataset = dataset_of(buckets, max_open_tars=1)
    loader = BatchLoader(dataset, workers, start_method=method, prefetch_batches=1)
    assert len(loader) == 12 and as_seen(loader) == expected
    batches = list(loader)  # more than slots: those that are kept stay as they were
    assert as_seen(batches) == expected and [batch.step for batch in batches] == list(range(12))
    # Where a batch's audio is moved to a device, nothing else holds its slot.
    assert all(batch.slot is None for batch in batches)
    assert np.concatenate([batch.rows for batch in batches]).tolist() == list(range(60))
    loader.start_step = 10  # resume, with the workers that are there
    assert as_seen(loader) == expected[10:] and len(loader) == 2
    loader.plan, loader.start_step = ListedPlan([[[23, 1]], [[5]]]), 0  # another epoch
    assert [(b.step, b.rows.tolist()) for b in loader] == [(0, [23, 1]), (1, [5])]
    loader.start_step = 2
    assert list(loader) == []


@pytest.mark.parametrize("members, world_size, workers, fillers", [(18, 2, 2, 0), (1, 4, 0, 1)])
def test_the_planners_epoch_is_seen_once_by_all_ranks_together(
    tmp_path, members, world_size, workers, fillers
):
    table = RowTable.open(corpus(tmp_path, members=members))
    plan = plan_epoch(table.durations(), BatchBudget(1.2), seed=1, epoch=3, world_size=world_size)
    batches = []
    for rank in range(world_size):
        batches += BatchLoader(BucketedDataset(table, plan, rank), workers)
    seen = [row for batch in batches if not batch.filler for row in batch.rows.tolist()]
    assert sorted(seen) == list(range(3 * members))
    assert sum(batch.filler for batch in batches) == fillers


def test_a_pass_that_was_broken_off_does_not_disturb_the_next(tmp_path):
    buckets = corpus(tmp_path)
    dataset = dataset_of(buckets)
    expected, loader = as_seen(BatchLoader(dataset)), BatchLoader(dataset, 2, prefetch_batches=2)
    other = BatchLoader(dataset, 2)  # two loaders over one dataset, at work at the same time
    for batch, twin in zip(loader, other, strict=False):
        assert as_seen([batch]) == as_seen([twin])
        if batch.step == 1:
            break
    for _ in range(2):
        assert as_seen(loader) == expected
    assert as_seen(other) == expected


def test_no_slot_stays_taken_when_workers_are_ended_at_work(tmp_path):
    steps = [[list(range(24))]] * 12
    loader = BatchLoader(dataset_of(corpus(tmp_path), steps), 2, prefetch_batches=2)
    next(iter(loader))
    loader.close()  # batches that nobody has received are lost with their workers
    assert [batch.step for batch in loader] == list(range(12))
    assert not loader.slots.busy.any()


@pytest.fixture
def damaged(tmp_path):
    """A corpus with three members that cannot be decoded, and a tar that is gone (six rows
    more)."""
    bad = {"t1_1.flac": b"", "t2_2.flac": b"<html>", "t1_9.flac": bytes(5000)}
    buckets = corpus(tmp_path, tars=4, members=6, replace=bad)
    os.unlink(tmp_path / "t3.tar")
    return buckets


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_counted_logged_and_left_out(damaged, workers, caplog):
    table = RowTable.open(damaged)
    paths = [table.tar_state(row.tar).path for row in table.rows(range(24))]
    gone = [number for number, path in enumerate(paths) if path.endswith("t3.tar")]
    # The batch without samples is a step.
    steps = [[[0]], [gone], [sorted({*range(1, 24)} - {*gone})]]
    loader = BatchLoader(dataset_of(damaged, steps), workers, max_bad_fraction=0.5)
    with caplog.at_level(logging.WARNING, logger="millrace"):
        batches = list(loader) + list(loader)
    reasons = {"tar_missing": 12, "empty": 2, "not_audio": 4}
    assert loader.bad.planned == 48 and loader.bad.reasons == reasons
    sizes = [(batch.step, len(batch), batch.planned) for batch in batches]
    assert sizes == [(0, 1, 1), (1, 0, 6), (2, 14, 17)] * 2
    assert all(batch.audio.shape[0] == len(batch) for batch in batches)
    if workers == 0:
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 9, "each bad sample once, not once an epoch"
        assert any(
            "t2_2.flac" in line and "t2.tar" in line and "not_audio" in line for line in lines
        )


def test_a_worker_logs_twenty_bad_samples_and_says_that_there_are_more(tmp_path, caplog):
    buckets = corpus(tmp_path)
    for tar in tmp_path.glob("*.tar"):
        tar.unlink()
    loader = BatchLoader(dataset_of(buckets), max_bad_fraction=1)
    list(loader)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.startswith("sample left out (tar_missing)") for line in lines] == [True] * 20 + [
        False
    ]
    assert "logs no further ones, but all are counted" in lines[-1] and loader.bad.count == 24


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_samples_stop_the_run(damaged, workers):
    loader, seen = BatchLoader(dataset_of(damaged), workers, max_bad_fraction=0.05), []
    with refused(r"^\d of 15 samples .*max_bad_fraction 0\.05 .*\.tar") as error:
        seen.extend(batch.step for batch in loader)
    bad = [len(dataset_of(damaged)[step].bad) for step in range(3)]
    assert seen == [0, 1] and sum(bad[:2]) <= 1 < sum(bad), "one in 24 rows is allowed, two are not"
    assert "t1_1.flac in " in str(error.value) or "t2_2.flac in " in str(error.value)
    assert str(error.value).startswith(f"{sum(bad)} of") and "Traceback" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_changed_tar_stops_the_run_with_the_remedy(tmp_path, workers):
    buckets = corpus(tmp_path)
    content = (tmp_path / "t1.tar").read_bytes()
    (tmp_path / "t1.tar").write_bytes(content[512:] + content[:512])
    os.utime(tmp_path / "t1.tar", ns=(5, 5))
    with pytest.raises(MillraceError) as error:
        list(BatchLoader(dataset_of(buckets), workers, max_bad_fraction=1))
    assert (
        error.value.where == str(tmp_path / "t1.tar") and "snakemake asr_data" in error.value.remedy
    )
    assert "Traceback" not in str(error.value)


class Watched(BucketedDataset):
    """Its batches' languages are facts of the worker: (process, open tars, threads, open files)."""

    def load(self, request: BatchRequest, slots=None):
        batch, worker = super().load(request, slots), psutil.Process()
        # Only this table's: a worker also inherits what other tests have left open in this process.
        folder = os.path.dirname(self.table.tar_state(0).path)
        tars = sum(os.path.dirname(file.path) == folder for file in worker.open_files())
        batch.languages = [(os.getpid(), tars, torch.get_num_threads(), worker.num_fds())] * len(
            batch
        )
        return batch


def test_a_worker_holds_few_files_however_many_tars(tmp_path):
    buckets = corpus(tmp_path, tars=90, members=2)
    steps = [[np.random.default_rng(step).integers(0, 180, 6).tolist()] for step in range(40)]
    dataset = Watched(RowTable.open(buckets), ListedPlan(steps), max_open_tars=8)
    pids, tars, threads, files = zip(
        *(batch.languages[0] for batch in BatchLoader(dataset, 2)), strict=True
    )
    assert len(set(pids)) == 2 and max(tars) <= 8 and set(threads) == {1}
    assert max(files[20:]) <= max(files[:20]) + 1


def test_slots_are_made_if_there_is_room_for_all_of_them(tmp_path, monkeypatch, caplog):
    table = RowTable.open(corpus(tmp_path))
    dataset = BucketedDataset(table, ListedPlan([[[0, 1]]]))
    needed = 2 * 3 * 20_000 * 4  # workers, slots, samples of 1.25 s, the least
    room = SimpleNamespace(f_bavail=needed, f_frsize=1, f_blocks=9 * needed)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    assert dataset.new_slots(2, 3) is not None
    room.f_bavail -= 1
    assert dataset.new_slots(2, 3) is None
    assert "/dev/shm has 0 MB free, and batches under way" in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_the_inner_loader_gives_the_first_epoch_too_and_refuses_to_read_without_a_plan(
    tmp_path, workers
):
    table = RowTable.open(corpus(tmp_path, members=4))
    dataset = BucketedDataset(table)
    with refused("the data set has no plan"):
        list(BatchLoader(dataset, workers).data_loader)
    loader = BatchLoader(dataset, workers, plans=lambda epoch: ListedPlan([[[epoch, 3]]]))
    ((batch, _),) = loader.data_loader
    assert batch.rows.tolist() == [0, 3]
    # Workers that are spawned are not sent the function, which could not be sent.
    sent = pickle.loads(pickle.dumps(loader.data_loader.dataset))
    assert sent.plans is None and len(loader.dataset) == 1


def test_the_following_batch_is_announced_to_the_kernel(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(IndexedTarReader, "will_need", lambda _, requests: told.append(requests))
    dataset = dataset_of(corpus(tmp_path, members=4), [[[0, 2]], [[1]], [[3]]])
    list(BatchLoader(dataset))
    rows = dataset.table.rows(np.arange(4))
    expected = [[(rows[row].tar, rows[row].offset, rows[row].size)] for row in (1, 3)]
    following = [requests for requests in told if requests]
    assert [following.count(requests) for requests in expected] == [2, 2]  # and when they are read
