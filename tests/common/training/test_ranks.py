"""Several ranks over gloo, started as a cluster starts them: equal weights, kills, signals, other
rank counts."""

from __future__ import annotations

import itertools
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import psutil
import pytest
import torch

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.processes import TRAINING_ENVIRONMENT as ENVIRONMENT
from millrace.common.processes import stay_on_loopback
from millrace.common.stopping import Requeue, StopSignals, requeue_slurm_job
from millrace.common.training import launch, seeding
from millrace.common.training.ranks import Exchange, Ranks, job_port, listen, packed, unpacked
from tests import forks
from tests.common.training import tiny_task
from tests.common.training.test_loop import exact, ids_of, lines, losses, saved_steps, values
from tests.common.training.tiny_task import run

# What job scripts test for: a number that users have written down must not change.
REQUEUE = 75
ROOT = Path(__file__).parents[3]
# Guards against a hang; the 60 s within which a rank's death must end the others are in here, with
# the start.
LIMIT_SECONDS = 180


def launched(
    ranks: int,
    runs: list[dict],
    folder: Path,
    launcher: str = "millrace.common.training.launch",
    *more: str,
):
    """Train on `ranks` ranks; returns the finished launcher. `more` are flags of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.json").write_bytes(orjson.dumps(runs))
    command = [sys.executable, "-m", launcher, "--standalone", f"--nproc-per-node={ranks}", *more]
    command += ["-m", "tests.common.training.tiny_task", str(folder / "runs.json")]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def train_as_tasks_of_srun(ranks: int, runs: list[dict], folder: Path) -> tuple[list[int], str]:
    """Their exit codes, and what they said."""
    path, errors = folder / "runs.json", folder / "stderr"
    path.write_bytes(orjson.dumps(runs))
    started = forks.start_ranks(ranks, lambda: tiny_task.main([str(path)]), errors)
    return forks.joined(started), errors.read_text()


def counted(folder: Path, ranks: int) -> dict[int, list[int]]:
    """How often each id was seen, per epoch, over all ranks."""
    seen: dict[int, list[int]] = {}
    for rank in range(ranks):
        for row in ids_of(folder, rank):
            seen.setdefault(row["epoch"], []).extend(row["ids"])
    return {epoch: np.bincount(ids, minlength=37).tolist() for epoch, ids in seen.items()}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> Path:
    """Folders of runs on two ranks, made at once, because starting ranks is dear: `killed` (kill -9
    of rank 1, then the same command again) and others that were left alone."""
    folder = tmp_path_factory.mktemp("stories")
    killed = {
        "folder": str(folder / "killed"),
        "settings": {"epochs": 2, "log_steps": 2, "save_steps": 3, "eval_steps": 5},
    }
    fault = {"fault": "kill", "at_step": 5, "fault_rank": 1}
    codes, errors = train_as_tasks_of_srun(2, [{**killed, "task": fault}], folder)
    assert codes == [1, -signal.SIGKILL]
    assert "rank 0 has lost another rank" in errors and "Traceback" not in errors
    assert saved_steps(folder / "killed") == [3]
    # 37 samples in threes on two ranks: 7 steps an epoch, the last with one sample on rank 0 and
    # none on rank 1.
    order = seeding.generator(42, "order", 0).permutation(37).tolist()
    plain = {"dropout": 0.0}
    others = {
        "alone": (killed["settings"], {}),
        "split": ({"max_grad_norm": 0.3}, plain),
        "gathered": ({"grad_acc": 2}, {"batch": 3, "dropout": 0.0}),
        "bare": ({}, {**plain, "skip_ids": order[:9]}),
        "tf": ({"max_steps": 2, "tensorboard": 1, "precision": "bf16-mixed"}, {}),
    }
    runs = [
        {"folder": str(folder / name), "settings": settings, "task": task}
        for name, (settings, task) in others.items()
    ]
    codes, errors = train_as_tasks_of_srun(2, [killed, *runs], folder)
    assert codes == [0, 0], errors
    return folder


def test_a_run_whose_rank_was_killed_goes_on_as_if_it_had_not_been(stories):
    killed, alone = stories / "killed", stories / "alone"
    assert jsonl.read(killed / "metrics.json")["resumed_step"] == 3
    assert exact(killed) == exact(alone)
    mine, theirs = weights(killed), weights(alone)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize(
    "name, epochs", [("killed", 2), ("alone", 2), ("split", 1), ("gathered", 1)]
)
def test_two_ranks_see_every_sample_once_an_epoch_and_end_with_the_same_weights(
    stories, name, epochs
):
    folder = stories / name
    assert counted(folder, 2) == {epoch: [1] * 37 for epoch in range(epochs)}
    assert len({jsonl.read(folder / f"rank.{rank}.json")["digest"] for rank in range(2)}) == 1
    whole = values(folder, "epoch_samples", "epoch")
    assert whole == [37] * epochs
    assert values(folder, "samples")[-1] == 37 * epochs
    trained = [line["counts"]["samples"] for line in lines(folder) if line["event"] == "train"]
    assert name == "killed" or sum(trained) == 37 * epochs


@pytest.mark.parametrize(
    "name, settings, batch", [("split", {"max_grad_norm": 0.3}, 6), ("gathered", {}, 12)]
)
def test_the_split_into_ranks_makes_no_difference_beyond_rounding(
    stories, tmp_path, name, settings, batch
):
    run(tmp_path, settings, {"batch": batch, "dropout": 0.0})
    assert losses(stories / name) == pytest.approx(losses(tmp_path), rel=1e-4)
    norms = [values(folder, "grad_norm") for folder in (stories / name, tmp_path)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    theirs = weights(tmp_path)
    for parameter, tensor in weights(stories / name).items():
        torch.testing.assert_close(tensor, theirs[parameter], rtol=1e-3, atol=1e-5)


def test_steps_of_ranks_without_samples_are_taken_and_losses_stay_finite(stories):
    # Both ranks empty, then one of them.
    bare = losses(stories / "bare")
    assert len(bare) == 7 and bare[0] is None and None not in bare[1:]
    sizes = values(stories / "tf", "world_size")
    assert sizes == [2, 2]


@pytest.mark.long
def test_ranks_come_and_go_and_every_sample_is_seen_once_an_epoch(tmp_path):
    folder = tmp_path / "run"
    settings = {"epochs": 3, "save_steps": 0}

    def go(ranks: int, fault: str = "", at_step: int = 0, rank: int = 0, workers: int = 0):
        task = {"fault": fault, "at_step": at_step, "fault_rank": rank, "workers": workers}
        return launched(
            ranks, [{"folder": str(folder), "settings": settings, "task": task}], tmp_path
        )

    # SIGTERM to the launcher, as from Slurm, after 3 of 5 steps of the epoch.
    ended = go(3, "TERM", 3, rank=2)
    assert ended.returncode == REQUEUE, ended.stderr
    assert saved_steps(folder) == [3]
    # 10 samples are left: two steps for 2 ranks. In the next epoch, SIGUSR1 after 3 of 7 steps.
    ended = go(2, "USR1", 8, workers=1)
    assert ended.returncode == REQUEUE, ended.stderr
    assert saved_steps(folder) == [3, 8]
    result = run(folder, settings, {"workers": 2})
    trained = [line for line in lines(folder) if line["event"] == "train"]
    assert [line["world_size"] for line in trained[:9]] == [3] * 3 + [2] * 5 + [1]
    assert counted(folder, 3) == {epoch: [1] * 37 for epoch in range(3)}
    assert result.position.samples == 3 * 37
    rates = [line["lr"] for line in trained]
    assert all(before > after for before, after in itertools.pairwise(rates[1:])), rates


@pytest.mark.long
def test_ranks_whose_launcher_is_killed_save_and_end(tmp_path):
    """Under plain torchrun, and far from their last step: else they would train on, beside the next
    run."""
    task = {"fault": "orphan", "at_step": 3}
    runs = [
        {
            "folder": str(tmp_path / "run"),
            "settings": {"max_steps": 10**6, "save_steps": 0},
            "task": task,
        }
    ]
    # Returns when the ranks have closed their standard error.
    ended = launched(2, runs, tmp_path, launcher="torch.distributed.run")
    assert ended.returncode == -signal.SIGKILL
    assert "the launcher is dead" in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
    (saved,) = saved_steps(tmp_path / "run")
    assert 3 <= saved < 1000


@pytest.mark.long
def test_nobody_outside_of_the_machine_can_talk_to_its_ranks(tmp_path):
    """What the ranks listen to is on loopback, and no value that they meet by could be
    unpickled."""
    task = {"fault": "orphan", "at_step": 10**6}
    runs = [{"folder": str(tmp_path / "run"), "settings": {"max_steps": 10**6}, "task": task}]
    (tmp_path / "runs.json").write_bytes(orjson.dumps(runs))
    command = [
        sys.executable,
        "-m",
        "millrace.common.training.launch",
        "--standalone",
        "--nproc-per-node=2",
    ]
    command += ["-m", "tests.common.training.tiny_task", str(tmp_path / "runs.json")]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}"}
    launcher = psutil.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LIMIT_SECONDS
        while not list(tmp_path.glob("run/sample_ids.1.jsonl")) and time.monotonic() < until:
            time.sleep(0.2)
        ranks = launcher.children()
        opened = [
            each for process in (launcher, *ranks) for each in process.net_connections("inet")
        ]
        values = _values_of_store(int(ranks[0].environ()["MASTER_PORT"]))
    finally:
        launcher.terminate()
        launcher.wait()
    listening = [each.laddr for each in opened if each.status == psutil.CONN_LISTEN]
    assert len(ranks) == 2 and listening
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert values and [key for key, value in values.items() if value.startswith(b"\x80")] == []


def test_a_port_that_is_taken_is_named():
    with listen("localhost", 0) as taken:
        address, port = taken.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(MillraceError, match=rf"^localhost:{port}: cannot listen .*this port"):
            listen("localhost", port)


def test_each_job_and_step_meets_at_a_port_of_its_own():
    assert {job_port(job, step) for job in range(2000) for step in range(8)} == {
        *range(12000, 28000)
    }


def test_an_interface_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    stay_on_loopback()
    assert [os.environ[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL")] == ["ib0", "lo"]


def _values_of_store(port: int) -> dict[str, bytes]:
    """What the ranks have told each other in the store in which they met."""
    store = torch.distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=20))
    return {key: store.get(key) for key in store.list_keys()}


@pytest.mark.parametrize(
    "flags", [["--rdzv-backend=c10d"], ["--rdzv-endpoint=h:1"], ["--master-port=1"], ["--nnodes=2"]]
)
def test_meeting_as_flags_of_torchrun_say_is_refused(flags, caplog):
    assert launch.main([*flags, "-m", "this"]) == 1
    assert "not for flags of torchrun to say. Leave them out" in caplog.text


def test_what_ranks_exchange_cannot_run_code(tmp_path):
    """A value that is not plain is refused where it would be read, and not unpickled."""
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        unpacked(packed(Evil(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()
    plain = {"a": (1.5, None, "ä"), 3: [True, b"x"], "weights": torch.arange(3)}
    again = unpacked(packed(plain))
    assert torch.equal(again.pop("weights"), plain.pop("weights")) and again == plain


def test_ranks_tell_each_other_values_of_any_length():
    short = packed("short")
    long = "long" * 50_000

    def all_gather(parts: list[torch.Tensor], mine: torch.Tensor, group: object) -> None:
        """As on a rank whose only peer tells `short`."""
        parts[0].copy_(mine)
        theirs = torch.tensor([len(short)]) if mine.dtype == torch.int64 else short
        parts[1][: len(theirs)] = theirs

    exchange = Exchange(1)
    exchange.world_size = 2
    exchange._dist = SimpleNamespace(all_gather=all_gather)
    assert exchange.gathered(long) == [long, "short"]


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_rank_that_starts_ends_with_its_launcher():
    """Without its launcher it would wait for the other ranks until the time is out, in the way of
    the next run."""
    rank = "import time; from millrace.common.training.ranks import end_with_launcher as end; "
    rank += "end(9); print('up', flush=True); time.sleep(60)"
    launcher = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {rank!r}])"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}", "TORCHELASTIC_RUN_ID": "x"}
    running = subprocess.Popen(
        [sys.executable, "-c", launcher], env=environment, stdout=subprocess.PIPE
    )
    assert running.stdout.readline() == b"up\n"
    running.kill()
    running.wait()
    assert select.select([running.stdout], [], [], 20)[0] and running.stdout.read() == b"", (
        "the rank lives on"
    )
    running.stdout.close()


@pytest.mark.parametrize(
    "environment, expected",
    [
        ("", Ranks()),
        # Slurm's variables, and a WORLD_SIZE that a shell has left, make no ranks.
        ("SLURM_NTASKS=8 SLURM_PROCID=3 WORLD_SIZE=8", Ranks()),
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", Ranks(5, 8, 1, 4)),
        ("RANK=1 WORLD_SIZE=2", None),
        ("LOCAL_RANK=1 WORLD_SIZE=2", None),
        ("RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1", None),
        ("RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", None),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1", None),
        ("RANK=x WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", None),
    ],
)
def test_ranks_from_the_environment(monkeypatch, environment, expected):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for word in environment.split():
        monkeypatch.setenv(*word.split("="))
    if expected is None:
        with pytest.raises(MillraceError, match="does not say which rank"):
            Ranks.from_environment()
    else:
        assert Ranks.from_environment() == expected


def test_a_run_inside_a_slurm_allocation_needs_no_srun(tmp_path, monkeypatch):
    # Fabric alone would take these for a launch by srun with 4 tasks, and refuse.
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "train",
        "SLURM_PROCID": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_LOCALID", "0")
    assert run(tmp_path, {"max_steps": 1}, {}).position.optimizer_step == 1


def test_stop_signals_are_noted_and_handlers_put_back():
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before:
        with StopSignals() as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            assert stop.requested and stop.time_is_up == (number == signal.SIGURG)
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture
def scontrol(tmp_path, monkeypatch) -> Path:
    """What stands for Slurm's scontrol in a job: a file with a line for each time it was asked."""
    (tmp_path / "bin").mkdir()
    program, asked = tmp_path / "bin/scontrol", tmp_path / "asked"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\n[ "$2" != 13 ] || {{ echo no >&2; exit 1; }}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    asked.touch()
    return asked


@pytest.mark.parametrize(
    "names, is_main, asked",
    [
        (["SIGURG"], True, "requeue 12\n"),
        (["SIGURG", "SIGTERM"], True, "requeue 12\n"),
        (["SIGTERM", "SIGURG"], True, "requeue 12\n"),
        (["SIGURG"], False, ""),
        (["SIGTERM"], True, ""),
        (["SIGUSR1"], True, ""),
        ([], True, ""),
    ],
)
def test_only_the_notice_before_the_time_limit_has_slurm_start_the_job_again(
    scontrol, names, is_main, asked
):
    with StopSignals() as stop:
        for name in names:
            os.kill(os.getpid(), getattr(signal, name))
        with pytest.raises(Requeue) as left:
            stop.leave(is_main)
    assert left.value.code == REQUEUE and scontrol.read_text() == asked


@pytest.mark.parametrize("job, asked, said", [("13", "requeue 13\n", "(no)"), (None, "", "")])
def test_a_job_that_slurm_does_not_requeue_is_said(scontrol, monkeypatch, caplog, job, asked, said):
    monkeypatch.delenv("SLURM_JOB_ID")
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    requeue_slurm_job()
    assert scontrol.read_text() == asked
    assert [said in line for line in caplog.messages] == [True] * bool(job)


def test_an_exchange_of_one_rank_needs_no_process_group():
    exchange = Exchange(1)
    assert exchange.sums([1, 2.5]) == [1.0, 2.5]
    assert exchange.gathered("a") == ["a"] and exchange.from_main(None) is None


@pytest.mark.long
def test_a_failing_rank_is_reported_with_exit_code_1_and_each_rank_has_a_log(tmp_path):
    run(tmp_path / "run", {"max_steps": 1}, {})
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000001")
    (tmp_path / "run/checkpoints/step-00000001").mkdir()
    runs = [{"folder": str(tmp_path / "run"), "settings": {"max_steps": 2}}]
    ended = launched(
        2, runs, tmp_path, "millrace.common.training.launch", "--log-dir", str(tmp_path / "logs")
    )
    assert ended.returncode == 1
    # Both ranks say it, because both must stop; here, rank 0's lines and the launcher's.
    for log in ("rank-0.log", "rank-1.log"):
        assert "no checkpoint is whole: step" in (tmp_path / "logs" / log).read_text()
    said = [line for line in ended.stderr.splitlines() if "no checkpoint is whole: step" in line]
    assert len(said) == 2 and "ERROR failed: rank " in said[1], ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_launcher_sets_what_the_rules_set_and_leaves_the_users_own(monkeypatch, capfd):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launch.main(["--nodes", "2"]) == 1
    expected = {**ENVIRONMENT, "OMP_NUM_THREADS": "3"}
    assert {name: os.environ[name] for name in ENVIRONMENT} == expected
