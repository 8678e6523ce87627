"""Probes end in time and leave nothing behind, whatever the loader does."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from millrace.audit.runner import probes
from millrace.audit.runner.guard import (
    Guard,
    _audit,
    _join_group,
    _Run,
    _short_folder,
    _stands_still,
)
from millrace.audit.runner.probes import Result
from millrace.audit.runner.target import Options, Rank, Target, WrongName, locate
from tests import forks
from tests.audit import plain

PROBES = ["look", "epochs"]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """A mark by which processes are known, and a folder for temporary files: other tests run beside
    these."""
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_TEST_AUDIT", str(folder))
        patch.setenv("TMPDIR", str(folder))
        patch.setattr("tempfile.tempdir", str(folder))
        yield folder


@pytest.fixture(scope="module")
def guard(place):
    with Guard() as guard:
        # Its own process bears the mark once it runs: before that a test would take it for new.
        until = time.monotonic() + 30
        while not processes(place) and time.monotonic() < until:
            time.sleep(0.01)
        yield guard


def processes(place: Path) -> set[str]:
    """Those that were started with the mark."""
    marked = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"MILLRACE_TEST_AUDIT={place}\0".encode() in path.read_bytes():
                marked.add(path.parent.name)
    return marked


def await_nothing_new(place: Path, before: tuple[set[str], set[str]]) -> None:
    """At most 30 s, as a busy machine may take to end processes."""
    until = time.monotonic() + 30
    while (new := [processes(place) - before[0], set(os.listdir(place)) - before[1]]) != [
        set(),
        set(),
    ]:
        assert time.monotonic() < until, new
        time.sleep(0.1)


def statuses(guard: Guard, name: str, **options) -> tuple[list[str], dict]:
    results = guard.audit(Options(f"{plain.here}:{name}", **{"timeout": 100, **options}), PROBES)
    worst = next((result.error for result in results.values() if result.status != "ok"), {})
    return [results[probe].status for probe in PROBES], worst


@pytest.mark.parametrize(
    "name, options, expected, text",
    [
        ("good", {}, ["ok", "ok"], ""),
        ("Module", {"ranks": 1}, ["ok", "ok"], ""),
        ("plain_list", {"ranks": 1}, ["ok", "ok"], ""),
        pytest.param(
            "good",
            {"start_method": "spawn", "ranks": 1, "timeout": 300},
            ["ok", "ok"],
            "",
            marks=pytest.mark.long,
        ),
        ("BeginsAgain", {"ranks": 1}, ["ok", "ok"], ""),
        ("ending", {}, ["raised", "skipped"], "cannot begin again"),
        ("Unmeasured", {"ranks": 1}, ["ok", "ok"], ""),
        ("sleeping", {"timeout": 12}, ["ok", "hung"], "no end after 6 s"),
        ("sluggish", {"timeout": 16}, ["ok", "late"], "not done after 8 s"),
        ("computing", {"timeout": 6, "ranks": 1}, ["late", "skipped"], "not done after 3 s"),
        ("greedy", {"memory_mb": 1000}, ["memory", "skipped"], "more than 1.0 GiB"),
        ("vanishing", {}, ["ok", "died"], "ended with code 3"),
        ("vanishing", {"args": {"num_workers": 1}}, ["ok", "raised"], ": KeyError: 5"),
        ("missing", {}, ["ok", "raised"], "1"),
        ("unloadable", {}, ["raised", "skipped"], "batch_size should be a positive integer"),
        ("absent", {}, ["raised", "skipped"], "plain has no absent"),
        ("by_split", {}, ["raised", "skipped"], "gave a dict, which gives no batches"),
        ("train_and_val", {}, ["raised", "skipped"], "gave a tuple, which gives no batches"),
        ("crashing", {"args": {"num_workers": 2}}, ["ok", "raised"], "a loader worker (pid "),
    ],
)
def test_a_loader_ends_in_time_and_leaves_nothing(guard, place, name, options, expected, text):
    before = processes(place), set(os.listdir(place))
    seen, error = statuses(guard, name, **options)
    assert seen == expected
    assert text in error.get("text", "")
    await_nothing_new(place, before)


@pytest.mark.parametrize(
    "name, timeout, status, words",
    [
        ("sleeping", 10, "hung", ["plain.py", "in __getitem__"]),
        ("stopped", 8, "hung", ["plain.py", "in stopped"]),
        ("unsendable", 10, "hung", ["a batch cannot be sent", "local object"]),
        ("crashing", 6, "died", ["plain.py", "in __getitem__"]),
    ],
)
def test_the_place_where_a_loader_hangs_or_dies_is_named(guard, name, timeout, status, words):
    seen, error = statuses(guard, name, timeout=timeout, ranks=1)
    if status not in seen:  # a busy machine makes the first batch so slow that the next may be late
        seen, error = statuses(guard, name, timeout=8 * timeout, ranks=1)
    assert status in seen
    assert all(word in error["where"] for word in words)


def test_workers_send_batches_also_where_the_path_of_tmpdir_is_long(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 60)))
    Path(tempfile.tempdir).mkdir()
    with Guard() as guard:
        results = guard.audit(Options(f"{plain.here}:good", {"num_workers": 1}, ranks=1), PROBES)
    assert results["epochs"].status == "ok"


def test_an_audit_whose_process_is_killed_has_died(place):
    with Guard() as guard:
        seen, error = statuses(guard, "parricide", timeout=20)
    assert seen == ["died", "died"] and error["text"].startswith("the guard ended with code ")


def test_ranks_find_in_their_environment_which_they_are(guard):
    results = guard.audit(Options(f"{plain.here}:of_environment", ranks=2), PROBES)
    ranks = [epochs[0]["batches"] for epochs in results["epochs"].data]
    rows = [[index for batch in batches for index in batch["indices"]] for batches in ranks]
    assert rows == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]


def test_the_error_is_that_of_the_rank_that_raised(guard):
    options = Options(f"{plain.here}:of_first_rank", ranks=2)
    [result] = guard.audit(options, ["epochs"]).values()
    assert (result.status, result.error["rank"]) == ("raised", 1)


@pytest.mark.parametrize("answers", [{0: 2, 1: 1}, {0: 1}])  # rank 1 first; it died
def test_of_ranks_that_have_ended_the_first_one_is_blamed(tmp_path, answers):
    probe_run = _Run(probes.PROBES["epochs"], Options("a:b", ranks=2), tmp_path, 9.0)
    for rank, second in answers.items():
        answer = probe_run.folder / f"{rank}.json"
        answer.write_text('{"error": {"text": "x"}}')
        os.utime(answer, (second, second))
    running = {rank: os.posix_spawn("/bin/true", ["true"], os.environ) for rank in range(2)}
    for pid in running.values():
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    status, error = probe_run._ended(running)
    assert (status, error["rank"]) == ("raised" if 1 in answers else "died", 1)
    assert running == {}


@pytest.mark.parametrize(
    "name, error, seconds, stands",
    [
        ("look", {"busy": False}, 1.0, True),
        ("look", {"busy": True}, 1.0, False),
        ("values", {"busy": False}, 1.0, False),
        ("epochs", {"busy": False, "where": "at y"}, 8.0, True),
        ("epochs", {"busy": False, "where": "at y"}, 7.0, False),  # a batch takes 2
        ("epochs", {"busy": False, "where": ""}, 8.0, False),
    ],
)
def test_a_loader_stands_still_if_it_waits_for_longer_than_a_few_batches(
    name, error, seconds, stands
):
    results = {"look": Result("ok", [{"batch_seconds": 2.0}], {}, 0.1)}
    results[name] = Result("hung", results["look"].data, error, seconds)
    assert _stands_still(name, results) == stands


def test_hung_is_not_said_of_a_probe_that_is_none_of_the_loop(tmp_path, monkeypatch):
    looked = {"imported": {"libraries": [], "environment": {}}}
    hung = Result("hung", [], {"text": "no end after 9 s", "busy": False}, 9.0)
    ended = iter([Result("ok", [looked], {}, 0.1), hung])
    monkeypatch.setattr(_Run, "result", lambda _: next(ended))
    result = _audit(Options("a:b"), ["look", "values"], tmp_path)["values"]
    assert (result.status, result.error) == ("late", {"text": "not done after 9 s"})


def test_what_a_script_shares_with_its_workers_is_made_for_their_start_method(guard):
    options = Options(f"{plain.here}:shared", ranks=1, start_method="spawn")
    results = guard.audit(options, PROBES)
    assert results["epochs"].status == "ok"


def test_no_rank_goes_before_all_have_joined(tmp_path):
    """One that ended while another still joined would break that one's connection."""
    has_joined = tmp_path / "has joined"
    join = torch.distributed.init_process_group

    def run(rank: int) -> int:
        def join_late(*arguments, **named):
            join(*arguments, **named)
            if rank == 1:
                time.sleep(0.5)
                has_joined.touch()

        torch.distributed.init_process_group = join_late
        _join_group(Rank(rank, 2, tmp_path, time.monotonic() + 60))
        return 0 if has_joined.exists() else 1

    ranks = [forks.start(partial(run, rank), tmp_path / "errors") for rank in range(2)]
    assert forks.joined(ranks) == [0, 0]


def test_the_callers_seeds_stay(guard):
    before = random.getstate(), torch.get_rng_state()
    assert statuses(guard, "good", ranks=1)[0] == ["ok", "ok"]
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    "method, signal_number",
    [
        ("fork", signal.SIGKILL),
        pytest.param("fork", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("forkserver", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_an_audit_that_is_killed_leaves_nothing(place, method, signal_number):
    before = processes(place), set(os.listdir(place))
    command = [
        "-m",
        "millrace.audit.check_loader",
        "--loader",
        f"{plain.here}:sleeping",
        "--only",
        "DP3",
    ]
    command += ["--ranks", "2", "--timeout", "100", "--start-method", method]
    how = {"stdout": subprocess.DEVNULL, "start_new_session": True}
    running = subprocess.Popen([sys.executable, *command], **how)
    # Itself, the guard and its fork, two ranks, four workers.
    while len(processes(place) - before[0]) < 9:
        time.sleep(0.1)
        assert running.poll() is None
    os.killpg(running.pid, signal_number)
    running.wait()
    await_nothing_new(place, before)


@pytest.mark.skipif(os.geteuid() != 0, reason="a /dev/shm of its own needs root")
@pytest.mark.parametrize(
    "name, method",
    [
        ("vanishing", "fork"),
        pytest.param("sleeping", "spawn", marks=pytest.mark.long),
        pytest.param("greedy", "fork", marks=pytest.mark.slow),
        pytest.param("vanishing", "forkserver", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_in_dev_shm(name, method):
    audit = f"{sys.executable} -m millrace.audit.check_loader --loader {plain.here}:{name}"
    audit += " --only end --ranks 1 --timeout 30 --memory-mb 2000 --exit-zero"
    audit += f" --start-method {method}"
    script = f"mount -t tmpfs none /dev/shm && {audit} >/dev/null && ls -A /dev/shm"
    assert subprocess.check_output(["unshare", "--mount", "sh", "-c", script], text=True) == ""


SCRIPT_THAT_IMPORTS = """
import os
import torch
assert "WORD" not in os.environ
os.environ["WORD"] = "x"
with open(os.environ["MARKS"] + ".seeds", "a") as seeds:
    print(torch.initial_seed(), file=seeds)
import slow_to_import
loader = [1, 2]
"""


def test_a_library_of_the_loader_is_imported_once_for_all_probes(tmp_path, monkeypatch):
    library = tmp_path / "site-packages"
    library.mkdir()
    code = "import os\nopen(os.environ['MARKS'], 'a').write(os.environ['WORD'])\n"
    (library / "slow_to_import.py").write_text(code)
    (tmp_path / "script.py").write_text(SCRIPT_THAT_IMPORTS)
    monkeypatch.syspath_prepend(library)
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    with Guard() as guard:
        for _ in range(2):
            results = guard.audit(
                Options(f"{tmp_path}/script.py:loader"), ["look", "epochs", "source"]
            )
            assert {result.status for result in results.values()} == {"ok"}
    # By the first look and for all that follows; an audit after it knows nothing of it.
    assert (tmp_path / "marks").read_text() == "xx" * 2
    assert not list(tmp_path.rglob("__pycache__"))  # where the user's code lies
    seeds = (tmp_path / "marks.seeds").read_text().split()
    assert len(set(seeds)) > 1


@pytest.mark.parametrize("length, is_short", [(40, True), (41, False)])
def test_scratch_lies_in_tmpdir_unless_its_path_is_too_long(monkeypatch, length, is_short):
    folder = "/" + "t" * (length - 1)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    assert _short_folder() == (folder if is_short else "/tmp")


SCRIPT = """
def val(limit): return [limit]
def model(**named): return named
class Network:
    def parameters(self): return []
made = Network()
class Module:
    def __init__(self, **named): self.calls = []
    def prepare_data(self): self.calls.append("prepare_data")
    def setup(self, stage): self.calls.append(stage)
    def train_dataloader(self): return [self.calls]
"""


def test_factories_get_the_arguments_that_they_take_and_modules_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "script_of_factories.py"
    file.write_text(SCRIPT)
    args = {"limit": 3, "other": 4}
    names = {"val_loader": f"{file}:val", "model": f"{file}:model"}
    target = Target(Options(f"{file}:Module", args, **names))
    assert (target.val_loader(), target.model()) == ([3], args)
    assert target.loader() == [["prepare_data", "fit"]]
    # A model that is there already is not called.
    made, again = (Target(Options("", model=f"{file}:made")).model() for _ in range(2))
    assert made is again


@pytest.mark.parametrize("name", ["train.py", "train.py:", ":make_loader"])
def test_a_loader_that_is_not_named_by_module_and_name_is_refused(name):
    with pytest.raises(WrongName, match=f"^{name}: is not module:name"):
        locate(name)


def test_a_module_that_the_users_own_lacks_is_left_to_python(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_user.py").write_text("import of_nobody")
    with pytest.raises(ModuleNotFoundError, match="of_nobody"):
        locate("of_user:make_loader")
    with pytest.raises(WrongName, match="there is no module of_nobody"):
        locate("of_nobody.train:make_loader")
    (tmp_path / "a_script.py").write_text("import argparse\nargparse.ArgumentParser().error('x')")
    with pytest.raises(WrongName, match="a_script ends the program when it is imported"):
        locate("a_script:make_loader")
