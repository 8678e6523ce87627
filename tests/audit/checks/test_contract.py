"""What is said of loaders with a planted bug, and of correct ones that look like them."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
)

from millrace.audit.checks.findings import LONGER, Check, Finding, judge, load, passed
from millrace.audit.checks.run import audit
from millrace.audit.probes import contract, edges, methods, model
from millrace.audit.probes.memory import bound
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options, Rank
from tests.audit import plain
from tests.audit.ranks import Clock
from tests.audit.running import judged, target_of, told, verdict_on


def test_files_that_are_gone_are_named(guard, tmp_path):
    files = [str(tmp_path / f"{number}.txt") for number in range(4)]
    for file in files[:3]:
        Path(file).write_text("a")
    options = Options(f"{plain.here}:of_files", {"files": files}, ranks=1)
    _, findings = audit(options, ["stale"], guard)
    [finding] = [each for each in findings if each.verdict != "not applicable"]
    assert (finding.verdict, finding.evidence["names"]) == ("fail", [files[3]])


def test_a_list_is_none_of_files_if_none_is_there_and_a_spare_one_is_not_needed(tmp_path):
    there = str(tmp_path / "0.txt")
    Path(there).touch()
    gone = [str(tmp_path / f"{number}.txt") for number in (1, 2)]
    assert contract._missing(plain.Squares(2), gone, [""]) is None
    needed = []
    for data in (plain.Squares(2), plain.Squares(1), plain.OfFiles([there, gone[0]])):
        needed.append(contract._missing(data, [there, gone[0]], [""])["needed"])
    assert needed == [False, False, True]
    [rows] = contract.listed(Subset(data, [0]))
    assert (rows["missing"], rows["paths"], rows["names"]) == (1, 2, [gone[0]])


@pytest.mark.parametrize("sampler, is_usual", [([0, 1, 2, 3], True), ([0, 9, 1, 2], False)])
def test_batches_are_made_in_several_orders_of_indices_below_the_length(sampler, is_usual):
    loader = DataLoader(plain.Squares(4), batch_size=2, sampler=sampler)
    seen = contract.collate(loader, time.monotonic() + 60)
    assert (seen["batches"], seen["usual"]) == (3 * 2, is_usual)
    unbatched = DataLoader(loader.dataset, batch_size=None, sampler=sampler[:1])
    assert contract.collate(unbatched, time.monotonic() + 60)["batches"] == 3
    assert contract.collate(loader, time.monotonic())["batches"] == 1  # the time was over


def test_the_largest_batch_of_any_epoch_is_measured():
    told = []

    class Told(list):
        def set_epoch(self, number: int) -> None:
            told.append(number)

    batches = Told([[0, 1, 2], [3]])
    loader = DataLoader(plain.Squares(4), batch_sampler=batches, collate_fn=list)
    seen = contract.collate(loader, time.monotonic() + 60)
    assert (seen["tensors"], seen["bytes"]) == (3, 3 * os.sysconf("SC_PAGE_SIZE"))
    assert told == [0, 1, 2]


def test_the_room_is_what_is_free_and_a_length_is_counted_in_time(tmp_path, monkeypatch):
    shm = SimpleNamespace(f_bavail=3, f_blocks=9, f_frsize=4)
    monkeypatch.setattr(contract.os, "statvfs", lambda _: shm)
    monkeypatch.setattr(contract.resource, "getrlimit", lambda _: (5, 9))
    target = target_of(DataLoader(Sized()), ranks=3)
    counted = []
    for seconds in (60.0, 0.0):
        seen = contract.contract(target, Clock(0, 1, tmp_path, 0.0, [seconds]))
        assert (seen["shm"], seen["files"], seen["ranks"]) == (12, 5, 3)
        counted.append(seen["counted"])
    assert counted == [2, None]


@pytest.mark.parametrize("drop_last, sizes", [(True, [2, 2]), (False, [2, 2, 1])])
def test_a_stream_leaves_out_its_last_samples_as_the_loader_does(drop_last, sizes):
    loader = SimpleNamespace(dataset=range(5), batch_size=2, drop_last=drop_last)
    assert list(map(len, contract._stream(loader))) == sizes


def test_a_storage_counts_once_and_in_whole_pages():
    page = os.sysconf("SC_PAGE_SIZE")
    whole = torch.zeros(page // 4 + 1)
    assert contract.storages({"a": whole[:5], "b": whole[5:]}) == [2 * page]


def test_lengths_that_stay_on_the_cpu_are_not_missed():
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    batch = SimpleNamespace(x=tokens, lengths=torch.tensor([3, 2]))
    assert contract.pin(batch)["missed"] == ["x"]


@pytest.mark.parametrize(
    "is_trained, is_frozen, word",
    [(True, False, "raised"), (True, True, "taken"), (False, False, "raised")],
)
def test_a_model_is_called_as_it_trains(rank, is_trained, is_frozen, word):
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(1)).train(is_trained)
    network[0].train(is_trained and not is_frozen)
    loader = DataLoader(TensorDataset(torch.rand(4, 1)), batch_size=4)
    assert word in model.batch_of_one(network, loader, rank)


def test_a_model_that_says_how_it_trains_is_called_so_and_one_row_is_taken_of_what_has_rows():
    stepping = SimpleNamespace(training_step=lambda batch, step: (batch, step))
    assert model._call(stepping, 7)(8) == (8, 0)
    batch = SimpleNamespace(x=torch.zeros(4, 2), table=torch.zeros(9))
    alone = model._alone(None, batch, 4)
    assert (len(alone.x), len(alone.table), len(batch.x)) == (1, 9, 4)


@pytest.mark.parametrize("method, sent", [("forkserver", "forkserver"), ("fork", "spawn")])
def test_samples_are_sent_by_the_start_method_of_the_loader(rank, monkeypatch, method, sent):
    monkeypatch.setattr(methods, "_run", lambda loader, drawn, by, rank: by)
    # Later tests start workers as they did before.
    monkeypatch.setattr(torch.multiprocessing, "set_start_method", lambda *_, **__: None)
    target = target_of(plain.good(), start_method=method)
    assert methods.methods(target, rank)["runs"] == ["fork", "fork", sent]
    # The second half has the samples of the first.
    notes = [{"samples": [{"x": digest}], "batch": digest} for digest in "ab"]
    places = {"0 0: x": ["a", "b"], "0 1: the batch": ["a", "b"]}
    assert methods._digests(notes, twice=True) == places
    # What is shared is sent as a process starts, and at no other time.
    assert methods._unpicklable_parts(plain.shared()) == []


@pytest.mark.parametrize("replicas, seen", [(1, 3), (2, 1), (0, 1)])
def test_a_sampler_of_one_rank_would_be_shared_by_all(rank, replicas, seen):
    data = plain.Squares(12)
    sampler = None
    if replicas:
        sampler = DistributedSampler(data, num_replicas=replicas, rank=0)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    assert edges._edges(loader, rank, 3)["replicas"] == seen


class Sized(IterableDataset):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Cached(plain.Squares):
    limit = 70

    def __getitem__(self, index: int) -> int:
        if len(self.cache) < self.limit:
            self.cache[index] = index
        return index


class Popping(plain.Squares):
    def __getitem__(self, index: int) -> int:
        self.cache.popitem()
        return index


class Weighing(plain.Squares):
    def __getitem__(self, index: int) -> int:
        self.used += self.cache[index].nbytes
        return index


class Remembering(plain.Squares):
    def __getitem__(self, index: int) -> int:
        self.read = functools.lru_cache(maxsize=self.most)(len)
        return index


class RememberingAll(plain.Squares):
    def __getitem__(self, index: int) -> int:
        self.read = functools.lru_cache(maxsize=None)(len)
        return index


def remembering(most: int | None) -> plain.Squares:
    data = plain.Squares()
    data.read = functools.lru_cache(most)(len)
    return data


@pytest.mark.parametrize(
    "get, place",
    [
        (lambda index: index % 9, 3),
        (lambda index: index if index < 12 else index - 8, None),  # another one for what is not
    ],
)
def test_indices_wrap_around_only_if_all_begins_again(get, place):
    assert contract._given_again(get, 12, [get(12), get(13)], range(12)) == place


@pytest.mark.parametrize(
    "data, most",
    [
        (plain.Squares(), None),
        (Cached(), 70),
        (Popping(), 0),
        (Weighing(), 0),
        (remembering(50), 50),
        (Remembering(), 0),
        (RememberingAll(), None),
        (remembering(None), None),
        (SimpleNamespace(options=plain.Dots()), None),
    ],
)
def test_the_bound_of_a_cache_is_what_its_source_says(data, most):
    assert bound(data) == most


MIB = 2**20


def grown(held: Iterable[float]) -> list[dict]:
    """What a worker holds after each sample, in MiB."""
    return [{"samples": 1, "held": each * MIB} for each in held]


# A worker that grows by a MiB with each of 80 samples, of 1,000 on a machine of 8 GiB.
GROWING = {
    "new": grown(range(80)),
    "samples": 1000,
    "machine": 8 * 2**30,
}
GROWING |= {"workers": 2, "ranks": 1, "persistent": False, "split": False, "most": None}


@pytest.mark.parametrize(
    "changes, verdict, factor",
    [
        ({}, "pass", 1),
        ({"ranks": 4}, "pass", 4),  # each rank's workers read all samples
        ({"ranks": 9}, "fail", 9),
        ({"ranks": 9, "split": True}, "pass", 1),  # all workers of all ranks read each once
        ({"ranks": 3, "persistent": True}, "pass", 6),  # in the end each worker has read all
        ({"ranks": 5, "persistent": True}, "fail", 10),
        ({"ranks": 5, "persistent": True, "split": True}, "fail", 10),
        ({"ranks": 9, "most": 200}, "not decidable", 9),  # so many were not read
        ({"ranks": 9, "most": 0}, "not decidable", 9),
        ({"ranks": 9, "most": 40}, "fail", 9),  # it grew beyond them
        ({"ranks": 2, "most": 200}, "pass", 2),
        ({"ranks": 9, "most": 73}, "not decidable", 9),  # too few measurements beyond them
        ({"ranks": 9, "most": 72}, "fail", 9),
        ({"new": grown([0, *range(100, 179)])}, "pass", 1),  # imports
    ],
)
def test_memory_is_extrapolated_to_all_workers_and_ranks(changes, verdict, factor):
    [finding] = judged("DP9", memory=[GROWING | changes])
    total = f"{1000 * factor / 1024:.1f} GiB" if factor > 1 else "1000.0 MiB"
    assert finding.verdict == verdict
    assert f": {total} for 1000 samples x {factor} (" in finding.cause


@pytest.mark.parametrize("most, verdict", [(50, "pass"), (None, "fail"), (0, "not decidable")])
def test_growth_that_ends_at_the_bound_that_the_source_names_is_none(most, verdict):
    new = grown(min(at, 60) for at in range(80))
    assert verdict_on("DP9", memory=[GROWING | {"new": new, "most": most, "ranks": 30}]) == verdict


def test_growth_that_ebbs_away_is_none():
    new = grown(10 * min(at, 45) + max(at - 45, 0) for at in range(80))
    assert told("DP9", memory=[GROWING | {"new": new, "ranks": 30}]) == (
        "pass",
        "no growth with new samples",
    )
    # Allocators settle for a while after a cache is full.
    new = grown(10 * min(at, 40) + 3 * max(at - 40, 0) for at in range(80))
    assert told("DP9", memory=[GROWING | {"new": new, "ranks": 30, "most": 40}]) == (
        "pass",
        "the growth ends after 40 samples",
    )


@pytest.mark.parametrize(
    "missing, needed, verdict, cause",
    [
        (0, True, "pass", "no file of 4 in rows is missing"),
        (1, True, "fail", "1 of 4 files in rows are missing: a.txt"),
        (1, False, "pass", "1 of 4 files in rows are missing, and the data set does without them"),
    ],
)
def test_files_that_are_missing_are_told_even_if_they_are_not_needed(
    missing, needed, verdict, cause
):
    listed = {"name": "rows", "paths": 4, "missing": missing, "names": ["a.txt"][:missing]}
    assert told("stale", contract=[{"paths": [listed | {"needed": needed}]}]) == (verdict, cause)


@pytest.mark.parametrize(
    "seen, verdict",
    [
        ({"batches": 0}, "not applicable"),
        ({"batches": 0, "raised": {"text": "KeyError: 1"}}, "not decidable"),
        ({"batches": 2, "raised": {"text": "KeyError: 1"}}, "pass"),
        ({"batches": 2, "failed": {"text": "TypeError", "by_default": True}}, "fail"),
        ({"batches": 2, "failed": {"text": "TypeError", "by_default": False}}, "not decidable"),
    ],
)
def test_samples_that_do_not_collate_fail_if_torch_stacks_them(seen, verdict):
    assert verdict_on("DP4", contract=[{"collate": seen}]) == verdict


PINNED = {"type": "dict", "pinned": 2, "none": False, "missed": [], "lost": []}


@pytest.mark.parametrize(
    "changes, verdict, words",
    [
        ({}, "pass", "2 tensors are pinned"),
        ({"missed": ["x"]}, "fail", "not pinned: x"),
        ({"lost": ["x"]}, "fail", ".pin_memory() loses x"),
        ({"lost": ["x"], "none": True}, "fail", ".pin_memory() returns None"),
        ({"raised": {"text": "KeyError: 'x'"}}, "fail", "pinning raises KeyError: 'x'"),
        ({"raised": {"text": "RuntimeError: no CUDA"}}, "not decidable", "pinning raises Runtime"),
    ],
)
def test_a_batch_is_pinned_if_all_its_tensors_are(changes, verdict, words):
    seen = {"pin_memory": True, "collate": {"pin": PINNED | changes}}
    [finding] = judged("DP5", contract=[seen])
    assert finding.verdict == verdict and finding.cause.startswith(words)


def run(*contents: str) -> dict:
    """What two passes of a start method gave of a field."""
    return {"digests": {"0 0: x": list(contents)}}


FORK, OTHER = run("1", "1"), run("2", "2")
RAISED = {"raised": {"text": "RuntimeError: no"}}


@pytest.mark.parametrize(
    "own, runs, verdict, words",
    [
        (None, [FORK, FORK, FORK], "pass", "equal samples under fork and spawn"),
        (None, [FORK, FORK, OTHER], "fail", "differ from those of fork in x"),
        ("spawn", [FORK, FORK, OTHER], "fail", "under spawn: samples"),
        ("fork", [FORK, FORK, OTHER], "pass", "; under spawn: samples"),
        # What is random there too, or by fork, proves nothing.
        (None, [FORK, FORK, run("2", "3")], "pass", "equal samples"),
        (None, [FORK, run("9", "9"), OTHER], "pass", "equal samples"),
        (None, [FORK, FORK, RAISED], "fail", "under spawn: RuntimeError: no"),
        ("spawn", [RAISED, RAISED, FORK], "pass", "equal samples"),
        (None, [RAISED, RAISED, RAISED], "not decidable", "however they start: RuntimeError: no"),
    ],
)
def test_start_methods_are_compared_by_what_they_all_give(own, runs, verdict, words):
    seen = {"workers": 2, "own": own, "sent": "spawn", "pickled": [], "runs": runs, "open": []}
    [finding] = judged("DP6", methods=[seen])
    assert finding.verdict == verdict and words in finding.cause


@pytest.mark.parametrize(
    "own, sent, verdict",
    [
        (None, FORK, "not decidable"),
        (None, OTHER, "fail"),
        ("fork", FORK, "not decidable"),
        ("spawn", FORK, "pass"),
    ],
)
def test_files_that_are_open_before_a_fork_are_shared(own, sent, verdict):
    seen = {"workers": 2, "own": own, "sent": "spawn", "pickled": [], "runs": [FORK, FORK, sent]}
    [finding] = judged("DP6", methods=[{**seen, "open": ["dataset.file", "dataset.other"]}])
    words = "dataset.file is open before the fork"
    assert finding.verdict == verdict
    assert finding.cause.startswith(words) == (verdict == "not decidable")


@pytest.mark.parametrize(
    "changes, verdict, words",
    [
        ({}, "pass", "len is 12"),
        ({"samples": None}, "not applicable", "no len"),
        ({"counted": 10}, "fail", "the iterator gives 10 samples"),
        ({"counted": 14}, "fail", "the iterator gives 14 samples"),
        ({"counted": None}, "pass", "len is 12"),  # the time was over
        ({"last": {"type": "IndexError", "text": "IndexError: 11"}}, "fail", "but [11] raises"),
        ({"last": {"type": "KeyError", "text": "KeyError: 11"}}, "fail", "but [11] raises"),
        ({"last": {"type": "OSError", "text": "OSError: x"}}, "pass", "len is 12"),
        ({"equals": 0}, "fail", "[12] gives sample 0 again: it wraps around"),
        ({"equals": 0, "varies": True}, "not decidable", "it wraps around"),
        ({"equals": 0, "numbers": {"often": 3}, "lists": {"a": 4}}, "pass", "len is 12"),
        ({"equals": 0, "numbers": {"often": 1}, "lists": {"a": 12}}, "fail", "it wraps around"),
        ({"equals": 0, "product": True, "lists": {"a": 4}}, "pass", "len is 12"),
        ({"equals": 0, "product": True, "lists": {"a": 5, "b": 12}}, "fail", "it wraps around"),
        ({"longer": {"a": 13}}, "fail", "a has 13 items, and [12] works"),
        ({"longer": {"a": 13}, "tables": ["a"]}, "not decidable", "a has 13 items, and [12] works"),
        ({"longer": {"a": 14}}, "not decidable", "a has 14 items, and [13] works"),
    ],
)
def test_a_length_is_that_of_what_can_be_read(changes, verdict, words):
    of_set = {name: changes[name] for name in ("samples", "counted") if name in changes}
    items = {"equals": None, "numbers": {}, "lists": {}, "longer": {}}
    items |= {"tables": [], "varies": False, "product": False}
    items |= {name: value for name, value in changes.items() if name not in of_set}
    [finding] = judged("DP7", contract=[{"samples": 12, "items": items, **of_set}])
    assert finding.verdict == verdict and words in finding.cause


def test_the_length_of_a_stream_says_nothing_of_one_rank():
    assert judged("DP7", look=[{"iterable": True}], epochs=[[epoch([4], length=2)]]) == []


IN_FLIGHT = {
    "collate": {"batches": 3, "bytes": MIB, "tensors": 1},
    "workers": 2,
    "prefetch": 3,
    "shm": 30 * MIB,
}
IN_FLIGHT |= {"steps": 100, "strategy": "file_descriptor", "files": 10_000, "open": 20, "ranks": 1}


@pytest.mark.parametrize(
    "changes, verdict, batches",
    [
        ({}, "pass", 8),  # 2 workers x 3, and 2 in the loop
        ({"ranks": 3}, "pass", 24),
        ({"ranks": 4}, "fail", 32),
        ({"ranks": 4, "steps": 5}, "pass", 20),  # an epoch has no more
        ({"strategy": "file_system"}, "pass", 7),
        ({"shm": 8 * MIB}, "pass", 8),
        ({"shm": 8 * MIB - 1}, "fail", 8),
    ],
)
def test_shared_memory_is_that_of_the_batches_of_all_ranks(changes, verdict, batches):
    [finding] = judged("DP15", contract=[IN_FLIGHT | changes])
    assert finding.verdict == verdict
    assert f" = {batches}.0 MiB; /dev/shm: " in finding.cause


@pytest.mark.parametrize(
    "changes, cause", [({"workers": 0}, "num_workers is 0"), ({"shm": None}, "no /dev/shm")]
)
def test_without_shared_memory_there_is_nothing_to_check(changes, cause):
    [finding] = judged("DP15", contract=[IN_FLIGHT | changes])
    assert finding.verdict == "not applicable" and cause in finding.cause


@pytest.mark.parametrize(
    "changes, verdict",
    [
        ({}, "pass"),
        ({"files": 77}, "fail"),
        ({"files": 10, "strategy": "file_system"}, "pass"),  # storages are no open files there
        ({"files": 78, "workers": 1}, "pass"),
        ({"files": 63, "workers": 1}, "fail"),  # a worker holds its own, and one more
    ],
)
def test_open_files_are_those_of_the_batches_that_wait_in_a_process(changes, verdict):
    """20 are open, each worker has 4, and 5 batches of 10 tensors wait in the loop."""
    many = {"collate": {"batches": 3, "bytes": MIB, "tensors": 10}, "files": 78}
    findings = judged("DP15", contract=[IN_FLIGHT | many | changes])
    assert findings[-1].verdict == verdict


def epoch(steps: list[int], ended: bool = True, length: int | None = None) -> dict:
    """An epoch of batches of these sizes."""
    notes = [{"size": size, "worker": 0, "batch": "", "indices": None} for size in steps]
    return {"batches": notes, "ended": ended, "length": length}


@pytest.mark.parametrize(
    "samples, replicas, step",
    [(17, 2, 2), (18, 2, 2), (16, 2, None), (17, 1, 4), (19, 2, None), (33, 4, 2), (None, 1, None)],
)
def test_a_rank_s_share_of_a_distributed_sampler_is_rounded_up(samples, replicas, step):
    """Of an epoch that was not read to its end."""
    train = {
        "samples": samples,
        "replicas": replicas,
        "batch_size": 4,
        "drop_last": False,
        "iterable": False,
    }
    one = {"raised": {"text": "ValueError: Expected more"}}
    seen = {"train": train, "val": {}, "one": one}
    [finding] = judged("DP8", edges=[seen], epochs=[[epoch([4, 4], ended=False)]])
    assert finding.verdict == ("pass" if step is None else "fail")
    assert step is None or f"(rank 0: step {step})" in finding.cause
    train["drop_last"] = True
    assert verdict_on("DP8", edges=[seen], epochs=[[epoch([4, 4], ended=False)]]) == "pass"


@pytest.mark.parametrize(
    "entry, ranks, words",
    [
        (
            "DP7",
            [epoch([4, 4], length=2), epoch([4], length=2)],
            "len(loader) is 2, rank 1 got 1 batch",
        ),
        ("edges", [epoch([4]), epoch([])], "rank 1 makes no step"),
        ("DP8", [epoch([4, 4]), epoch([4, 1])], "(rank 1: step 1) raises ValueError"),
        ("DP8", [epoch([1, 1])], "(rank 0: step 0) raises ValueError"),
    ],
)
def test_the_rank_that_a_finding_speaks_of_is_named(entry, ranks, words):
    edges = {"train": {}, "val": {}, "one": {"raised": {"text": "ValueError: Expected more"}}}
    seen = {"look": [{"wrapped": False}], "edges": [edges], "epochs": [[rank] for rank in ranks]}
    [finding] = judged(entry, **seen)
    assert finding.verdict == "fail" and words in finding.cause


@pytest.mark.parametrize(
    "is_wrapped, length, verdict",
    [
        (True, 6, "not decidable"),
        (True, 9, "not decidable"),  # 3 are dropped
        (True, 10, "fail"),
        (True, 5, "fail"),
        (False, 6, "fail"),
    ],
)
def test_the_length_of_what_is_no_data_loader_may_count_samples(is_wrapped, length, verdict):
    look = {"wrapped": is_wrapped}
    [finding] = judged("DP7", look=[look], epochs=[[epoch([4, 2], length=length)]])
    assert finding.verdict == verdict
    fix = "let __len__ of the batch_sampler (or of your loader) count the batches"
    assert verdict != "fail" or finding.fix.startswith(fix)


def test_a_length_that_shrinks_with_what_was_read_is_wrong_in_epoch_1():
    of_rank = [epoch([4, 4], length=2), epoch([4, 4], length=0)]
    [finding] = judged("DP7", look=[{"wrapped": False}], epochs=[of_rank])
    assert finding.cause == "len(loader) is 0, rank 0 got 2 batches in epoch 1"


LEFT = epoch([4, 2], ended=False, length=9)


@pytest.mark.parametrize("read", [[LEFT], [epoch([4, 2])], [LEFT, epoch([], length=9)]])
def test_an_epoch_that_was_left_or_has_no_length_is_not_counted(read):
    assert judged("DP7", look=[{"wrapped": False}], epochs=[read]) == []


@pytest.mark.parametrize(
    "first, second, verdict",
    [
        (epoch([4], length=1), epoch([], length=1), "fail"),
        (epoch([4], length=1), epoch([], ended=False, length=1), "pass"),
        (epoch([4], length=1), epoch([], length=0), "fail"),  # a sampler that counts what is left
        (epoch([4], length=1), epoch([]), "pass"),  # of an iterator, which training makes anew
        (epoch([4], ended=False, length=1), epoch([], length=1), "pass"),  # a generator, closed
    ],
)
def test_a_loader_with_a_length_gives_steps_in_each_epoch(first, second, verdict):
    seen = {"train": dropping(24), "val": {}}
    [finding] = judged("edges", edges=[seen], epochs=[[first, second]])
    assert finding.verdict == verdict
    assert verdict == "pass" or "in epoch 0 and none in epoch 1" in finding.cause


@pytest.mark.parametrize(
    "norms, verdict",
    [
        ({"norms": []}, "pass"),
        ({"norms": ["bn"]}, "not decidable"),
        ({}, "not decidable"),
    ],
)
def test_a_model_that_cannot_be_called_is_judged_by_its_norms(norms, verdict):
    edges = {"train": {}, "val": {}, "one": {"unknown": "no way to call it", **norms}}
    [finding] = judged("DP8", edges=[edges], epochs=[[epoch([4, 1])]])
    assert finding.verdict == verdict
    assert verdict == "pass" or finding.cause.endswith("would raise; no way to call it")


def dropping(samples: int, replicas: int = 1) -> dict:
    """A loader of batches of 8 with drop_last."""
    return {"samples": samples, "batch_size": 8, "drop_last": True, "replicas": replicas}


@pytest.mark.parametrize("name, verdict", [("train", "pass"), ("val", "fail")])
def test_samples_that_drop_last_loses_are_counted_for_the_loader_that_loses_them(name, verdict):
    whole, losing = (dropping(samples) for samples in (24, 29))
    seen = {"train": whole, "val": whole, name: losing}
    words = f"drop_last=True on the {name} loader loses 5 of 29 samples"
    assert told("edges", edges=[seen], epochs=[]) == (verdict, words)


@pytest.mark.parametrize(
    "samples, lost",
    [
        (46, 14),  # 23 on each rank
        (45, 13),  # the same, one of which is repeated
        (15, 0),  # 8 on each rank
        (56, 8),  # 28 on each rank
    ],
)
def test_samples_that_drop_last_loses_are_counted_by_the_shares_of_the_ranks(samples, lost):
    seen = {"train": dropping(24), "val": dropping(samples, replicas=2)}
    [finding] = judged("edges", edges=[seen], epochs=[])
    words = f"drop_last=True on the val loader loses {lost} of {samples} samples"
    assert finding.cause == (words if lost else "no sample is lost")


def raises_at_once(seen: dict) -> None:
    raise ZeroDivisionError("of the check")


def raises_on_the_way(seen: dict) -> Iterator[Finding]:
    yield passed("")
    raise ZeroDivisionError("of the check")


@pytest.mark.parametrize("broken", [raises_at_once, raises_on_the_way])
def test_a_check_that_raises_takes_no_other_finding_away(broken):
    checks = [Check("DP7", ("edges",), broken), *load(["edges"])]
    seen = {"train": dropping(24), "val": {}}
    results = {"edges": Result("ok", [seen], {}, 1.0), "epochs": Result("ok", [], {}, 1.0)}
    first, second = judge(results, checks)
    assert (first.entry, first.verdict, second.verdict) == ("DP7", "not decidable", "pass")
    assert "the check raised ZeroDivisionError('of the check') in test_contract.py:" in first.cause


def test_a_check_whose_probe_did_not_end_well_says_which_and_why():
    checks = load(["DP8"])
    error = {"text": "not done after 18 s"}
    results = {"edges": Result("ok", [{}], {}, 1.0), "epochs": Result("late", [{}], error, 18.0)}
    [finding] = judge(results, checks)
    assert (finding.verdict, finding.cause, finding.needs) == (
        "not decidable",
        "the probe epochs late: not done after 18 s",
        LONGER,
    )
    results["epochs"] = Result("died", [{}], error, 18.0)
    assert judge(results, checks)[0].needs == ""
    # Some probes see nothing of what is no DataLoader.
    assert judged("DP4", contract=[None])[0].verdict == "not applicable"


@pytest.mark.parametrize("deaths, is_said", [(1, False), (2, True)])
def test_workers_of_another_start_method_fail_if_they_die_twice(
    monkeypatch, tmp_path, deaths, is_said
):
    note = {"samples": [{"x": "1"}], "batch": "1"}
    death = RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 1")
    ends = [death] * deaths + [[note, note]]
    if is_said:
        log = b"\xff\nTraceback (most recent call last):\nImportError: no\n"
        (tmp_path / "0.log").write_bytes(log)

    def notes(*_: object) -> list:
        end = ends.pop(0)
        if isinstance(end, RuntimeError):
            raise end
        return end

    monkeypatch.setattr(methods, "_notes", notes)
    seen = methods._run(None, [0], "spawn", Rank(0, 1, tmp_path, 0.0))
    assert ("raised" in seen) == is_said
    assert not is_said or seen["raised"]["text"].endswith("exit code 1: ImportError: no")
