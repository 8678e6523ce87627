"""Windows and batches: shapes, draws, start methods, and tracks that cannot be read."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os

import numpy as np
import pytest
import torch

from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.plan import BatchRequest
from millrace.music.features.reader import WindowReader
from millrace.music.features.track import Contract
from millrace.music.sampling.cliques import read_cliques
from millrace.music.sampling.dataset import CliqueDataset, Drawing
from millrace.music.sampling.plan import Blocks, plan_anchors
from millrace.music.sampling.windows import Geometry, ShingleReader
from tests.music.features import trees
from tests.music.versions import corpus
from tests.refusals import refused

SHORT = Geometry(100, 40, 40)


def dataset(
    folder, geometry: Geometry = SHORT, *, files: int = 16, augment=None, **drawing
) -> CliqueDataset:
    index = trees.FeatureIndex(folder / "features.index")
    cliques = read_cliques({"train": f"{folder}/train.json"}, index)["train"]
    return CliqueDataset(
        cliques,
        ShingleReader(WindowReader(index, max_open_files=files), Contract()),
        geometry,
        Drawing(43, **drawing),
        augment=augment,
    )


def one(data: CliqueDataset, anchors: list[int], epoch: int = 0):
    return data.load(BatchRequest(0, np.array(anchors), epoch=epoch))


def test_a_batch_is_versions_by_slot(tmp_path):
    corpus(tmp_path)
    data = dataset(tmp_path, n_per_class=5)
    batch = one(data, [0, 4])
    assert batch.x.shape == (10, 3, 84, 40) and batch.x.dtype == torch.float32
    assert batch.cc.tolist() == [0, 1] * 5 and batch.cc.dtype == batch.ii.dtype == torch.int64
    # Three versions fill five slots: the others in turn, never the anchor itself.
    slots = batch.ii.view(5, 2).T.tolist()
    assert (
        [row[0] for row in slots] == [0, 4]
        and slots[0][1:3] == slots[0][3:5]
        and {*slots[0]} == {0, 1, 2}
    )
    # Drawn by seed, epoch and anchor, not by the batch.
    again = one(dataset(tmp_path, n_per_class=5), [4])
    assert torch.equal(again.x, batch.x[1::2])
    assert not torch.equal(one(data, [0, 4], epoch=1).x, batch.x)
    assert 0 in one(dataset(tmp_path, p_samesong=1.0, n_per_class=4), [0]).ii[1:].tolist()


def test_the_next_epoch_has_other_versions_windows_and_augmentations(tmp_path):
    # Of seven versions three: which ones, and in which order, changes.
    corpus(tmp_path / "many", {"train": (2, 7)})
    data = dataset(tmp_path / "many", n_per_class=3)
    versions = [one(data, [0], epoch).ii.tolist() for epoch in range(6)]
    assert {row[0] for row in versions} == {0} and len({frozenset(row) for row in versions}) > 2
    # Of two versions the other one, each time from another place, in each slot of its own.
    corpus(tmp_path / "two", {"train": (2, 2)})
    data = dataset(tmp_path / "two", n_per_class=3)
    first, second = one(data, [0], 0), one(data, [0], 1)
    assert first.ii.tolist() == second.ii.tolist() == [0, 1, 1]
    assert not any(torch.equal(first.x[slot], second.x[slot]) for slot in range(3))
    assert not torch.equal(first.x[1], first.x[2])
    # A window as long as the track has one place; what is drawn of it differs by epoch and slot.
    drawn = dataset(
        tmp_path / "two",
        Geometry(140, 40, 40),
        n_per_class=3,
        augment=lambda shingles, draws: torch.full_like(shingles, draws.random()),
    )
    numbers = [float(value) for epoch in (0, 1) for value in one(drawn, [0], epoch).x[:, 0, 0, 0]]
    assert len(set(numbers)) == 6
    assert [float(value) for value in one(drawn, [0], 0).x[:, 0, 0, 0]] == numbers[:3]


def test_windows_are_drawn_from_the_beginning_of_a_track_up_to_maxlen(tmp_path):
    corpus(tmp_path, {"train": (2, 2)})
    data = dataset(tmp_path, Geometry(20, 20, 20, 30), n_per_class=2)
    index, reader = data.reader.windows.index, data.reader
    frames, hop = int(data.cliques.frames[0]), float(data.cliques.hops[0])
    track = int(data.cliques.tracks[0])
    windows = {
        reader.read(track, frames, hop, start, data.geometry).tobytes() for start in range(11)
    }
    seen = {one(data, [0], epoch).x[0].numpy().tobytes() for epoch in range(80)}
    assert index.frames()[track] == frames and seen == windows


@pytest.mark.parametrize("value, words", [(float("nan"), "NaN"), (-1.0, "below 0")])
def test_a_batch_that_is_no_linear_magnitude_is_refused(tmp_path, value, words):
    corpus(tmp_path, {"train": (2, 2)})
    data = dataset(tmp_path, n_per_class=2)
    batch = one(data, [0, 2])
    data.check(batch)  # as it is read
    batch.x[0, 0] = value
    with refused(words):
        data.check(batch)
    batch = one(data, [0, 2])
    batch.x = batch.x.double()
    with refused(r"shingles are torch\.float64"):
        data.check(batch)


def test_windows_start_at_whole_frames_and_the_last_shingle_is_filled_by_repetition(tmp_path):
    index = corpus(tmp_path, {"train": (1, 2)})
    windows = WindowReader(index)
    frames, hop = int(index.frames()[0]), 0.02
    averaged = windows.read(0, 0, frames)[:, : frames // 5 * 5].reshape(84, -1, 5).mean(2)
    reader = ShingleReader(windows, Contract())
    shingles = reader.read(0, frames, hop, 7, Geometry(100, 40, 20))
    assert shingles.shape == (4, 84, 40)
    np.testing.assert_allclose(shingles[1], averaged[:, 27:67], rtol=1e-6)
    filled = reader.read(0, frames, hop, 7, Geometry(100, 40, 40))[-1]
    np.testing.assert_allclose(
        filled, np.concatenate([averaged[:, 87:107], averaged[:, 7:27]], 1), rtol=1e-6
    )
    # A track shorter than the window is repeated as a whole.
    long = Geometry(300, 40, 40)
    repeated = reader.read(0, frames, hop, 0, long).swapaxes(0, 1).reshape(84, -1)
    have = averaged.shape[1]
    np.testing.assert_allclose(repeated[:, have : have + 50], averaged[:, :50], rtol=1e-6)
    filled = reader.read(0, frames, hop, 0, Geometry(300, 40, 50))[-1]
    np.testing.assert_allclose(filled, averaged[:, :40], rtol=1e-6)
    # The published lengths: 150 s, shingles of 20 s every 20 and every 10 s.
    assert [
        len(reader.read(0, frames, hop, 0, Geometry(1500, 200, step))) for step in (200, 100)
    ] == [8, 14]
    # One shingle too can be written to, or torch would warn of it.
    one = reader.read(0, frames, hop, 0, Geometry(40, 40, 40))
    assert len(one) == 1 and one.flags.writeable


def checksums(data: CliqueDataset, workers: int, method: str | None) -> list[str]:
    data.plan = plan_anchors(data.cliques, Blocks(4, 43), 0, 1)
    loader = BatchLoader(data, workers, start_method=method)
    sums = [
        hashlib.sha256(batch.x.numpy().tobytes() + batch.ii.numpy().tobytes()).hexdigest()
        for batch in loader
    ]
    loader.close()
    return sums


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.long),
        pytest.param("forkserver", marks=pytest.mark.long),
    ],
)
def test_every_window_of_an_epoch_is_the_same_under_every_start_method(tmp_path, method):
    corpus(tmp_path, chunks=4)
    expected = checksums(dataset(tmp_path), 0, None)
    assert len(expected) == 4 and method in multiprocessing.get_all_start_methods()
    assert checksums(dataset(tmp_path, files=1), 1, method) == expected


def test_a_track_that_cannot_be_read_is_replaced_within_its_clique_and_counted(tmp_path, caplog):
    index = corpus(tmp_path, {"train": (2, 3)}, chunks=6)
    data = dataset(tmp_path, n_per_class=3)
    lost, rest = data.cliques.tracks[0], data.cliques.tracks[3:]
    os.remove(index.track(int(lost)).file)
    with caplog.at_level(logging.WARNING, "millrace"):
        batch = one(data, [0, 1, 4])
    assert 0 not in batch.ii.tolist() and batch.cc.tolist() == [0, 0, 1] * 3 and bool(batch.x.any())
    assert {bad.reason for bad in batch.bad} == {"file_missing"} and {
        bad.sample_id for bad in batch.bad
    } == {0}
    assert sum("replaced by another of its clique" in line for line in caplog.messages) == 1
    # In whatever place the lost one is drawn, the others of its clique stay.
    assert all(one(data, [1], epoch).cc.tolist() == [0] * 3 for epoch in range(4))
    data.plan = plan_anchors(data.cliques, Blocks(3, 43), 0, 1)
    with refused("more than max_bad_fraction"):
        list(BatchLoader(data, max_bad_fraction=0.01))
    for track in data.cliques.tracks[1:3]:
        os.remove(index.track(int(track)).file)
    # Nothing of the clique is left: the next one takes its place, each loss is counted once.
    batch = one(dataset(tmp_path, n_per_class=3), [0])
    assert sorted(bad.row for bad in batch.bad) == [0, 1, 2] and batch.cc.tolist() == [1] * 3
    for track in rest:
        os.remove(index.track(int(track)).file)
    with refused("can be read"):
        one(dataset(tmp_path), [0])
