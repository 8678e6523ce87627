"""The launcher's own part, with ranks that are shell scripts: causes, patience, exit codes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import run as torchrun

from millrace.common.processes import TRAINING_ENVIRONMENT
from millrace.common.training import launch
from tests import forks


def launched(folder: Path, script: str, *flags: str) -> tuple[int, str]:
    """The exit code of a launcher of two ranks that run `script`, and what it said."""
    # In a file, as torchrun replaces what looks like its own names in arguments.
    (folder / "rank.sh").write_text(f"cd {folder}\n{script}")
    arguments = ["--nproc-per-node=2", *flags, "--no-python"]
    arguments += ["bash", str(folder / "rank.sh")]
    (code,) = forks.joined([forks.start(launching(arguments), folder / "stderr")])
    return code, (folder / "stderr").read_text()


def launching(arguments: list[str]) -> Callable[[], int]:
    def launch_here() -> int:
        launch.log_to_stderr()
        return launch.main(arguments)

    return launch_here


def saving(seconds: float) -> str:
    """Rank 1 is killed once rank 0 is up, which then takes so long to save."""
    return f"""
        if [ $RANK = 1 ]; then
            until [ -e up ]; do sleep 0.05; done
            kill -KILL $$
        fi
        trap 'sleep {seconds}; touch saved; exit 75' TERM
        touch up
        while true; do sleep 0.05; done
    """


@pytest.mark.parametrize(
    "flags, seconds, is_saved",
    [
        (["--shutdown-timeout", "20"], 1.0, True),
        (["--shutdown-timeout", "1"], 20.0, False),
        # Longer than torchrun waits.
        pytest.param([], 32.0, True, marks=pytest.mark.long),
    ],
)
def test_a_rank_that_saves_when_another_one_is_lost_is_waited_for(
    tmp_path, flags, seconds, is_saved
):
    code, text = launched(tmp_path, saving(seconds), *flags)
    assert code == 1 and (tmp_path / "saved").exists() == is_saved
    end = "exit code 75" if is_saved else "signal SIGKILL"
    assert text.rstrip().endswith(f"failed: rank 1: signal SIGKILL, rank 0: {end}")


def test_a_port_that_torchrun_has_by_itself_is_no_choice(tmp_path, monkeypatch):
    """As that of torch 2.11."""
    parser = torchrun.get_args_parser()
    parser.set_defaults(master_port=29500)
    monkeypatch.setattr(torchrun, "get_args_parser", lambda: parser)
    assert launched(tmp_path, "exit 0")[0] == 0
    code, text = launched(tmp_path, "exit 0", "--master-port=29501")
    assert code == 1 and "not for flags of torchrun to say" in text


def test_ranks_that_stop_in_order_ask_for_a_requeue(tmp_path):
    code, text = launched(tmp_path, "exit 75")
    assert code == 75 and "the ranks have stopped in order" in text
    assert launched(tmp_path, "exit 0")[0] == 0


@pytest.mark.parametrize(
    "script, code",
    [
        ("kill -TERM $PPID; sleep 60", 75),  # ranks that were still being started
        ("kill -TERM $$", 1),  # by somebody else than the launcher
    ],
)
def test_ranks_that_a_signal_ends_stop_in_order_if_the_launcher_got_it(tmp_path, script, code):
    assert launched(tmp_path, script)[0] == code


def test_every_rank_gets_the_signal_that_the_launcher_gets(tmp_path, monkeypatch):
    ranks = launch.processes.children
    # The first has ended by now: no process has this number.
    monkeypatch.setattr(launch.processes, "children", lambda parent: [1 << 22, *ranks(parent)])
    script = """
        trap 'touch got-$RANK; exit 75' USR1
        trap '' TERM
        touch up-$RANK
        [ $RANK = 1 ] || { until [ -e up-1 ]; do sleep 0.05; done; kill -USR1 $PPID; }
        while true; do sleep 0.05; done
    """
    assert launched(tmp_path, script)[0] == 75
    assert {path.name for path in tmp_path.glob("got-*")} == {"got-0", "got-1"}


def test_lines_of_the_first_rank_and_the_last_one_of_that_which_failed_first_are_shown(tmp_path):
    script = """
        echo of rank $RANK >&2
        [ $RANK = 0 ] && { touch up; sleep 60; }
        until [ -e up ]; do sleep 0.05; done
        exit 3
    """
    code, text = launched(tmp_path, script, "--log-dir", str(tmp_path / "logs"))
    first, last = text.splitlines()
    assert code == 1 and first == "of rank 0"
    assert last.endswith(" ERROR failed: rank 1: exit code 3 (of rank 1), rank 0: signal SIGTERM")


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + forks.LIMIT_SECONDS
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)  # what follows at once


@pytest.fixture
def program(tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """Makes a shell script that stands for a program of Slurm."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def make(name: str, script: str) -> None:
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    return make


@pytest.fixture
def node(tmp_path, program) -> Callable[[int, str], BaseProcess]:
    """Starts the launcher of one of two nodes, with two ranks that run a script."""
    program("scontrol", "echo NodeName=first NodeAddr=127.0.0.1")
    arguments = ["--nproc-per-node=2", "--log-dir", str(tmp_path / "logs")]
    arguments += ["--no-python", "bash", str(tmp_path / "rank.sh")]
    names = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n"}
    names |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}

    def start(index: int, script: str) -> BaseProcess:
        (tmp_path / "rank.sh").write_text(f"cd {tmp_path}\n{script}")
        own = {"SLURM_NODEID": str(index), "SLURMD_NODENAME": f"n{index}"}
        return forks.start(launching(arguments), tmp_path / f"stderr-{index}", **names, **own)

    return start


def test_ranks_of_two_nodes_have_numbers_of_their_own(tmp_path, node):
    script = "echo is $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE >&2"
    assert forks.joined([node(index, script) for index in (0, 1)]) == [0, 0]
    said = [(tmp_path / f"logs/rank-{rank}.log").read_text().strip() for rank in range(4)]
    assert said == [f"is {rank} of 4, {rank % 2} of 2" for rank in range(4)]
    first, second = ((tmp_path / f"stderr-{index}").read_text() for index in (0, 1))
    assert said[0] in first and "is " not in second
    assert re.search(r"node n1 \(.*\): ranks 2-3 of 4\n", second)


def test_a_launcher_that_waits_for_the_other_node_stops_in_order(tmp_path, node):
    said = tmp_path / "stderr-0"
    said.touch()
    waiting = node(0, "exit 0")
    wait_for(lambda: "ranks 0-1" in said.read_text())
    os.kill(waiting.pid, signal.SIGTERM)
    assert forks.joined([waiting]) == [75]


@pytest.mark.parametrize("index", [0, 1])
def test_a_launcher_whose_other_node_never_comes_says_so(tmp_path, node, monkeypatch, index):
    monkeypatch.setattr(launch, "_MEETING_SECONDS", 1)
    assert forks.joined([node(index, "exit 0")]) == [1]
    said = (tmp_path / f"stderr-{index}").read_text()
    assert "the launchers of the other nodes have not come in 1 s" in said


@pytest.mark.parametrize("nodes, flags", [("2", []), ("1", ["--standalone"])])
def test_several_launchers_on_a_node_are_refused(monkeypatch, caplog, nodes, flags):
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", nodes)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert launch.main([*flags, "-m", "this"]) == 1
    assert "srun has started several launchers on a node" in caplog.text


@pytest.mark.parametrize(
    "script, code, said",
    [
        ("exit 0", 0, ""),
        ("exit 75", 75, ""),
        ("exit 143", 1, ""),
        ("echo 'srun: error: Node failure on n1' >&2; exit 75", 1, "node n1 (ranks 2-3) was lost"),
        ("echo 'srun: error: n1: task 1: Killed' >&2; exit 9", 1, "node n1 (ranks 2-3) was lost"),
        # srun ends the tasks of other nodes then.
        (
            "echo 'srun: error: Node failure on n2\nsrun: error: n1: task 1: Killed' >&2; exit 9",
            1,
            "n2 (no rank yet) was lost",
        ),
    ],
)
def test_a_node_that_is_lost_is_named(program, monkeypatch, caplog, script, code, said):
    program("srun", f"echo '12:00 INFO node n1 (host): ranks 2-3 of 4' >&2\n{script}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert launch.main(["--nodes", "2", "-m", "this"]) == code
    assert said in caplog.text


def test_the_launcher_of_each_node_gets_what_stands_behind_their_number(
    tmp_path, program, monkeypatch
):
    program("srun", f'echo "$@" > {tmp_path}/seen')
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert launch.main(["--nodes", "2", "-m", "this"]) == 0
    assert (tmp_path / "seen").read_text().endswith(f" -m {launch.__spec__.name} -m this\n")


@pytest.mark.parametrize("arguments", [[], ["two"]])
def test_nodes_without_a_number_are_refused(caplog, arguments):
    assert launch.main(["--nodes", *arguments]) == 1
    assert "--nodes without a number. Give --nodes 2" in caplog.text


def test_srun_gets_the_signal_that_the_job_gets(tmp_path, program):
    program("srun", f"trap 'exit 75' USR1\ntouch {tmp_path}/up\nwhile true; do sleep 0.05; done")
    work = launching(["--nodes", "2", "-m", "this"])
    launcher = forks.start(work, tmp_path / "stderr", SLURM_JOB_ID="1")
    wait_for(lambda: (tmp_path / "up").exists())
    os.kill(launcher.pid, signal.SIGUSR1)
    assert forks.joined([launcher]) == [75]


def failures(**ends: tuple[float, int]) -> dict[int, SimpleNamespace]:
    """By rank: (second, exit code)."""
    return {
        int(rank.removeprefix("rank")): SimpleNamespace(timestamp=second, exitcode=code)
        for rank, (second, code) in ends.items()
    }


@pytest.mark.parametrize(
    "ends, ranks",
    [
        # Of one moment: killed, failed, ended by torchrun.
        ({"rank0": (5, 1), "rank1": (5, -9), "rank2": (5, -15)}, [1, 0, 2]),
        # NCCL's watchdog aborts the others when the one that failed is long gone.
        ({"rank0": (600, -6), "rank1": (5, 1), "rank2": (600, -6)}, [1, 0, 2]),
        ({"rank0": (600, -6), "rank1": (5, -9)}, [1, 0]),
        ({"rank0": (5, 1), "rank1": (4, 1)}, [1, 0]),
    ],
)
def test_the_cause_is_named_first(ends, ranks):
    assert launch.causes_first(failures(**ends)) == ranks


def test_a_rank_that_waits_in_a_device_call_ends_by_itself():
    """By names that torch reads; the heartbeat leaves time for NCCL's own error."""
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    known = set(re.findall(r'"(TORCH_NCCL_\w+)"', (header / "ProcessGroupNCCL.hpp").read_text()))
    ours = {name for name in TRAINING_ENVIRONMENT if name.startswith("TORCH_NCCL_")}
    assert ours and ours <= known
    values = [
        int(TRAINING_ENVIRONMENT[f"TORCH_NCCL_{name}"])
        for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "HEARTBEAT_TIMEOUT_SEC")
    ]
    assert values[:2] == [3, 1] and 120 <= values[2] <= 600
