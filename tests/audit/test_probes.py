"""What probes note of loaders in this process, which checks rest on."""

from __future__ import annotations

import os
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from millrace.audit.probes import batches, colours, edges, figures, labels, memory, methods
from millrace.audit.probes.first_batch import look
from millrace.audit.runner.target import Options
from tests.audit import plain
from tests.audit.runner.test_listener import Steps
from tests.audit.runner.test_walk import Library
from tests.audit.running import target_of


class Lazy(ModuleType):
    """Twin of SpeechBrain's: any name that it lacks is an import, here of what is not installed."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(name)


def test_workers_get_what_a_script_has_set_and_imported_but_its_own_package(rank, monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    for name, module in {"lazy": Lazy("lazy"), "kept_out": None}.items():
        monkeypatch.setitem(sys.modules, name, module)

    def made() -> DataLoader:
        monkeypatch.setenv("SET", "2")
        return plain.good(num_workers=1, multiprocessing_context="spawn")

    seen = look(SimpleNamespace(loader=made, options=Options("numpy.own:loader")), rank)
    assert not seen["wrapped"]
    assert look(target_of(Steps(plain.good(), 1)), rank)["wrapped"]
    assert seen["start_method"] == "spawn" != torch.multiprocessing.get_start_method()
    imported = seen["imported"]
    assert imported["environment"] == {"SET": "2"} and os.environ["KEPT"] == "1"
    packages = {name.partition(".")[0] for name in imported["libraries"]}
    assert "torch" in packages and "numpy" in sys.modules.keys() - packages


def test_the_last_batch_is_that_of_each_loader_s_sampler(rank):
    train = DataLoader(plain.Squares(12), batch_size=4, sampler=range(9))
    val = DataLoader(plain.Squares(7), batch_size=3, drop_last=True)
    seen = edges.edges(target_of(train, val), rank)
    assert (seen["train"]["samples"], seen["train"]["batch_size"]) == (9, 4)
    assert (seen["val"]["samples"], seen["val"]["drop_last"]) == (7, True)
    assert edges.edges(target_of(train), rank)["val"] == {}


@pytest.mark.parametrize("is_split", [True, False])
def test_memory_is_that_of_all_samples_or_of_a_rank_s_part(rank, is_split):
    data = plain.Squares()
    sampler = DistributedSampler(data, num_replicas=2, rank=0) if is_split else None
    seen = memory.memory(target_of(DataLoader(data, sampler=sampler)), rank)
    assert seen["split"] == is_split
    assert sum(chunk["samples"] for chunk in seen["new"]) == (6 if is_split else 12)


class Scaled(plain.Squares):
    """As timm's ScheduledTransformDataset, which is asked for rows and what is done to them."""

    def __getitem__(self, place: tuple[int, int]) -> dict[str, object]:
        row, factor = place
        return {**super().__getitem__(row), "factor": factor}


class WithoutLength(list):
    def __len__(self) -> int:
        raise TypeError("nobody knows")


def test_memory_is_read_by_the_names_that_a_batch_sampler_hands_out(rank):
    batches = WithoutLength([(row, 2), (row + 1, 2)] for row in range(0, 12, 2))
    seen = memory.memory(target_of(DataLoader(Scaled(), batch_sampler=batches)), rank)
    assert sum(chunk["samples"] for chunk in seen["new"]) == 12


class Tokens(plain.Squares):
    tokenizer = SimpleNamespace(eos_token_id=2, pad_token_id=0)
    other = SimpleNamespace(eos_token_id=9)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.arange(3)


def collated(rows: list[torch.Tensor], packed: int) -> dict[str, torch.Tensor]:
    ids = torch.stack(rows).view(-1, 3 * packed if len(rows) > 1 else 3)
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("packed", [1, 2])
def test_a_row_is_compared_with_its_sample_unless_it_has_several(rank, packed):
    loader = DataLoader(Tokens(), batch_size=4, collate_fn=partial(collated, packed=packed))
    seen = labels.labels(target_of(loader), rank)
    assert all(("alone" in row) == (packed == 1) for row in seen["rows"])
    assert seen["special"] == {"eos": 2, "pad": 0}


def test_means_of_colours_have_three_numbers():
    data = plain.Squares()
    data.colour = SimpleNamespace(mean=[0.4, 0.5, 0.6])
    data.grey = SimpleNamespace(mean=[0.5])
    data.library = Library()
    assert colours._means(DataLoader(data)) == {"loader.dataset.colour": [0.4, 0.5, 0.6]}
    assert figures.constants(DataLoader(data)) == []


def test_a_dataset_is_asked_for_a_batch_if_it_gives_batches():
    data = SimpleNamespace(__getitems__=lambda drawn: [-index for index in drawn])
    loader = SimpleNamespace(dataset=data, batch_sampler=[[1, 2]])
    assert batches.samples_of(loader, [1, 2]) == [-1, -2]


def test_images_of_one_value_have_no_spread():
    measured = figures.measured(torch.full((2, 3, 17, 19), 0.9))
    assert figures.merged("x", [measured])["std"] == [0.0, 0.0, 0.0]


def test_files_that_are_open_to_be_read_are_named(tmp_path):
    with open(__file__, "rb") as read, open(tmp_path / "log", "wb") as log:
        held = SimpleNamespace(read=read, log=log)
        assert methods._open_files(held) == ["dataset.read"]
    assert methods._open_files(held) == []


class Drawn(plain.Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(1)


def test_runs_of_one_start_method_have_the_same_random_numbers(rank):
    loader = DataLoader(Drawn(), batch_size=2, num_workers=1, generator=torch.Generator())
    first, second = (methods._run(loader, [0, 1], "fork", rank) for _ in range(2))
    assert first == second
