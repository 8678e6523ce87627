"""What is said of randomness, sharding, order and state, of what the probes saw."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from millrace.audit.checks.findings import LONGER, Finding, judge, load
from millrace.audit.checks.order import _content, _same
from millrace.audit.checks.records import Batch, parse
from millrace.audit.checks.shares import draws_of
from millrace.audit.probes import epochs as probe
from millrace.audit.probes.epochs import _is_order, _numbers, _shuffling, epochs, loop, set_epoch
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options
from tests.audit import plain
from tests.audit.mutants.contract import CountsDown
from tests.audit.mutants.order import SampledStream
from tests.audit.ranks import BesideALateOne, Clock
from tests.audit.running import judged, target_of

BUILD = "tests.audit.mutants:build"


def test_a_loop_that_never_ends_is_left(guard):
    loop = "tests.audit.mutants.order:trains_for_ever"
    args = {"num_workers": 0}
    options = Options(f"{plain.here}:good", args=args, loop=loop, ranks=1, timeout=20)
    result = guard.audit(options, ["loop"])["loop"]
    assert result.status == "ok" and result.data[0]["joins"]


class Told(plain.Squares):
    def set_epoch(self, epoch: int) -> None: ...


def said_of(entry: str, status: str, text: str, probe: str = "look") -> list[Finding]:
    """What is said of a loader whose first batch, or another probe, ended so."""
    results = {probe: Result(status, [], {"text": text, "where": "at y"}, 0.0)}
    return judge(results, [check for check in load([entry]) if not check.probes])


@pytest.mark.parametrize(
    "status, fix",
    [
        ("raised", "Mend what it raises"),
        ("hung", "See where it stands"),
        ("died", "Bus error: enlarge /dev/shm"),
        ("memory", "Read samples when they are asked for"),
    ],
)
@pytest.mark.parametrize("probe", ["look", "epochs"])
def test_a_batch_that_does_not_come_fails_with_its_place_and_what_to_do(status, fix, probe):
    [finding] = said_of("end", status, "x", probe)
    assert (finding.verdict, finding.cause) == ("fail", f"the loader {status}: x")
    assert finding.fix.startswith(fix) and finding.evidence == {"text": "x", "where": "at y"}


def test_a_first_batch_that_takes_long_is_no_bug():
    [finding] = said_of("end", "late", "x")
    assert (finding.verdict, finding.cause) == ("not decidable", "no batch came: x")
    assert said_of("end", "ok", "") == []


@pytest.mark.parametrize("batches, verdict", [(2, "pass"), (0, "not decidable")])
def test_a_restart_that_was_read_until_the_time_was_over_skips_nothing(guard, batches, verdict):
    options = Options(BUILD, args={"name": "resume drawn without workers"}, ranks=1)
    results = guard.audit(options, ["look", "source", "loop", "resume"])
    [seen] = results["resume"].data
    for way in seen["ways"]:
        assert way["ended"] == [True] and len(way["passes"][0]) > batches
        way.update(ended=[False], passes=[way["passes"][0][:batches]])
    [finding] = judge(results, load(["resume"]))
    assert finding.verdict == verdict


@pytest.mark.parametrize("ended", [[True, False], [False, True]])
def test_one_epoch_that_any_rank_left_says_nothing_of_orders(ended):
    ranks = [[{**epoch([2, 1]), "ended": is_ended}] for is_ended in ended]
    told = [{"parts": [], "flags": {}}] * 2
    [finding] = said("DP14", epochs=ranks, set_epoch=told)
    assert finding.verdict == "not decidable" and finding.needs.startswith(LONGER)


@pytest.mark.parametrize(
    "rank, persistent, count",
    [(Clock, True, 1), (Clock, False, 2), (BesideALateOne, False, 1)],
)
def test_a_second_epoch_is_read_by_all_ranks_with_the_workers_of_the_first(
    tmp_path, rank, persistent, count
):
    loader = plain.good(length=400, num_workers=1, persistent_workers=persistent)
    out_of_time = rank(0, 1, tmp_path, 0.0)
    assert len(epochs(target_of(loader), out_of_time)) == count


def test_workers_that_seed_by_the_clock_do_so_a_second_apart(tmp_path, rank):
    times = tmp_path / "times"

    def note_time(worker: int) -> None:
        time.sleep(0 if times.exists() else 0.5)  # the first start takes longer
        with times.open("a") as lines:
            print(time.time(), file=lines)

    loader = plain.good(num_workers=1, worker_init_fn=note_time)
    epochs(target_of(loader), rank)
    first, second = map(float, times.read_text().split())
    assert second - first >= 1


@pytest.mark.parametrize("persistent", [True, False])
def test_an_epoch_that_is_told_is_read_without_workers_too_if_they_go_on(rank, persistent):
    data = Told()
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    data.epoch = 0
    data.order = sampler
    loader = DataLoader(data, 4, sampler=sampler, num_workers=1, persistent_workers=persistent)
    seen = set_epoch(target_of(loader), rank)
    assert (seen["parts"], seen["flags"]) == (["sampler", "dataset"], {"sampler.shuffle": True})
    assert ("main" in seen, "numbers" in seen) == (persistent, False)


@pytest.mark.parametrize("name", ["shuffle", "_shuffle"])
def test_a_sampler_says_by_either_name_that_it_shuffles(rank, name):
    sampler = SequentialSampler(plain.Squares())
    setattr(sampler, name, True)
    seen = set_epoch(target_of(DataLoader(plain.Squares(), sampler=sampler)), rank)
    assert seen["flags"] == {f"sampler.{name}": True}


class ToldStream(SampledStream):
    def set_epoch(self, epoch: int) -> None: ...


@pytest.mark.parametrize(
    "stream, parts", [(SampledStream(), ["dataset.order"]), (ToldStream(), ["dataset"])]
)
def test_a_stream_that_is_told_the_epoch_is_to_tell_the_sampler_that_it_holds(rank, stream, parts):
    assert set_epoch(target_of(DataLoader(stream, 4)), rank)["parts"] == parts


@dataclass(frozen=True)
class Ticking(Clock):
    """A second less is left whenever one asks."""

    def left(self) -> float:
        self.seconds[0] -= 1
        return self.seconds[0]


def test_an_epoch_leaves_time_for_the_next_one(tmp_path):
    loader = plain.good(length=400, num_workers=0)
    first, second = epochs(target_of(loader), Ticking(0, 1, tmp_path, 0.0, [40.0]))
    assert len(first["batches"]) > 1 < len(second["batches"])
    assert not first["ended"] and not second["ended"]
    assert first["left"] and second["left"]


def test_passes_that_the_time_cuts_short_are_compared_as_far_as_they_came(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_shuffles", dict)
    seen = probe.source(target_of(plain.good()), Ticking(0, 1, tmp_path, 0.0, [11.0]))
    assert (len(seen["samples"]), seen["complete"]) == (1, False) and "" in seen["stable"]


def notes(ids: list[int], worker: int | None = 0, size: int = 4) -> list[dict]:
    """Batches of a stream: what the loop got of these samples."""
    batches = [ids[at : at + size] for at in range(0, len(ids), size)]
    return [
        {
            "batch": str(batch),
            "size": len(batch),
            "worker": worker,
            "indices": None,
            "samples": [{"": str(number), "class": "a", "id": str(number)} for number in batch],
        }
        for batch in batches
    ]


def epoch(ids: list[int], ended: bool = True, **settings: object) -> dict:
    return {"batches": notes(ids, **settings), "ended": ended, "length": None}


LOOK = {"together": True, "torch": "2"}
LOOP = {"evaluation": None, "joins": False, "calls": None, "orders": [], "numbers": []}
LOOP |= {"ended": True}
SOURCE = {"iterable": True, "complete": True, "all_drawn": True, "stable": ["", "id"]}
SOURCE |= {"reordered": False, "shuffled_by": [], "frameworks": [], "makes_batches": False}
SOURCE["samples"] = [sample for note in notes(list(range(48))) for sample in note["samples"]]
MAPPED = {"iterable": False}
USUAL = {"look": LOOK, "source": SOURCE, "loop": LOOP}


def said(entry: str, **seen: object) -> list[Finding]:
    """What is said of an entry, of what the probes saw in each rank; of those in USUAL what differs
    from it."""
    of_one_rank = {name: [usual | seen.pop(name, {})] for name, usual in USUAL.items()}
    return judged(entry, **of_one_rank, **seen)


def verdict_on(entry: str, **seen: object) -> str:
    """The verdict of the only finding."""
    [finding] = said(entry, **seen)
    return finding.verdict


@pytest.mark.parametrize(
    "ranks, samples, distinct",
    [
        ([range(0, 48, 2), range(1, 48, 2)], 48, 48),
        ([range(0, 44, 2), range(1, 44, 2)], 44, 44),  # less than a step is dropped
        ([range(24), [*range(24, 48), 0]], 49, 48),  # one fills up the last step
        ([[], []], 0, 0),  # what makes no step is a fail of edges
    ],
)
@pytest.mark.parametrize("stable", [["", "class", "id"], ["class", "id"]])
def test_samples_are_counted_over_all_ranks(ranks, samples, distinct, stable):
    epochs = [[epoch(list(ids))] for ids in ranks]
    [finding] = said("DP2", epochs=epochs, source={"stable": stable})
    assert finding.verdict == "pass"
    assert finding.cause.endswith(f" out {samples} samples, {distinct} distinct, of 48")


@pytest.mark.parametrize(
    "ranks, verdict",
    [
        ([range(14)], "not decidable"),
        ([range(16)], "pass"),
        ([range(16), range(16, 30)], "not decidable"),
    ],
)
def test_an_epoch_of_which_a_rank_read_little_is_not_decided(ranks, verdict):
    epochs = [[epoch(list(ids), ended=False, size=2)] for ids in ranks]
    assert verdict_on("DP2", epochs=epochs) == verdict


def of_workers(ranks: list[list[list[int]]], has_sampler: bool) -> list[dict]:
    """What each rank read of its workers' samples."""
    readings = []
    for workers in ranks:
        batches = [note for number, ids in enumerate(workers) for note in notes(ids, number)]
        for note in batches if has_sampler else ():
            note["indices"] = [int(sample["id"]) for sample in note["samples"]]
        readings.append([{"batches": batches, "ended": True, "length": None}])
    return readings


@pytest.mark.parametrize(
    "has_sampler, lost, verdict",
    [(True, 7, "pass"), (True, 8, "fail"), (False, 15, "pass"), (False, 16, "fail")],
)
def test_less_than_a_step_of_all_that_make_batches_may_be_dropped(has_sampler, lost, verdict):
    """Batches of 4 are made by two ranks with a sampler, else by both workers of each."""
    given = list(range(48 - lost))
    # A worker that has no batch to give is none of those that share.
    ranks = [[given[0::4], given[1::4]], [given[2::4] + given[3::4]]]
    source = MAPPED if has_sampler else {}
    [finding] = said("DP2", epochs=of_workers(ranks, has_sampler), source=source)
    assert finding.verdict == verdict
    first_lost = [str(row) for row in range(48 - lost, 48)][:8]
    assert verdict == "pass" or finding.evidence == {"lost": first_lost}
    # A wrapper that counts steps goes on in its next epoch.
    left = [[{**rank[0], "left": True}] for rank in of_workers(ranks, has_sampler)]
    assert verdict_on("DP2", epochs=left, source=source) == "pass"
    # A sampler may leave samples out.
    leaving_out = source | {"all_drawn": False}
    assert verdict_on("DP2", epochs=of_workers(ranks, has_sampler), source=leaving_out) == "pass"


EVEN, ODD = list(range(0, 48, 2)), list(range(1, 48, 2))


@pytest.mark.parametrize(
    "ranks, lost",
    [
        ([[epoch(EVEN), epoch(ODD)], [epoch(ODD), epoch(EVEN)]], []),
        ([[epoch(EVEN), epoch(EVEN)], [epoch(ODD), epoch(ODD[:12])]], [("12 of 48", 1)]),
        ([[epoch(EVEN)] * 3, [epoch(ODD)] * 2 + [epoch(ODD[:12])]], [("12 of 48", 2)]),
        # One that was not read to its end says nothing of those after it.
        (
            [[epoch(EVEN)] * 3, [epoch(ODD), epoch(ODD[:4], ended=False), epoch([1])]],
            [("23 of 48", 2)],
        ),
        ([[epoch(EVEN)] * 2, [epoch(ODD), epoch(ODD[:4], ended=False)]], []),
        ([[epoch(EVEN)] * 2, [epoch(ODD), epoch(ODD[:4]) | {"left": True}]], []),
        ([[epoch(EVEN)] * 2, [epoch(ODD), epoch([])]], []),  # which `edges` fails
        ([[epoch(EVEN)] * 2, [epoch(ODD), epoch(ODD[:21])]], []),  # less than a step
        ([[epoch(EVEN)] * 2, [epoch(ODD)]], []),  # a rank that had no time for another one
        ([[epoch(EVEN)] * 2, [epoch(ODD[:20]), epoch(ODD[:12])]], []),  # epoch 0 lost some too
    ],
)
def test_samples_that_later_epochs_of_a_stream_leave_out_are_lost(ranks, lost):
    first, *later = said("DP2", epochs=ranks)
    assert first.verdict == "pass"
    assert [(finding.verdict, finding.cause) for finding in later] == [
        ("fail", f"{words} samples come nowhere in epoch {number}") for words, number in lost
    ]


@pytest.mark.parametrize(
    "has_sampler, stable, repeats, verdict",
    [
        (True, ["", "id"], 1, "pass"),
        (True, ["", "id"], 2, "fail"),
        (True, [], 1, "pass"),
        (True, [], 2, "not decidable"),  # indices may mean others on another rank
        (False, ["", "id"], 7, "pass"),
        (False, ["", "id"], 8, "fail"),
        (False, [], 1, "not decidable"),
    ],
)
def test_as_many_samples_may_repeat_as_fill_up_the_last_step(has_sampler, stable, repeats, verdict):
    """Of 47 samples a sampler repeats one for steps of 8; how full a stream's are nobody knows."""
    ranks = [[list(range(24))], [[*range(24, 47), *range(repeats)]]]
    source = {"iterable": not has_sampler, "samples": SOURCE["samples"][:47], "stable": stable}
    [finding] = said("DP2", epochs=of_workers(ranks, has_sampler), source=source)
    assert finding.verdict == verdict
    repeated = {"ids": [str(row) for row in range(repeats)]}
    assert verdict != "fail" or finding.evidence == repeated


@pytest.mark.parametrize("repeats, verdict", [(7, "pass"), (8, "fail")])
def test_a_batch_of_another_size_may_come_again_to_fill_up_the_last_step(repeats, verdict):
    """Batches by length: four of 4 on rank 0, and 3 and 1, which a rank repeats as a whole."""
    epochs = of_workers([[list(range(23)), [23]], [[*range(24, 48), *range(repeats)]]], True)
    assert verdict_on("DP2", epochs=epochs, source=MAPPED) == verdict


def test_the_last_batch_of_each_rank_may_be_smaller_and_is_no_batch_of_another_size():
    """Five of 4 and one of 2 on each rank: of 39 samples one may repeat."""
    epochs = of_workers([[list(range(22))], [[*range(22, 39), *range(5)]]], True)
    source = MAPPED | {"samples": SOURCE["samples"][:39]}
    assert verdict_on("DP2", epochs=epochs, source=source) == "fail"
    # The largest batch is that of all ranks: of 35 samples five may repeat.
    epochs = of_workers([[[0, 1]], [[*range(2, 35), 0, 1]]], True)
    source = MAPPED | {"samples": SOURCE["samples"][:35]}
    assert verdict_on("DP2", epochs=epochs, source=source) == "pass"


@pytest.mark.parametrize("samples, verdict", [(36, "not decidable"), (48, "pass")])
def test_a_few_batches_that_hold_the_whole_dataset_are_decided(samples, verdict):
    """The time was over before the loader said that it ends."""
    few = epoch(list(range(samples)), ended=False, size=12)
    assert verdict_on("DP2", epochs=[[few]]) == verdict


def test_samples_of_no_dataset_are_not_counted():
    packed = epoch(list(range(40, 88)))
    [finding] = said("DP2", epochs=[[packed]])
    assert finding.verdict == "not decidable"
    assert "40 of 48 samples are none that the dataset gives" in finding.cause
    [finding] = said("DP2", epochs=[[packed], [packed]])
    assert finding.cause.startswith("48 samples come on several of 2 ranks")
    # In another order only those are known that the dataset has.
    [finding] = said("DP2", epochs=[[packed], [epoch(list(range(87, 39, -1)))]])
    assert finding.verdict == "fail" and finding.cause.startswith("8 samples come on several of 2")


def test_what_one_worker_gives_twice_is_not_repeated_by_several():
    workers = [[*range(24), *range(8)], list(range(24, 48))]
    assert verdict_on("DP2", epochs=of_workers([workers], has_sampler=False)) == "pass"
    for drawn in (range(16, 48), range(24, 40)):  # with replacement: some meet, some never come
        workers[1] = list(drawn)
        [finding] = said("DP2", epochs=of_workers([workers], has_sampler=False))
        assert finding.verdict == "not decidable" and finding.needs.endswith("with replacement")
    # What the dataset holds twice is not drawn with replacement.
    half = of_workers([[[*range(12)] * 2]], has_sampler=False)
    assert verdict_on("DP2", epochs=half, source={"samples": SOURCE["samples"][:24] * 2}) == "fail"
    # No sampler has drawn what a stream only names (sample_ids).
    ranks = of_workers([[list(range(30)), list(range(18, 48))]], has_sampler=True)
    [finding] = said("DP2", epochs=ranks)
    assert finding.cause.startswith("12 samples come on several of 2 workers")


@pytest.mark.parametrize(
    "source, verdict, fix",
    [
        ({}, "fail", "sampler=DistributedSampler(dataset)"),
        ({"frameworks": ["accelerate"]}, "not decidable", ""),
        ({"frameworks": ["accelerate"], "accelerated": True}, "fail", "accelerate.utils.set_seed("),
        ({"drawn_again": {str(row): 2 for row in range(48)}}, "pass", ""),  # each rank has a copy
    ],
)
def test_ranks_of_one_sampler_are_alike_unless_it_is_shared_out(source, verdict, fix):
    ranks = of_workers([[list(range(48))]] * 2, has_sampler=True)
    [finding] = said("DP2", epochs=ranks, source=MAPPED | source)
    assert finding.verdict == verdict and finding.fix.startswith(fix)


@pytest.mark.parametrize(
    "count, second, verdict",
    [(24, 1, "not decidable"), (24, -1, "pass"), (8, 1, "not decidable"), (7, 1, "pass")],
)
def test_a_sampler_that_draws_with_replacement_may_meet_but_not_all_the_way(count, second, verdict):
    drawn = [*range(count), *range(count)]
    ranks = of_workers([[drawn], [drawn[::second]]], has_sampler=True)
    [finding] = said("DP2", epochs=ranks, source=MAPPED)
    assert finding.verdict == verdict and "draws with replacement" in finding.cause
    # A rank after the first may be the only one that does.
    ranks = of_workers([[list(range(count))], [drawn]], has_sampler=True)
    [finding] = said("DP2", epochs=ranks, source=MAPPED)
    assert "draws with replacement" in finding.cause


@pytest.mark.parametrize("together, needs", [(True, "a field"), (False, "--ranks 1 if one")])
def test_samples_that_nothing_tells_apart_may_be_those_of_one_process(together, needs):
    """Nobody said how many processes train: one would be decided by its indices."""
    ranks = of_workers([[list(range(48))]] * 2, has_sampler=True)
    [finding] = said(
        "DP2", epochs=ranks, look={"together": together}, source=MAPPED | {"stable": []}
    )
    assert finding.verdict == "not decidable" and finding.needs.startswith(needs)


def test_indices_that_mean_other_samples_on_another_rank_repeat_nothing():
    ranks = [[epoch(list(range(24)))], [epoch(list(range(24, 48)))]]
    for [read] in ranks:
        for note in read["batches"]:
            note["indices"] = [int(sample["id"]) % 24 for sample in note["samples"]]
    [finding] = said("DP2", epochs=ranks, source={"complete": False})
    assert finding.verdict != "fail"


@pytest.mark.parametrize(
    "second, loop, is_blamed",
    [
        (epoch(list(range(16))), {}, True),
        (epoch(list(range(16))), {"joins": True}, False),
        (epoch(list(range(16)), ended=False), {}, False),  # the time was over
    ],
)
def test_steps_are_uneven_if_a_rank_ends_before_another(second, loop, is_blamed):
    ranks = [[epoch(list(range(24)))], [second]]
    findings = said("DP3", epochs=ranks, loop=loop)
    assert ("fail" in [each.verdict for each in findings]) == is_blamed


@pytest.mark.parametrize(
    "ranks, is_blamed",
    [
        ([[0, 2, 4], [1, 3, 0]], True),  # by any sampler, such as timm's
        ([[0, 2, 4], [1, 3]], False),
        ([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]], False),  # each rank reads all
        ([[0, 1, 2], [0, 1, 2]], False),  # a subset, on both
        ([[0, 1, 2, 3, 4], [0, 1]], False),  # more than one for each rank
    ],
)
def test_a_sampler_may_not_repeat_a_row_to_even_out_ranks_of_evaluation(ranks, is_blamed):
    seen = [{"sampler": "Ordered", "samples": 5, "drawn": drawn} for drawn in ranks]
    loops = [LOOP | {"evaluation": each} for each in seen]
    epochs = [[epoch(list(range(24)))]] * 2
    fails = [each for each in judged("DP3", look=[LOOK], epochs=epochs, loop=loops) if each.fix]
    assert bool(fails) == is_blamed
    for fail in fails:
        assert "Ordered repeats 1 sample to even out 2 ranks" in fail.cause
        assert fail.evidence == {"repeated": [0]}


def test_the_length_of_before_an_epoch_counts_where_none_is_told_after_it(rank):
    batches = CountsDown(24)
    loader = DataLoader(plain.Squares(24), batch_sampler=batches)
    # Before the second one it is 0, and behind it below that, which raises.
    assert [seen["length"] for seen in epochs(target_of(loader), rank)] == [6, 0]


def test_rows_that_an_evaluation_draws_are_noted_with_those_that_even_out(rank):
    data = plain.Squares(5)
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    target = target_of(None, DataLoader(data, sampler=sampler))
    first_of_two = replace(rank, world=2)
    seen = loop(target, first_of_two)["evaluation"]
    assert seen == {"sampler": "DistributedSampler", "samples": 5, "drawn": [0, 2, 4]}
    assert loop(target, rank)["evaluation"] is None
    stream = loop(target_of(None, DataLoader(Counting())), first_of_two)
    assert stream["evaluation"] is None


@pytest.mark.parametrize(
    "text, entry, fix",
    [
        ("sampler option is mutually exclusive with shuffle", "DP14", "sampler= without shuffle"),
        ("expected unspecified shuffle option", "DP14", "Shuffle inside"),
        ("expected unspecified sampler option", "DP2", "Share out inside"),
    ],
)
def test_arguments_that_torch_refuses_together_fail_by_their_words(text, entry, fix):
    [finding] = said_of("DP14", "raised", text)
    assert (finding.entry, finding.verdict, finding.cause) == (entry, "fail", f"torch: {text}")
    assert finding.fix.startswith(fix) and finding.evidence == {"where": "at y"}


def test_epochs_that_take_long_are_no_batch_that_did_not_come():
    assert said_of("end", "late", "x", "epochs") == []


def test_samples_that_three_ranks_have_are_counted_once():
    [finding] = said("DP2", epochs=[[epoch(list(range(48)))]] * 3)
    assert finding.verdict == "fail"
    assert finding.cause == "48 samples come on several of 3 ranks, up to 3 times an epoch"


def test_ranks_that_are_uneven_only_in_the_second_epoch_fail():
    first, short = list(range(24)), list(range(16))
    ranks = [[epoch(first), epoch(first)], [epoch(first), epoch(short)]]
    [finding] = said("DP3", epochs=ranks)
    [alone] = said("DP3", epochs=ranks, look={"together": False})
    assert alone.verdict == "not decidable" and "--ranks 1 if one does" in alone.needs
    assert (finding.verdict, finding.cause) == ("fail", "ranks make [6, 4] steps in epoch 1")


def test_epochs_0_and_1_are_compared_however_many_are_read():
    ranks = [[epoch(ONE), epoch(ONE[:3], ended=False), epoch(OTHER)]]
    [finding] = said("DP14", epochs=ranks, set_epoch=[DEAF], source=SHUFFLED)
    assert finding.verdict == "fail" and finding.evidence.keys() == {"epoch 0", "epoch 1"}
    ranks = [[epoch(ONE), epoch([])]]
    [finding] = said("DP14", epochs=ranks, set_epoch=[DEAF], source=SHUFFLED)
    assert finding.cause == "no two orders to compare"


@pytest.mark.parametrize("rank, verdict", [(0, "pass"), (1, "pass"), (None, "not applicable")])
def test_an_order_that_changes_on_one_rank_changes(rank, verdict):
    ids = list(range(24))
    other = [*ids[:20], *ids[:19:-1]]
    ranks = [[epoch(ids), epoch(other if each == rank else ids)] for each in range(2)]
    untold = [{"parts": [], "flags": {}}] * 2
    assert verdict_on("DP14", epochs=ranks, set_epoch=untold) == verdict


@pytest.mark.parametrize(
    "loader, args, facts",
    [
        ("turned", {}, {"stable": [], "reordered": False, "shuffled_by": []}),
        ("augmented", {}, {"stable": [""], "reordered": False, "shuffled_by": []}),
        ("good", {"length": 1000}, {"complete": True, "all_drawn": True, "shuffled_by": []}),
        ("good", {"shuffle": True}, {"shuffled_by": ["torch.randperm"]}),
        ("good", {"batch_size": None}, {"makes_batches": False}),  # it has a sampler
        ("good", {"length": 1001}, {"complete": False, "rows": 1001}),  # not every row is read
        ("in_tuples", {}, {"stable": ["", "square", "index"], "all_drawn": True}),
        (f"{plain.here}:named", {}, {"stable": ["", "square", "index"], "all_drawn": True}),
        ("good", {"sampler": [0, 1, 1]}, {"all_drawn": False, "drawn_again": {"1": 2}}),
        (
            BUILD,
            {"name": "DP14 a generator of which workers have copies"},
            {"reordered": True, "shuffled_by": ["Random.shuffle"]},
        ),
    ],
)
def test_two_passes_say_what_is_the_same_and_what_made_an_order(guard, loader, args, facts):
    place = loader if ":" in loader else f"{plain.here}:{loader}"
    [seen] = guard.audit(Options(place, args=args, ranks=1), ["source"])["source"].data
    assert facts.items() <= seen.items()


ONE, OTHER = [3, 1, 0, 2], [0, 2, 3, 1]


@pytest.mark.parametrize(
    "first, second, reordered, is_order",
    [
        (["a"] * 2, ["a"], False, True),
        (["a"] * 3, ["a"], False, False),  # for every second sample
        (["a"], ["b"], False, False),
        (["a"], ["b"], True, True),
    ],
)
def test_what_made_an_order_of_six_samples(first, second, reordered, is_order):
    assert _is_order(first, second, 6, reordered) == is_order


@pytest.mark.parametrize("made", [torch.tensor, np.array, list])
def test_what_shuffles_make_is_told_by_its_contents(made):
    calls = defaultdict(list)
    for numbers in ([2, 1], [2, 1], [1, 2]):
        _shuffling(made, calls, "a")(numbers)
    first, again, other = calls["a"]
    assert first == again != other


FIRST, SECOND = [7, 3, 1, 6, 0, 4, 2, 5], [2, 6, 4, 0, 1, 7, 5, 3]
DRAWN = [[index] for index in FIRST]
PAIRS = [[index, index + 1] for index in FIRST]
TURNED = [pair[::-1] for pair in PAIRS]  # other orders of rows, but not of batches
DEAF = {"parts": ["sampler"], "flags": {}, "own": [], "main": []}
UNTOLD = {"calls": [], "numbers": [[0], [0]]}
COUNTING = DEAF | {"parts": [], "numbers": ["dataset.epoch"]}
HEARS = DEAF | {"own": [notes(ONE), notes(OTHER)]}
NO_SHUFFLE = "no shuffle: the order is fixed"
SHUFFLED = {"shuffled_by": ["random.shuffle"]}
CALLS_IN_VAIN = "and the loop calls [['a', 0]]"
FIXES = {
    CALLS_IN_VAIN: "Call loader.sampler.set_epoch(epoch) before each epoch",
    "which the loop does not call": "Call loader.sampler.set_epoch(epoch) before each epoch",
    "random.shuffle shuffles": "Seed the order with seed + epoch",
    "sampler.shuffle shuffles": "Seed the order with seed + epoch",
    "the same copy": "An order by (seed, epoch)",
}


@pytest.mark.parametrize(
    "told, source, loop, verdict, words",
    [
        (HEARS, {}, {}, "not decidable", "only after set_epoch"),
        (HEARS, {}, {"calls": []}, "fail", "which the loop does not call"),
        (
            HEARS,
            {},
            {"calls": [["a", at] for at in range(5)]},
            "pass",
            ": [['a', 0], ['a', 1], ['a', 2], ['a', 3]]",
        ),
        # The loop tells each epoch that it is the first one, or by an attribute which it is.
        (HEARS, {}, {"calls": [["a", 0]], "orders": [DRAWN, DRAWN]}, "fail", CALLS_IN_VAIN),
        (HEARS, {}, {"calls": [["a", 0]], "orders": [DRAWN, DRAWN[:7]]}, "pass", "['a', 0]"),
        (HEARS, {}, {"calls": [["a", 0]], "orders": [[[3]], [[3, 1]]]}, "pass", "['a', 0]"),
        (HEARS, {}, {"calls": [["a", 0]], "orders": [PAIRS, TURNED]}, "fail", CALLS_IN_VAIN),
        (HEARS, {}, {"calls": [], "orders": [PAIRS[:7], TURNED[:7]]}, "pass", "the loop calls"),
        (DEAF, SHUFFLED, {"calls": [], "orders": [[[3, 1]], [[0, 2]]]}, "pass", "another order"),
        (DEAF, {}, {}, "not applicable", NO_SHUFFLE),
        (DEAF, SHUFFLED, {}, "fail", "random.shuffle shuffles"),
        (DEAF | {"flags": {"sampler.shuffle": True}}, {}, {}, "fail", "sampler.shuffle shuffles"),
        (
            DEAF | {"flags": {"sampler.shuffle": False}},
            SHUFFLED,
            {},
            "not applicable",
            NO_SHUFFLE,
        ),
        # A stream that has no set_epoch: the loop may set its epoch, and does, or does not.
        (COUNTING, SHUFFLED, {}, "not decidable", "unless the loop sets dataset.epoch"),
        (COUNTING, SHUFFLED, {"calls": [], "numbers": [[0], [1]]}, "not decidable", "as it does"),
        (COUNTING, SHUFFLED, {"calls": [], "numbers": [[1]]}, "not decidable", "unless the loop"),
        (COUNTING, SHUFFLED, {"calls": []}, "not decidable", "unless the loop sets"),
        (COUNTING, SHUFFLED, UNTOLD, "fail", "random.shuffle shuffles"),
        (COUNTING | {"parts": ["dataset"]}, SHUFFLED, {}, "fail", "random.shuffle shuffles"),
        (COUNTING, {}, {}, "not applicable", NO_SHUFFLE),
        (DEAF, {"reordered": True}, {}, "fail", "the same copy"),
        (DEAF, {"reordered": True, "iterable": False}, {}, "not applicable", NO_SHUFFLE),
    ],
)
def test_one_order_is_a_bug_if_it_is_shuffled_or_nobody_says_the_epoch(
    told, source, loop, verdict, words
):
    [finding] = said(
        "DP14",
        epochs=[[epoch(ONE), epoch(ONE)]],
        set_epoch=[told],
        source=source,
        loop=loop,
    )
    assert finding.verdict == verdict and words in finding.cause
    assert verdict != "fail" or FIXES[words] in finding.fix
    assert [len(order) for order in finding.evidence.values()] == [4, 4]


@pytest.mark.parametrize(
    "rows, loop, second, verdict",
    [
        (4, {}, FIRST, "not decidable"),
        (5, {}, FIRST, "fail"),
        (4, {"calls": [], "orders": [DRAWN]}, FIRST, "pass"),
        (4, {"calls": [], "orders": [DRAWN], "ended": False}, FIRST, "not decidable"),
        (4, {"calls": [], "orders": [DRAWN, DRAWN]}, FIRST, "fail"),
        (4, {"calls": [], "orders": [DRAWN, DRAWN], "ended": False}, FIRST, "fail"),
        (4, {}, SECOND, "pass"),
    ],
)
def test_a_pass_that_draws_each_sample_twice_may_be_all_that_is_trained(
    rows, loop, second, verdict
):
    ranks = of_workers([[FIRST[:7]], [second[:7]]], has_sampler=True)
    passes = [read | {"length": 2} for [read] in ranks]
    source = MAPPED | SHUFFLED | {"rows": rows}
    [finding] = said("DP14", epochs=[passes], set_epoch=[DEAF], source=source, loop=loop)
    assert finding.verdict == verdict
    assert second is FIRST or finding.cause.startswith("epochs 0 and 1")


@pytest.mark.parametrize("length, verdict", [(1, "not decidable"), (2, "fail")])
def test_one_order_of_passes_that_outlast_their_length_may_be_begun_once(length, verdict):
    ranks = of_workers([[FIRST[:4]], [FIRST[4:8]], [FIRST[:4]]], has_sampler=True)
    batches = [batch for [read] in ranks for batch in read["batches"]]
    passes = [{"batches": batches, "ended": False, "length": length}] * 2
    source = MAPPED | SHUFFLED
    assert verdict_on("DP14", epochs=[passes], set_epoch=[DEAF], source=source) == verdict


@pytest.mark.parametrize("batches, verdict", [(12, "fail"), (7, "pass")])
def test_of_many_batches_the_order_counts_and_not_that_of_the_rows_in_one(batches, verdict):
    rows = np.arange(4 * batches)[::-1].reshape(batches, 4)
    first, second = (
        of_workers([[order.ravel().tolist()]], has_sampler=True)[0][0]
        for order in (rows, rows[:, ::-1])
    )
    told = DEAF | {"flags": {"sampler.shuffle": True}}
    ranks = [[first, second]]
    assert verdict_on("DP14", epochs=ranks, set_epoch=[told], source=MAPPED) == verdict


class Counting(IterableDataset):
    def __init__(self) -> None:
        self.epoch = 0
        self.samples_per_epoch = 1

    def __iter__(self) -> Iterator[int]:
        yield self.epoch


def test_what_a_stream_says_of_its_epoch_is_noted_as_the_loop_begins_one(monkeypatch):
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)  # to be put back
    stream = Counting()
    loader = DataLoader(stream)
    numbers = _numbers(loader)
    for number in range(2):
        stream.epoch = number
        assert len(list(loader)) == 1
    assert len(list(DataLoader(stream))) == 1  # another loader
    assert numbers == [[["dataset.epoch", 0]], [["dataset.epoch", 1]]]
    held = SimpleNamespace(_epoch=2, current_epoch=3, samples_per_epoch=4, epoch=True)
    found = probe._epoch_numbers(held)
    assert found == [["dataset._epoch", 2], ["dataset.current_epoch", 3]]


def test_an_order_of_indices_that_only_the_main_process_draws_anew_is_not_missed():
    """What is read is the same in each epoch, in whatever order."""

    def drawn(ids: list[int]) -> list[dict]:
        return [{**note, "indices": [note["batch"]]} for note in notes(ids, size=1)]

    told = {"parts": ["dataset"], "flags": {}, "own": [drawn(ONE), drawn(ONE)]}
    told["main"] = [drawn(ONE), drawn(OTHER), drawn(ONE)]
    assert verdict_on("DP14", epochs=[[epoch(ONE), epoch(OTHER)]], set_epoch=[told]) == "pass"


def test_an_epoch_that_the_workers_of_any_rank_miss_is_a_bug():
    missed = DEAF | {"own": [notes(ONE)] * 2, "main": [notes(ONE), notes(OTHER), notes(ONE)]}
    ranks = [[epoch(ONE), epoch(ONE)]] * 2
    [finding] = said("DP14", epochs=ranks, set_epoch=[DEAF, missed])
    assert finding.verdict == "fail" and finding.cause.endswith("workers miss it")


@pytest.mark.parametrize(
    "first, second, are_same",
    [
        ({0: "a", 1: "b"}, {1: "b", 0: "a"}, True),
        ({0: "a", 1: "b"}, {1: "b", 2: "c"}, True),  # of the rows that both drew
        ({0: "a", 1: "b"}, {0: "a", 1: "other"}, False),
        ({0: "a"}, {1: "a"}, False),
        ({0: "a"}, {0: "a", 1: "b"}, False),
    ],
)
def test_epochs_hold_the_same_if_the_rows_of_both_do_and_they_are_as_long(first, second, are_same):
    assert _same(first, second) == are_same


def test_what_an_epoch_of_a_stream_holds_is_told_by_its_turns():
    batches = parse(list[Batch], notes(ONE, size=2))
    assert len(batches) > 1 and [*_content(batches)] == [*range(len(batches))]


def test_indices_that_ascend_in_both_epochs_are_not_shuffled():
    [rank] = of_workers([[list(range(8))]], has_sampler=True)
    [finding] = said("DP14", epochs=[rank * 2], set_epoch=[DEAF])
    assert (finding.verdict, "indices ascend" in finding.cause) == ("not applicable", True)
    [rank] = of_workers([[[*range(8), 9, 8]]], has_sampler=True)
    [finding] = said("DP14", epochs=[rank * 2], set_epoch=[DEAF])
    assert finding.cause.startswith(NO_SHUFFLE)
    assert [len(order) for order in finding.evidence.values()] == [8, 8]
    # Digests of contents ascend by chance.
    [finding] = said("DP14", epochs=[[epoch(list(range(8)))] * 2], set_epoch=[DEAF])
    assert finding.cause.startswith(NO_SHUFFLE)


@pytest.mark.parametrize(
    "length, loop, verdict",
    [
        (2, {}, "not decidable"),
        (5, {}, "not decidable"),
        (6, {}, "pass"),
        (5, {"calls": [], "ended": True}, "pass"),  # it counts its steps
        (5, {"calls": [], "ended": False}, "not decidable"),
    ],
)
def test_more_than_twice_the_length_of_any_rank_is_right_only_if_the_loop_ends(
    length, loop, verdict
):
    endless = {**epoch(list(range(48)), ended=False), "length": length}
    [finding] = said("end", epochs=[[epoch([1])], [epoch([1]), endless]], loop=loop)
    assert finding.verdict == verdict
    assert length == 6 or f"no end in 12 batches, though len(loader) is {length}" in finding.cause


def restart(
    came: list[int], next_epoch: list[int] | None = None, ended: bool = True, **changes
) -> dict:
    """What a rank saw whose epoch 1 was stopped after one batch of two samples."""

    def way(*passes: list[int]) -> dict:
        each = [notes(ids, size=2) for ids in passes]
        return {"told": False, "error": "", "passes": each, "ended": [ended] * len(each)}

    seen = {"how": "loader", "at": 1, "run": [notes(FIRST, size=2), notes(SECOND, size=2)]}
    seen |= {"ended": [True, True], "ways": [way(came)], "next": None}
    return seen | {"next": None if next_epoch is None else way([], next_epoch)} | changes


LEFT = SECOND[2:]
SHORTER = {"run": [notes(FIRST, size=2), notes(SECOND[:4], size=2)]}  # in epoch 1
LEFT_EARLY = SHORTER | {"ended": [True, False]}
AGAIN = {"run": [notes(FIRST, size=2), notes([2, 6, 2, 2], size=2)]}  # a sample thrice in epoch 1
OTHER_REST = {"run": [notes(FIRST, size=2), notes([2, 6, 2, 0], size=2)]}
AT_ONCE = {"told": False, "error": "", "passes": [notes(FIRST, size=2), []], "ended": [True] * 2}


@pytest.mark.parametrize(
    "came, cause",
    [
        ([*SECOND[:2], *LEFT[:2]], "restored in mid-epoch 1 by loader: 2 samples replayed"),
        ([], "the time was over before a batch came after a restart"),
    ],
)
def test_what_did_not_come_before_the_time_was_over_is_not_counted_as_skipped(came, cause):
    [finding] = said("resume", resume=[restart(came, ended=False)])
    assert finding.cause == cause
    names = {"expected": ["4", "0"], "came": ["2", "6"], "replayed": ["2", "6"]}
    assert not came or finding.evidence == {"rank": 0, "after batches": 1, **names}


def test_samples_that_cannot_be_known_again_say_nothing_of_a_restart():
    [finding] = said("resume", resume=[restart(LEFT)], source={"stable": []})
    assert finding.cause == "nothing is left that can be known again"
    [batch] = parse(list[Batch], notes([0, 1]))
    del batch.samples[1]["id"]
    assert draws_of([batch], ["id"]) == []


@pytest.mark.parametrize(
    "second_rank, verdict, words",
    [
        (restart(LEFT), "pass", "after 1 batch of epoch 1"),
        (restart(LEFT, next_epoch=FIRST), "pass", "after epoch 0"),
        (restart(LEFT[:-2]), "fail", "2 samples skipped"),  # without its tail
        (restart(LEFT[:-2], ended=False), "pass", ""),  # the time was over
        (restart([*SECOND]), "fail", "2 samples replayed"),
        (restart(LEFT[2:] + LEFT[:2]), "fail", "the rest in another order"),
        (restart(LEFT, next_epoch=[]), "fail", "the next epoch has 0 of 8 samples"),
        (restart(LEFT, next_epoch=FIRST[:4]), "fail", "the next epoch has 4 of 8 samples"),
        (restart(LEFT, next_epoch=FIRST[:6]), "pass", ""),  # another order may leave out a batch
        (restart(LEFT[:2], next_epoch=FIRST[:4]) | SHORTER, "pass", ""),
        (restart(LEFT) | LEFT_EARLY, "pass", ""),
        (restart(LEFT, next_epoch=FIRST[:4]) | LEFT_EARLY, "fail", "has 4 of 8 samples"),
        (restart(LEFT) | {"next": AT_ONCE}, "pass", "after epoch 0"),
        (restart([2]) | AGAIN, "fail", "1 sample skipped"),
        (restart([0, 2]) | OTHER_REST, "fail", "the rest in another order"),
    ],
)
def test_a_restart_is_judged_on_every_rank(second_rank, verdict, words):
    [finding] = said("resume", resume=[restart(LEFT, FIRST), second_rank])
    assert finding.verdict == verdict and words in finding.cause
    assert verdict == "pass" or finding.evidence["rank"] == 1


@pytest.mark.parametrize(
    "calls, verdict", [([["sampler", 1]], "pass"), ([], "fail"), (None, "not decidable")]
)
def test_a_restart_that_is_right_if_the_epoch_is_told_is_judged_by_the_loop(calls, verdict):
    seen = restart(list(SECOND))
    right = restart(LEFT)["ways"][0] | {"told": True}
    seen["ways"].append(right)
    [finding] = said("resume", resume=[seen], loop={"calls": calls})
    assert finding.verdict == verdict
    assert (verdict == "fail") == finding.fix.startswith("Save the epoch in the state, or call")
    # If both ways are wrong, the one that hears of the epoch is told.
    seen["ways"][1] = restart(LEFT[:-2])["ways"][0] | {"told": True}
    [finding] = said("resume", resume=[seen])
    assert finding.cause.endswith("2 samples skipped")


@pytest.mark.parametrize("place", ["ways", "next"])
def test_a_restart_that_raises_fails_with_its_error(place):
    seen = restart(LEFT, next_epoch=FIRST)
    raised = {"told": False, "error": "KeyError: 'x'", "passes": [], "ended": []}
    seen[place] = [raised] if place == "ways" else raised
    # Also if no sample can be known again.
    for stable in ([""], [])[: 1 + (place == "ways")]:
        finding, *_ = said("resume", resume=[seen], source={"stable": stable})
        assert finding.verdict == "fail" and "it raises KeyError: 'x'" in finding.cause
