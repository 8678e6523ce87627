"""open_tars: an exact shuffle for any number of ranks and workers, bounds of batches, hooks,
resume."""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from glob import glob
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from millrace.asr.loading.reader import IndexedTarReader
from millrace.common.loading.bad_samples import SampleError
from millrace.tars.dataset import TarBatch
from millrace.tars.loader import TarLoader, open_tars
from tests.refusals import refused
from tests.tars.tars import write_samples, write_tar

SAMPLES = 120


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> Path:
    """The pattern of three tars of 40 samples."""
    return write_samples(tmp_path_factory.mktemp("tars"))


def ids_of(batches: list[TarBatch]) -> list[str]:
    return [key for batch in batches if not batch.filler for key in batch.ids]


def epoch_of(loader: TarLoader, epoch: int) -> list[TarBatch]:
    loader.set_epoch(epoch)
    return [*loader]


def test_every_epoch_has_each_sample_once_in_another_order_over_all_tars(tars):
    loader = open_tars(tars, batch_size=8, seed=3)
    epochs = [epoch_of(loader, epoch) for epoch in range(3)]
    orders = [ids_of(batches) for batches in epochs]
    assert sorted(orders[0]) == sorted(loader.samples.ids.to_pylist())
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    # The first batches of an epoch come from all tars.
    assert len({key[0] for key in orders[0][:16]}) == 3
    again = epoch_of(open_tars(tars, batch_size=8, seed=3), 1)
    assert [batch.ids for batch in again] == [batch.ids for batch in epochs[1]]
    assert orders[0] != ids_of(epoch_of(open_tars(tars, batch_size=8, seed=4), 0))


def test_an_empty_sample_is_a_sample_also_where_batches_are_cut_by_bytes(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b""), ("b.txt", b"1234")])
    loader = open_tars(path, cost="bytes", batch_cost=10)
    assert sorted(ids_of([*loader])) == ["a", "b"]


def test_each_batch_is_announced_to_the_kernel_before_it_is_asked_for(tars, monkeypatch):
    told = []
    monkeypatch.setattr(IndexedTarReader, "will_need", lambda _, requests: told.append(requests))
    loader = open_tars(tars, batch_size=16)
    announced = [len(told) for _ in loader]
    # The first four follow none: each is announced when it is read, with the one four later.
    assert announced == [2, 4, 6, 8, 8, 8, 8, 8] and len(loader) == 8
    assert len({tuple(request) for requests in told for request in requests}) == 2 * SAMPLES


def test_a_batch_has_its_size_but_the_last_and_samples_belong_to_their_ids(tars):
    loader = open_tars(tars, batch_size=16, fields=iter(["txt", "cls"]))
    batches = [*loader]
    assert sorted(len(batch) for batch in batches) == [8] + [16] * 7
    assert len(loader) == loader.steps_left == 8 and len(loader.samples) == SAMPLES
    for batch in batches:
        assert [batch.step, batch.planned] == [batches.index(batch), len(batch)]
        for key, sample in zip(batch.ids, batch.samples, strict=True):
            number = int(key[2:])
            assert sample == {"txt": key.encode() * (1 + number % 7), "cls": b"%d" % (number % 10)}


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_ranks_take_equal_steps_and_share_the_samples(tars, world_size):
    # Numbers of numpy are numbers.
    options = {"batch_size": np.int64(9), "seed": np.int64(5), "world_size": np.int64(world_size)}
    loaders = [open_tars(tars, rank=rank, **options) for rank in np.arange(world_size)]
    ranks = [[*loader] for loader in loaders]
    assert {len(batches) for batches in ranks} == {loader.steps_left for loader in loaders}
    assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
    assert Counter(ids_of([*chain(*ranks)])) == Counter(
        open_tars(tars, batch_size=1).samples.ids.to_pylist()
    )


def test_fewer_samples_than_ranks_give_fillers_that_are_marked(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    ranks = [[*open_tars(path, batch_size=4, rank=rank, world_size=3)] for rank in range(3)]
    assert [len(batches) for batches in ranks] == [1, 1, 1]
    assert sorted(ids_of([*chain(*ranks)])) == ["a", "b"]
    assert sum(batch.filler for batches in ranks for batch in batches) == 1


BOUNDS = {
    "bytes": lambda key, sample: sum(map(len, sample.values())),
    "txt": lambda key, sample: len(sample["txt"]),
    "column": lambda key, sample: 1.0 + int(key[2:]) % 3,
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_batch_costs_at_most_its_bound(tars, kind):
    keys = open_tars(tars, batch_size=1).samples.ids.to_pylist()
    column = {key: BOUNDS["column"](key, {}) for key in keys}
    loader = open_tars(tars, cost=column if kind == "column" else kind, batch_cost=100)
    batches = [*loader]
    assert sorted(ids_of(batches)) == sorted(keys)
    costs = [
        [BOUNDS[kind](key, sample) for key, sample in zip(batch.ids, batch.samples, strict=True)]
        for batch in batches
    ]
    full = [len(batch) * max(batch) for batch in costs]
    assert max(full) <= 100 and np.median(full) > 70
    both = open_tars(tars, batch_size=2, cost="bytes", batch_cost=np.float32(100))
    assert json.loads(json.dumps(both.state_dict())) == both.state_dict()
    assert {len(batch) for batch in both} == {2}


def test_keys_that_repeat_across_tars_are_read_once_each_and_resumed(tmp_path):
    for number in range(3):
        members = [(f"{at:03d}.txt", b"%d" % number) for at in range(20)]
        write_tar(tmp_path / f"part-{number}.tar", members)
    options = {"batch_size": 7, "ids": "tar", "keys": lambda key: not key.endswith("/000")}
    loader = open_tars(tmp_path / "*.tar", **options)
    first = next(iter(loader))
    resumed = open_tars(tmp_path / "*.tar", **options)
    resumed.load_state_dict(loader.state_dict())
    batches = [first, *resumed]
    ids = [f"part-{number}/{at:03d}" for number in range(3) for at in range(1, 20)]
    assert sorted(ids_of(batches)) == ids
    for batch in batches:
        texts = [sample["txt"] for sample in batch.samples]
        assert texts == [key[5:6].encode() for key in batch.ids]


# Options beside a batch_size of 4.
REFUSED = [
    ({"batch_size": None}, "nothing bounds a batch"),
    ({"batch_size": 0}, "batch_size is 0. Give a whole number from 1"),
    ({"batch_size": 2.5}, "batch_size is 2.5"),
    ({"cost": "bytes", "batch_cost": float("nan")}, "batch_cost is nan"),
    ({"workers": -1}, "workers is -1. Give a whole number from 0"),
    ({"workers": "2"}, "workers is '2'. Give a whole number"),
    ({"seed": "7"}, "seed is '7'. Give a whole number"),
    ({"keys": "0-001"}, "keys is '0-001'. Give a list"),
    ({"fields": "txt"}, "fields is 'txt'. Give a list"),
    ({"fields": 5}, "fields is 5. Give a list"),
    (
        {"cost": dict.fromkeys(["0-000"], "x"), "batch_cost": 9},
        "cost has what is no number .*'x'",
    ),
    (
        {"cost": {"0-000": {}}, "batch_cost": 9},
        "cost has what is no number .*'dict'",
    ),
    (
        {"prefetch_batches": 0, "workers": 1, "decode": {"cls": int}},
        "prefetch_batches is 0. Give a whole number from 1",
    ),
    ({"start_step": -3}, "start_step is -3. Give a whole number from"),
    ({"cost": 5, "batch_cost": 9}, "cost is 5. Give .* a dict"),
    ({"cost": "bytes", "batch_cost": "9"}, "batch_cost is '9'. Give a number"),
    ({"cost": "bytes"}, "cost and batch_cost go together"),
    ({"cost": "jpg", "batch_cost": 9}, "no sample has a field jpg"),
    ({"cost": {"0-000": 1.0}, "batch_cost": 9}, "0-001 in .* its cost is None"),
    (
        {"cost": dict.fromkeys(["0-000"], np.inf), "batch_cost": 9},
        "0-000 .* its cost is inf",
    ),
    ({"cost": dict.fromkeys(["0-000"], 0), "batch_cost": 9}, "0-000 .* its cost is 0"),
    ({"decode": {"jpg": len}}, "no sample has a field jpg"),
    ({"keys": []}, "keys choose no sample. Choose others"),
    ({"decode": 5}, "decode is 5. Give a function"),
    ({"decode": {"cls": 5}}, "decode of cls is 5. Give"),
    ({"cache_dir": b"x"}, "cache_dir is b'x'. Give a path"),
    ({"batch_size": True}, "batch_size is True. Give a whole number"),
    ({"max_bad_fraction": 2}, "max_bad_fraction is 2. Give a number"),
    ({"max_bad_fraction": True}, "fraction is True. Give a"),
    ({"max_bad_fraction": float("nan")}, "fraction is nan. Give a"),
    (
        {"rank": 0, "world_size": 10**9},
        "no plan for world size 1000000000 .* Give 1 to 1,048,576 ranks",
    ),
    ({"world_size": 2}, "nothing says which rank this is"),
]


@pytest.mark.parametrize("options, words", REFUSED)
def test_what_is_not_decided_is_refused(tars, options, words):
    with refused(words):
        open_tars(tars, **{"batch_size": 4, **options})


def test_tars_whose_members_form_no_sample_are_refused_with_the_reason(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("README", b"1"), ("LICENSE", b"2")])
    with refused(r"no samples. Left out: 2 with a name that is not"):
        open_tars(path, batch_size=1)


def draw(sample: dict[str, bytes], generator: np.random.Generator) -> float:
    return len(sample["txt"]) + generator.random()


def drawn(tars: Path, epoch: int, workers: int, **options) -> dict[str, float]:
    loader = open_tars(tars, batch_size=8, decode=draw, workers=workers, **options)
    batches = epoch_of(loader, epoch)
    loader.close()
    return {key: value for b in batches for key, value in zip(b.ids, b.samples, strict=True)}


def test_a_generator_is_that_of_seed_epoch_and_key_whatever_the_workers(tars):
    values = drawn(tars, 1, workers=0)
    assert drawn(tars, 1, workers=2, start_method="spawn") == values
    assert len(set(values.values())) == SAMPLES
    assert drawn(tars, 0, workers=0)["0-001"] != values["0-001"]
    assert drawn(tars, 1, workers=0, seed=1)["0-001"] != values["0-001"]


def test_decode_by_field_leaves_other_fields_and_samples_without_it_as_they_are(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("a.cls", b"2"), ("b.txt", b"3")])
    (batch,) = open_tars(path, batch_size=2, decode={"cls": int})
    samples = dict(zip(batch.ids, batch.samples, strict=True))
    assert samples == {"a": {"txt": b"1", "cls": 2}, "b": {"txt": b"3"}}


def test_samples_that_cannot_be_decoded_are_counted_and_too_many_stop_the_loader(tmp_path):
    members = [(f"{at:04d}.cls", b"x" if at % 100 == 7 else b"1") for at in range(2000)]
    path = write_tar(tmp_path / "a.tar", members)
    loader = open_tars(path, batch_size=100, decode={"cls": int}, max_bad_fraction=0.02)
    batches = [*loader]
    assert len(ids_of(batches)) == 1980 and loader.bad.reasons == {"decode": 20}
    assert sum(batch.planned for batch in batches) == 2000
    strict = open_tars(path, batch_size=100, decode={"cls": int}, max_bad_fraction=0.005)
    with refused(r"07 in .*a.tar at byte \d+ \(decode\): ValueError"):
        list(strict)

    def checked(raw: bytes) -> bytes:
        if raw == b"x":
            raise SampleError("no_class", "x is none")
        return raw

    loader = open_tars(path, batch_size=100, decode={"cls": checked}, max_bad_fraction=0.02)
    assert len(ids_of([*loader])) == 1980 and loader.bad.reasons == {"no_class": 20}


def test_a_tar_that_is_gone_costs_its_own_samples_and_no_others(tmp_path):
    pattern = write_samples(tmp_path)
    loader = open_tars(pattern, batch_size=8, max_bad_fraction=0.5)
    os.remove(tmp_path / "part-1.tar")
    batches = [*loader]
    for batch in batches:
        assert [sample["cls"].decode() for sample in batch.samples] == [
            key[-1] for key in batch.ids
        ]
        assert len(batch) + len(batch.bad) == batch.planned
    assert {key[0] for key in ids_of(batches)} == {"0", "2"} and len(ids_of(batches)) == 80
    assert loader.bad.reasons == {"tar_missing": 40}


def test_a_tar_that_changes_while_it_is_open_ends_the_epoch(tmp_path):
    path = write_tar(tmp_path / "a.tar", [(f"{at}.txt", b"1") for at in range(100)])
    loader = open_tars(path, batch_size=10)
    write_tar(path, [(f"{at}.txt", b"22") for at in range(100)])
    with refused(r"has changed .* Open the tars again"):
        list(loader)
    with refused(r"has changed .* Open the tars again"):
        loader.samples["7"]


# Processes only if something is decoded.
@pytest.mark.parametrize("workers, decode", [(0, None), (2, None), (2, {"cls": bytes})])
def test_a_loader_goes_on_where_its_state_was_taken(tars, workers, decode):
    whole = epoch_of(open_tars(tars, batch_size=8), 1)
    options = {"batch_size": 8, "workers": workers, "decode": decode}
    loader = open_tars(tars, **options)
    loader.set_epoch(1)
    for batch in loader:
        if batch.step == 4:
            state = loader.state_dict()
            break
    loader.close()
    resumed = open_tars(tars, **options)
    resumed.load_state_dict(state)
    assert [batch.ids for batch in resumed] == [batch.ids for batch in whole[5:]]
    resumed.close()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch_size": 9}, "with batch_size 8, and the loader has 9"),
        ({"seed": 1}, "with seed 0, and the loader has 1"),
        ({"keys": lambda key: key > "0-001"}, "with samples"),
        ({"cost": "bytes", "batch_cost": 50}, "with batch_cost 0, and the loader has 50"),
    ],
)
def test_a_state_of_other_samples_or_settings_is_refused_by_name(tars, options, words):
    state = open_tars(tars, batch_size=8).state_dict()
    with refused(f"the state was taken {words}"):
        open_tars(tars, **{"batch_size": 8, **options}).load_state_dict(state)


def test_a_state_of_other_costs_is_refused(tars):
    keys = open_tars(tars, batch_size=8).samples.ids.to_pylist()
    state = open_tars(tars, cost=dict.fromkeys(keys, 2.0), batch_cost=9).state_dict()
    with refused("the state was taken with cost "):
        open_tars(tars, cost=dict.fromkeys(keys, 3.0), batch_cost=9).load_state_dict(state)


def test_a_state_of_the_same_tars_in_another_order_is_refused(tars):
    state = open_tars(tars, batch_size=8).state_dict()
    turned = sorted(glob(str(tars)), reverse=True)
    assert len(turned) > 1
    with refused("the state was taken with samples"):
        open_tars(turned, batch_size=8).load_state_dict(state)


def test_no_more_files_are_open_than_the_reader_may_have(tmp_path):
    pattern = write_samples(tmp_path, tars=90, samples=2)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    loader = open_tars(pattern, batch_size=7)
    assert len(ids_of([*loader])) == 180
    assert before < len(os.listdir("/proc/self/fd")) <= before + 64
    loader.samples.reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("row, step", [(0, 0), (-1, 14)])
def test_a_plan_of_more_samples_than_there_are_is_refused_before_it_names_one(tars, row, step):
    loader = open_tars(tars, batch_size=8)
    loader.plan.rows[row] = SAMPLES
    batches = iter(loader)
    ahead = max(step - 4, 0)  # a loader looks four steps ahead
    assert [batch.step for batch in islice(batches, ahead)] == [*range(ahead)]
    words = rf"step {step}: the plan names rows \d+ to 120 of 120"
    with refused(words):
        next(batches)
