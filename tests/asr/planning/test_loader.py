"""open_loader: its rank, a plan an epoch, resume at the batch, hooks in workers, what other
trainers ask."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import multiprocessing
import pickle
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from millrace.asr.planning import epochs as epochs_module
from millrace.asr.planning.loader import current_rank, open_loader
from millrace.asr.planning.planner import plan_epoch
from millrace.common.errors import MillraceError
from millrace.common.loading.decode import DecodeError
from tests.asr.audio_tars import change_config, corpus
from tests.refusals import refused


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch) -> None:
    """The environment of one process."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def buckets(tmp_path_factory) -> Path:
    """Buckets of 24 rows; do not change them."""
    return corpus(tmp_path_factory.mktemp("corpus"))


ROWS = list(range(24))


def rows_of(batches) -> list[int]:
    """The rows of all batches, sorted."""
    return sorted(row for batch in batches if not batch.filler for row in batch.rows.tolist())


def set_ranks(monkeypatch, text: str) -> None:
    """Set what `text` says of RANK and WORLD_SIZE, as in "RANK=1 WORLD_SIZE=2"."""
    for name, value in (pair.split("=") for pair in text.split()):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "environment, given, place",
    [
        ("", {}, (0, 1)),
        ("WORLD_SIZE=1", {}, (0, 1)),
        ("RANK= WORLD_SIZE=", {}, (0, 1)),
        ("RANK=2 WORLD_SIZE=3", {}, (2, 3)),
        ("RANK=0 WORLD_SIZE=1", {}, (0, 1)),
        ("RANK=2 WORLD_SIZE=3", {"rank": 2}, (2, 3)),
        ("RANK=2 WORLD_SIZE=3", {"rank": 2, "world_size": 3}, (2, 3)),
        ("", {"rank": 1, "world_size": 2}, (1, 2)),
        ("", {"rank": 0}, (0, 1)),
    ],
)
def test_the_rank_is_the_one_that_runs_or_the_one_that_is_given(
    buckets, monkeypatch, environment, given, place
):
    set_ranks(monkeypatch, environment)
    loader = open_loader(buckets, seconds=1.0, **given)
    assert (loader.dataset.rank, loader.plan.world_size) == place
    if not given:
        assert current_rank() == place


@pytest.mark.parametrize(
    "environment, given, message",
    [
        ("RANK=0", {}, r"does not say which rank this is \(RANK=0, WORLD_SIZE=\(unset\)\)"),
        ("WORLD_SIZE=2", {}, r"does not say which rank this is \(RANK=\(unset\), WORLD_SIZE=2\)"),
        ("RANK=2 WORLD_SIZE=2", {}, "does not say which rank"),
        ("RANK=-1 WORLD_SIZE=2", {}, "does not say which rank"),
        ("RANK=first WORLD_SIZE=2", {}, "does not say which rank"),
        (
            "RANK=1 WORLD_SIZE=2",
            {"rank": 0},
            r"rank 0 of 2 \(as given\), but this is rank 1 of 2 \(RANK",
        ),
        ("RANK=0 WORLD_SIZE=2", {"world_size": 1}, "rank 0 of 1 .* but this is rank 0 of 2"),
        (
            "RANK=0 WORLD_SIZE=1",
            {"rank": 0, "world_size": 2},
            "rank 0 of 2 .* but this is rank 0 of 1",
        ),
        ("", {"world_size": 2}, "world_size is 2, and nothing says which rank this is"),
        ("", {"rank": 1}, "there is no rank 1 of 1"),
        ("", {"rank": 2, "world_size": 2}, "there is no rank 2 of 2"),
        ("", {"rank": -1, "world_size": 2}, "there is no rank -1 of 2"),
        ("", {"world_size": 0}, "there is no rank 0 of 0"),
        ("", {"rank": "0"}, "rank is '0'. Give a whole number"),
        ("", {"rank": 0, "world_size": "2"}, "world_size is '2'. Give a whole number"),
        ("", {"workers": "2"}, "workers is '2'. Give a whole number from 0"),
        ("", {"seed": "7"}, "seed is '7'. Give a whole number"),
        ("", {"seconds": "240"}, "seconds is '240'. Give a number above 0"),
        ("", {"seconds": True}, "seconds is True. Give a number above 0"),
        ("", {"tar_root": b"x"}, "tar_root is b'x'. Give a path"),
        ("", {"decode": 5}, "decode is 5. Give a function"),
        ("", {"transform": 0}, "transform is 0. Give a function"),
    ],
)
def test_what_is_given_must_fit_what_runs(buckets, monkeypatch, environment, given, message):
    set_ranks(monkeypatch, environment)
    with refused(message):
        open_loader(buckets, **given)


def read_in_a_group(buckets, store, rank: int, answers) -> None:
    """The rows that a rank of a process group of two gets, and what it is told if it asks for
    another's."""
    torch.set_num_threads(1)  # OpenMP does not outlive a fork
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    rows = rows_of(open_loader(buckets, seconds=1.0))
    try:
        open_loader(buckets, rank=1 - rank, world_size=2)
    except MillraceError as error:
        answers.put((rank, rows, error.problem))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_ranks_of_a_process_group_read_every_row_once(buckets, tmp_path, monkeypatch, method):
    # What runs is the group, whatever is left in the environment.
    set_ranks(monkeypatch, "RANK=0 WORLD_SIZE=1")
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    ranks = [
        context.Process(target=read_in_a_group, args=(buckets, tmp_path / "store", rank, answers))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    told = {rank: (rows, problem) for rank, rows, problem in (answers.get(), answers.get())}
    assert sorted(told[0][0] + told[1][0]) == ROWS and told[0][0] and told[1][0]
    assert all(
        f"but this is rank {rank} of 2 (torch.distributed)" in told[rank][1] for rank in told
    )


def test_a_loader_that_was_opened_before_its_ranks_is_refused(buckets, monkeypatch):
    loader = open_loader(buckets, seconds=1.0)
    assert len(list(loader)) == len(loader)
    set_ranks(monkeypatch, "RANK=1 WORLD_SIZE=2")
    with refused(r"opened for rank 0 of 1 .* but this is rank 1 of 2"):
        list(loader)
    other = open_loader(buckets, seconds=1.0)
    set_ranks(monkeypatch, "RANK=0 WORLD_SIZE=2")
    with refused(r"opened for rank 1 of 2 .* but this is rank 0 of 2"):
        list(other)


@pytest.fixture
def log_file(tmp_path):
    """What this process and its workers log."""
    handler = logging.FileHandler(tmp_path / "log.txt")
    logging.getLogger("millrace").addHandler(handler)
    yield tmp_path / "log.txt"
    logging.getLogger("millrace").removeHandler(handler)
    handler.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_copied_tars_are_read_from_their_new_folder_and_said_in_one_line(
    tmp_path, workers, log_file
):
    buckets = corpus(tmp_path / "old")
    (tmp_path / "new").mkdir()
    for tar in (tmp_path / "old").glob("*.tar"):
        shutil.copyfile(tar, tmp_path / "new" / tar.name)
        tar.unlink()
    loader = open_loader(buckets, workers, seconds=1.0, tar_root=tmp_path / "new")
    assert rows_of(loader) == rows_of(loader) == ROWS
    loader.close()
    (line,) = log_file.read_text().splitlines()
    assert f"{tmp_path}/new/t" in line and "is a copy of the one that was indexed" in line


def handed_out(loader, first: int = 0) -> Iterator[tuple]:
    """(epoch, step, rows) of all batches up to epoch 2."""
    for epoch in range(first, 3):
        loader.set_epoch(epoch)
        for batch in loader:
            yield batch.epoch, batch.step, batch.rows.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_goes_on_at_the_next_batch_and_epochs_follow(buckets, workers):
    whole = [*handed_out(open_loader(buckets, workers, seconds=1.0))]
    orders = [
        [row for epoch, _, rows in whole if epoch == number for row in rows] for number in range(3)
    ]
    assert orders[0] != orders[1] != orders[2]
    assert all(sorted(order) == ROWS for order in orders)
    for stop in (1, len(whole) // 2, len(whole) - 1):
        loader = open_loader(buckets, workers, seconds=1.0)
        passes = handed_out(loader)
        assert [next(passes) for _ in range(stop)] == whole[:stop]
        resumed = open_loader(buckets, workers, seconds=1.0)
        state = loader.state_dict()
        resumed.load_state_dict(state)
        assert resumed.steps_left == len(resumed) - state["step"]
        assert [*handed_out(resumed, resumed.plan.epoch)] == whole[stop:]
        # The pass after it is a whole one.
        assert len(resumed) == len(resumed.plan) == len(list(resumed))


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_loader_that_goes_on_makes_one_plan(buckets, monkeypatch, world_size):
    loader = open_loader(buckets, seconds=1.0, rank=0, world_size=2)
    loader.set_epoch(2)
    next(iter(loader))
    state = loader.state_dict()
    planned = []

    def plan_and_note(durations, budget, seed, epoch, *others):
        planned.append(epoch)
        return plan_epoch(durations, budget, seed, epoch, *others)

    monkeypatch.setattr(epochs_module, "plan_epoch", plan_and_note)
    resumed = open_loader(buckets, seconds=1.0, rank=0, world_size=world_size)
    assert planned == []
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert next(iter(resumed)).epoch == 2 and planned == [2]

    # Without a state, the plan of epoch 0 is made once, when it is asked for.
    fresh = open_loader(buckets, seconds=1.0)
    assert len(fresh) == len(fresh.dataset) == len(list(fresh)) and planned == [2, 0]
    later = open_loader(buckets, seconds=1.0)
    later.set_epoch(5)
    assert next(iter(later)).epoch == 5 and planned == [2, 0, 5]


@pytest.mark.parametrize(
    "members, other, message",
    [
        (8, {"seed": 1}, "taken with seed 42, and the loader has 1"),
        (8, {"seconds": 2.0}, "taken with seconds 1.0, and the loader has 2.0"),
        (8, {"split": "dev"}, "taken with split train, and the loader has dev"),
        (7, {}, "taken with buckets [0-9a-f]{16}, and the loader has [0-9a-f]{16}"),
    ],
)
def test_a_state_of_other_buckets_or_settings_is_refused_by_name(tmp_path, members, other, message):
    state = open_loader(corpus(tmp_path / "old"), seconds=1.0).state_dict()
    buckets = corpus(tmp_path / "new", members=members)
    change_config(buckets, splits={"dev": {"path": "train/b_0_3.parquet"}})
    for world_size in (1, 2):
        options = {"seconds": 1.0, "rank": 0, "world_size": world_size, **other}
        with refused(message):
            open_loader(buckets, **options).load_state_dict(state)


def test_buckets_of_the_same_lengths_but_other_samples_are_refused(tmp_path, monkeypatch):
    # Those that are looked at are spread over all rows.
    monkeypatch.setattr("millrace.asr.planning.loader._DIGESTED_ROWS", 8)
    buckets = corpus(tmp_path)
    state = open_loader(buckets).state_dict()
    second = buckets / "train/b_3_5.parquet"
    table = pq.read_table(second)
    ids = pa.array(table["sample_id"].to_numpy() + np.uint64(100))
    column = table.schema.get_field_index("sample_id")
    pq.write_table(table.set_column(column, "sample_id", ids), second)
    with refused("taken with buckets"):
        open_loader(buckets).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_other_ranks_read_the_rest_of_the_epoch_and_then_whole_ones(buckets, workers):
    # Two steps of two ranks, one of three, and the rest with one.
    seen, state, done = [], "", 0
    for world_size, steps in ((2, 2), (3, 1), (1, None)):
        states = set()
        for rank in range(world_size):
            loader = open_loader(buckets, workers, 0.4, world_size=world_size, rank=rank)
            loader.set_epoch(1)
            if state:
                loader.load_state_dict(json.loads(state))
            assert len(loader) == done + loader.steps_left
            seen += rows_of(islice(loader, steps))
            states.add(json.dumps(loader.state_dict()))
        (state,) = states
        done += steps or 0
    assert sorted(seen) == ROWS

    # The same epoch again, and the next one, are whole.
    assert rows_of(loader) == ROWS and len(loader) == len(loader.plan)
    loader.set_epoch(2)
    assert rows_of(loader) == ROWS


def test_a_state_of_an_epoch_that_was_set_within_another_is_of_its_beginning(buckets):
    loader = open_loader(buckets, seconds=0.4)
    for batch in loader:
        loader.set_epoch(1)
        assert batch.epoch == 0 and loader.state_dict()["step"] == 0
    resumed = open_loader(buckets, seconds=0.4)
    resumed.load_state_dict(loader.state_dict())
    assert rows_of(resumed) == ROWS


def test_a_loader_that_is_sent_to_another_process_is_refused(buckets):
    with refused(r"cannot be pickled or copied\. Open it"):
        pickle.dumps(open_loader(buckets))


def own_decode(member: bytes) -> np.ndarray:
    if member.startswith(b"RIFF"):
        raise DecodeError("not_audio", "no WAV here")
    return np.full(1600, 0.5, np.float32)


def inputs(batch) -> dict:
    return {"input_values": batch.audio * 2, "rows": batch.rows.tolist(), "epoch": batch.epoch}


@pytest.mark.parametrize("workers", [0, 2])
def test_own_decoding_and_what_the_trainer_gets_instead(buckets, workers):
    loader = open_loader(buckets, workers, decode=own_decode, transform=inputs)
    loader.bad.max_bad_fraction = 1.0
    loader.set_epoch(1)
    results = list(loader)
    for result in results:
        assert torch.equal(result["input_values"], torch.ones(len(result["rows"]), 1600))
        assert result["epoch"] == 1
    assert loader.dataset[0]["rows"] == results[0]["rows"]
    good = sum(len(result["rows"]) for result in results)
    assert loader.bad.count == 24 - good > 0


def set_audio(batch):
    batch.audio = batch.audio * 2
    return batch


def set_data(batch):
    batch.audio.data = batch.audio * 2
    return batch


def crop_data(batch):
    batch.audio.data = batch.audio[:, :400]
    return batch


def crop(batch):
    batch.audio = batch.audio[:, 100:400]
    return batch


@pytest.mark.parametrize(
    "transform",
    [
        set_audio,
        set_data,
        crop_data,
        crop,
        copy.copy,
        lambda batch: dataclasses.replace(batch, audio=batch.audio * 2),
        lambda batch: dataclasses.replace(batch, languages=[]),
    ],
)
def test_audio_is_what_a_transform_has_made_of_it(buckets, transform):
    expected = [batch.audio for batch in open_loader(buckets, seconds=0.5, transform=transform)]
    loader = open_loader(buckets, workers=1, seconds=0.5, transform=transform)
    batches = [*loader, *loader]  # held while more come
    assert all(map(torch.equal, [batch.audio for batch in batches], [*expected, *expected]))


@pytest.mark.parametrize("sound", [np.zeros(1600, np.int16), np.zeros((1600, 1), np.float32), None])
def test_own_decoding_that_gives_no_float_mono_is_refused(buckets, sound):
    loader = open_loader(buckets, decode=lambda member: sound)
    with refused(r"row \d+: `decode` gave .*, not float32 \(samples,\)"):
        list(loader)


@pytest.mark.parametrize(
    "sound, reason",
    [
        ([0.0, np.nan], "not_finite"),
        ([1e300], "not_finite"),  # more than float32 holds
        ([], "no_samples"),
    ],
)
def test_own_decoding_that_gives_no_sound_is_left_out_and_counted(buckets, sound, reason):
    loader = open_loader(buckets, decode=lambda member: np.array(sound))
    loader.bad.max_bad_fraction = 1.0
    assert not any(map(len, loader)) and loader.bad.reasons == {reason: 24}


def test_a_batch_answers_what_the_trainer_of_transformers_asks(buckets):
    batch = next(iter(open_loader(buckets)))
    assert "labels" not in batch and "audio" in batch
    assert dict(**batch)["transcripts"] == batch.transcripts
