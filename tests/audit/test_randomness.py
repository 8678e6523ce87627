"""Randomness, sharding, order and state of loaders whose answer is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.audit.checks import order, randomness, registry, restart
from millrace.audit.runner.guard import Guard
from millrace.audit.runner.target import Options

PROBES = ["look", "epochs", "set_epoch", "loop", "source", "repeat", "resume"]
FILES = (randomness.__name__, order.__name__, restart.__name__)
registry.load()
FAMILY = [each for each in registry.CHECKS if each.function.__module__ in FILES]
PLACE = "tests.audit.random_loaders:"


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    with Guard() as opened:
        yield opened


# Loader, its arguments, ranks, and what must be found: entry, verdict, words of its cause.
CASES = [
    ("noisy", {}, 2, [("DP1", "pass", "differ"), ("DP2", "pass", ""), ("DP3", "pass", "")]),
    ("noisy", {"noise": "own"}, 1, [("DP1", "fail", "workers 0 and 1"), ("DP1", "fail", "epochs 0 and 1")]),
    ("noisy", {"seeded": True}, 2, [("DP1", "fail", "ranks 0 and 1"), ("DP14", "not applicable", "ascend")]),
    ("noisy", {"noise": ""}, 1, [("DP1", "pass", "the same")]),
    ("nothing", {}, 2, [("DP1", "pass", ""), ("DP2", "pass", ""), ("end", "pass", "")]),
    ("constant_seed", {}, 1, [("DP1", "fail", "epochs 0 and 1"), ("DP14", "pass", "")]),
    ("stream", {}, 2, [("DP2", "fail", "of 2 workers"), ("DP2", "fail", "of 2 ranks")]),
    ("stream", {"over": "workers"}, 2, [("DP2", "fail", "of 2 ranks"), ("DP3", "pass", "")]),
    ("stream", {"over": "ranks workers"}, 2, [("DP2", "pass", ""), ("DP3", "fail", "[5, 4]")]),
    ("stream", {"over": "workers", "shuffled": True}, 1, [("DP14", "fail", "copy"), ("DP1", "pass", "")]),
    ("stream", {"endless": True}, 1, [("end", "pass", "endless"), ("DP2", "not decidable", "")]),
    ("twice", {}, 2, [("DP2", "fail", "16 of 32 samples come nowhere")]),
    ("by_batch", {}, 2, [("DP2", "pass", "share out"), ("DP14", "not decidable", "after set_epoch")]),
    ("by_batch", {"alone": True}, 2, [("DP2", "fail", "of 2 ranks"), ("DP14", "not decidable", "")]),
    ("distributed", {}, 2, [("DP14", "not decidable", ""), ("DP2", "pass", "")]),
    ("sampled", {}, 1, [("DP14", "fail", "Random.shuffle"), ("resume", "not applicable", "")]),
    ("sampled", {"state": True}, 1, [("resume", "fail", "16 samples skipped"), ("DP14", "fail", "")]),
    ("sampled", {"state": True, "workers": 0}, 1, [("resume", "pass", "by sampler"), ("DP14", "fail", "")]),
    ("by_epoch", {"persistent": True}, 1, [("DP14", "fail", "persistent workers")]),
    ("by_epoch", {"persistent": False}, 1, [("DP14", "not applicable", "")]),
    ("refused", {}, 1, [("DP14", "fail", "mutually exclusive"), ("end", "fail", "raised")]),
    ("told", {}, 1, [("DP2", "pass", "share out")]),
    ("told", {"over": "ranks workers"}, 2, [("DP2", "pass", "share out"), ("DP3", "fail", "[5, 4]")]),
    ("told", {"apart": False}, 1, [("DP2", "not decidable", "none that the dataset gives by itself")]),
    ("Dealt", {}, 2, [("DP2", "fail", "48 of 96 samples come nowhere")]),
    ("classes", {}, 1, [("DP2", "fail", "300 samples come on several of 2 workers")]),
    ("classes", {"workers": 3}, 1, [("DP2", "fail", "300 samples come on several of 2 workers")]),
    ("Nodes", {}, 1, [("resume", "fail", "replayed and"), ("DP14", "pass", "")]),
    ("Refusing", {}, 1, [("resume", "fail", "it raises IndexError: list index"), ("DP14", "pass", "")]),
    ("positioned", {}, 1, [("resume", "fail", "the next epoch has 0 of 32 samples")]),
    ("positioned", {"forgets": True}, 1, [("resume", "not decidable", "right only if set_epoch is called")]),
]


@pytest.mark.parametrize(("loader", "args", "ranks", "expected"), CASES)
def test_the_bug_is_named_and_nothing_else(guard, loader, args, ranks, expected):
    findings = judge(guard, loader=PLACE + loader, args=args, ranks=ranks)
    for entry, verdict, words in expected:
        assert any(each[:2] == (entry, verdict) and words in each[2] for each in findings), findings
    fails = {entry for entry, verdict, _ in findings if verdict == "fail"}
    assert fails == {entry for entry, verdict, _ in expected if verdict == "fail"}


@pytest.mark.parametrize(
    ("loop", "verdict", "words"),
    [("trains", "fail", "set_epoch was not called"), ("trains_by_epoch", "pass", "after epoch 0")],
)
def test_the_loop_decides_whether_a_state_without_the_epoch_is_enough(guard, loop, verdict, words):
    loader = {"loader": PLACE + "positioned", "args": {"forgets": True}, "ranks": 1}
    findings = [each for each in judge(guard, **loader, loop=PLACE + loop) if each[0] == "resume"]
    assert [each[1] for each in findings] == [verdict] and words in findings[0][2]


def test_a_restored_epoch_without_its_tail_fails(guard):
    findings = judge(guard, loader=PLACE + "without_tail", loop=PLACE + "trains_by_epoch", ranks=1)
    assert ("resume", "fail", "restored in mid-epoch 1 by sampler: 4 samples skipped") in findings


@pytest.mark.parametrize(("loop", "verdict"), [("trains", "fail"), ("trains_by_epoch", "pass")])
def test_the_loop_decides_whether_set_epoch_is_called(guard, loop, verdict):
    findings = judge(guard, loader=PLACE + "distributed", loop=PLACE + loop, val_loader=PLACE + "odd")
    assert [each[1] for each in findings if each[0] == "DP14"] == [verdict]
    assert (
        "DP3",
        "fail",
        "--val-loader: DistributedSampler repeats 1 samples to even out 2 ranks",
    ) in findings


def test_a_loop_that_never_ends_is_left(guard):
    options = Options(PLACE + "noisy", loop=PLACE + "trains_for_ever", ranks=1, timeout=12)
    assert guard.audit(options, ["loop"])["loop"].status == "ok"


def test_a_loader_that_hangs_is_named_by_its_place(guard):
    results = guard.audit(Options(PLACE + "stuck", ranks=1, timeout=8), ["look", "epochs"])
    checks = [each for each in FAMILY if each.entry == "end" and not each.probes]
    [finding] = registry.judge(results, checks)
    assert finding.verdict == "fail" and "__getitem__" in finding.evidence["where"]


@pytest.mark.parametrize(("batches", "verdict"), [(2, "pass"), (0, "not decidable")])
def test_a_restart_that_was_read_until_the_time_was_over_skips_nothing(guard, batches, verdict):
    options = Options(PLACE + "sampled", args={"state": True, "workers": 0}, ranks=1)
    results = guard.audit(options, ["look", "epochs", "source", "loop", "resume"])
    [seen] = results["resume"].data
    [way] = seen["ways"]
    assert way["ended"] == [True] and len(way["passes"][0]) > batches
    way.update(ended=[False], passes=[way["passes"][0][:batches]])
    [finding] = registry.judge(results, [each for each in FAMILY if each.entry == "resume"])
    assert finding.verdict == verdict


def judge(guard: Guard, **options: object) -> list[tuple[str, str, str]]:
    results = guard.audit(Options(**options), PROBES)
    return [(each.entry, each.verdict, each.cause) for each in registry.judge(results, FAMILY)]
