"""The launcher's own part, with ranks that are shell scripts: causes, patience, exit codes."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from millrace.common.processes import TRAINING_ENVIRONMENT
from millrace.common.training import launch
from tests import forks


def launched(folder: Path, script: str, *flags: str) -> tuple[int, str]:
    """The exit code of a launcher of two ranks that run `script`, and what it said."""
    # In a file, as torchrun replaces what looks like its own names in arguments.
    (folder / "rank.sh").write_text(f"cd {folder}\n{script}")
    arguments = ["--standalone", "--nproc-per-node=2", *flags, "--no-python"]
    arguments += ["bash", str(folder / "rank.sh")]

    def launch_here() -> int:
        launch.log_to_stderr()
        return launch.main(arguments)

    (code,) = forks.joined([forks.start(launch_here, folder / "stderr")])
    return code, (folder / "stderr").read_text()


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
    ("flags", "seconds", "is_saved"),
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


def test_ranks_that_stop_in_order_ask_for_a_requeue(tmp_path):
    code, text = launched(tmp_path, "exit 75")
    assert code == 75 and "the ranks have stopped in order" in text
    assert launched(tmp_path, "exit 0")[0] == 0


def failures(**ends: tuple[float, int]) -> dict[int, SimpleNamespace]:
    """By rank: (second, exit code)."""
    return {
        int(rank.removeprefix("rank")): SimpleNamespace(timestamp=second, exitcode=code)
        for rank, (second, code) in ends.items()
    }


@pytest.mark.parametrize(
    ("ends", "ranks"),
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


def test_an_abort_is_explained():
    assert launch.end_in_words(-signal.SIGKILL) == "signal SIGKILL"
    assert launch.end_in_words(1) == "exit code 1"
    assert "another rank is lost or silent" in launch.end_in_words(-signal.SIGABRT)


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
