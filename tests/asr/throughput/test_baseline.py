"""The baseline's loader: the samples that ours gives, read and decoded as fine-tuning scripts
do."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
import torch

from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.row_table import RowTable
from millrace.asr.throughput.loaders import (
    BaselineLoader,
    BaselinePlan,
    TarfileReader,
    soundfile_wave,
)
from millrace.common.loading.decode import DecodeError, decode
from tests.asr.audio_tars import RATE, ListedPlan, corpus, encoded, noise
from tests.refusals import refused


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> RowTable:
    return RowTable.open(corpus(tmp_path_factory.mktemp("baseline")))


def _loader(table: RowTable, size: int, **limits: float) -> BaselineLoader:
    return BaselineLoader(table, BaselinePlan(table, size, 1, 0), **limits)


def test_audio_and_texts_equal_ours_bit_for_bit(table):
    loader = _loader(table, 5)
    plan = loader.plan
    ours = BucketedDataset(
        table, ListedPlan([[plan.batch(step, 0).tolist()] for step in range(len(plan))])
    )
    batches = list(loader)
    assert len(batches) == len(plan) == 24 // 5
    for step, batch in enumerate(batches):
        other = ours[step]
        assert torch.equal(batch.audio, other.audio) and torch.equal(batch.lengths, other.lengths)
        for name in ("transcripts", "languages", "planned", "bad", "filler", "step"):
            assert getattr(batch, name) == getattr(other, name), name
        for name in ("rows", "sample_ids", "duration_s"):
            mine, theirs = getattr(batch, name), getattr(other, name)
            assert mine.dtype == theirs.dtype and (mine == theirs).all(), name


def test_it_scans_each_tar_with_tarfile_and_reads_through_it(table, monkeypatch):
    opened, extracted = [], []
    open_tar, extract = tarfile.open, tarfile.TarFile.extractfile
    monkeypatch.setattr(
        tarfile, "open", lambda path, *rest: opened.append(path) or open_tar(path, *rest)
    )
    patched = tarfile.TarFile, "extractfile"
    monkeypatch.setattr(*patched, lambda tar, one: extracted.append(one.name) or extract(tar, one))
    loader = _loader(table, 4)
    assert sum(len(batch) for batch in loader) == 24 == len(set(extracted)) == len(extracted)
    assert len(opened) == 3 == len(set(opened))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 12, 30])
def test_ranks_take_equal_steps_and_share_no_row(table, world_size, batch_size):
    plan = BaselinePlan(table, batch_size, 3, 0, world_size)
    places = [(step, rank) for rank in range(world_size) for step in range(len(plan))]
    batches = [plan.batch(*place).tolist() for place in places if not plan.is_filler(*place)]
    rows = [row for batch in batches for row in batch]
    assert all(batches) and len(rows) == len(set(rows)) and set(rows) <= set(range(24))
    if batch_size * world_size <= 24:
        assert {len(batch) for batch in batches} == {batch_size}
        assert len(rows) == 24 // (batch_size * world_size) * batch_size * world_size
    else:
        assert len(plan) == 1 and len(rows) == 24
    for rank in range(world_size):
        batches = list(BaselineLoader(table, plan, rank))
        fillers = [batch.filler for batch in batches]
        assert fillers == [plan.is_filler(step, rank) for step in range(len(plan))]
        assert all(map(len, batches))


def test_the_order_depends_on_seed_and_epoch_alone(table):
    keys = [(seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    orders = {key: tuple(BaselinePlan(table, 4, *key).order) for key in keys}
    assert len(set(orders.values())) == 4
    assert orders[1, 0] == tuple(BaselinePlan(table, 9, 1, 0, 2).order)
    assert all(sorted(order) == list(range(24)) for order in orders.values())


def test_rows_are_shuffled_within_neighbouring_tars(table):
    tars = {number: table.rows([number])[0].tar for number in range(24)}
    order = BaselinePlan(table, 4, 5, 0, window=8).order
    groups = [{tars[row] for row in order[start : start + 8]} for start in (0, 8, 16)]
    assert sorted(len(group) for group in groups) == [1, 1, 1] and len(set.union(*groups)) == 3
    assert list(order) != sorted(order, key=lambda row: (tars[row], row))


def test_a_pass_starts_at_the_start_step_of_its_plan(table):
    whole = [batch.rows.tolist() for batch in _loader(table, 4)]
    loader = _loader(table, 4)
    loader.start_step = 3
    assert len(loader) == 3 and [batch.rows.tolist() for batch in loader] == whole[3:]
    loader.start_step = 1
    assert [(batch.step, batch.rows.tolist()) for batch in loader] == list(enumerate(whole))[1:]
    loader.start_step = 6
    assert len(loader) == 0 and list(loader) == []
    loader.plan, loader.start_step = BaselinePlan(table, 4, 1, epoch=1), 0
    assert next(iter(loader)).rows.tolist() == loader.plan.batch(0, 0).tolist() != whole[0]


def test_what_cannot_be_used_is_left_out_and_counted(tmp_path):
    flac = encoded(noise(4000, 1))
    damaged = {"t1_1.flac": flac[: len(flac) // 2], "t2_2.flac": b"", "t0_3.flac": b"no audio"}
    table = RowTable.open(corpus(tmp_path, replace=damaged))
    loader = _loader(table, 24, max_bad_fraction=0.2)
    (batch,) = loader
    assert {sample.row for sample in batch.bad} == set(range(24)) - set(batch.rows.tolist())
    assert (len(batch), batch.planned, loader.bad.count) == (21, 24, 3)
    with refused("3 of 24"):
        list(_loader(table, 24, max_bad_fraction=0.05))
    (tmp_path / "t1.tar").unlink()
    loader = _loader(table, 24, max_bad_fraction=1.0)
    assert [len(batch) for batch in loader] == [14] and loader.bad.reasons["unreadable"] == 8


def test_members_are_read_by_either_spelling_and_what_is_none_says_so(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_bytes(b"bytes")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("./file", "dir"):
            tar.add(tmp_path / name, name)
    reader = TarfileReader()
    for name in ("file", "./file"):
        assert reader.read(str(tmp_path / "a.tar"), name) == b"bytes"
    for name, reason in (("dir", "not_a_file"), ("other", "missing")):
        with pytest.raises(DecodeError) as error:
            reader.read(str(tmp_path / "a.tar"), name)
        assert error.value.reason == reason


@pytest.mark.parametrize(
    "container, subtype, rate, channels",
    [("WAV", "PCM_24", RATE, 1), ("FLAC", None, RATE, 2), ("WAV", "FLOAT", 8000, 1)],
)
def test_soundfile_decodes_as_we_do(container, subtype, rate, channels):
    sound = noise(5000, 3, channels)
    if subtype == "FLOAT":
        sound = sound / 32768
    raw = encoded(sound, container, subtype, rate)
    mine, ours = soundfile_wave(raw), decode(raw)
    assert mine.dtype == np.float32 and np.array_equal(mine, ours)
    with pytest.raises(DecodeError):
        soundfile_wave(encoded(sound[:0], container, subtype, rate))
