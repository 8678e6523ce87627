"""Devices: what `auto` stands for, and what is refused before a run begins."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from millrace.common import cli
from millrace.common.errors import MillraceError
from millrace.common.stopping import Requeue
from millrace.common.training import devices
from millrace.common.training.ranks import Exchange, Ranks
from millrace.common.training.settings import LoopSettings, regime
from tests import forks
from tests.common.training.test_launch import wait_for


@pytest.mark.parametrize(
    "device, has_gpu, computes_bf16, expected",
    [
        ("cuda", True, True, "bf16-mixed"),
        ("auto", True, True, "bf16-mixed"),
        ("cuda", True, False, "32-true"),  # a GPU before Ampere emulates it, several times slower
        ("auto", True, False, "32-true"),
        ("auto", False, False, "32-true"),
        ("cpu", True, True, "32-true"),
    ],
)
def test_auto_takes_bf16_where_the_gpu_computes_in_it(
    monkeypatch, device, has_gpu, computes_bf16, expected
):
    def is_supported(including_emulation: bool = True) -> bool:
        """As torch answers: it emulates bf16 on every GPU."""
        return including_emulation or computes_bf16

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    assert devices.auto_precision(device) == expected
    assert devices.resolved(LoopSettings(device=device)).precision == expected
    assert (
        devices.resolved(LoopSettings(device=device, precision="16-mixed")).precision == "16-mixed"
    )


@pytest.mark.parametrize(
    "gpus, problem", [(0, "2 ranks on this node, but 0 GPUs"), (1, "but 1 GPU")]
)
def test_fewer_gpus_than_ranks_of_a_node_are_refused(monkeypatch, gpus, problem):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(MillraceError, match=problem):
        devices.launch(Ranks(0, 2, 0, 2), LoopSettings(device="cuda", precision="32-true"))


def test_ranks_of_one_machine_stay_on_its_loopback(monkeypatch):
    class StayedError(Exception):
        pass

    def stay() -> None:
        raise StayedError

    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setattr(devices, "stay_on_loopback", stay)
    with pytest.raises(StayedError):
        devices.launch(Ranks(0, 2, 0, 2), LoopSettings(device="cpu", precision="32-true"))


@pytest.mark.parametrize("ranks, tasks", [(Ranks(0, 2, 0, 2), "1"), (Ranks(), "2")])
def test_ranks_that_no_launcher_has_started_are_refused(monkeypatch, ranks, tasks):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    with pytest.raises(MillraceError, match=r"not been started by a launcher.*training\.launch"):
        devices.launch(ranks, LoopSettings(device="cpu", precision="32-true"))


@pytest.mark.parametrize(
    "ranks, words, cause",
    [
        (Ranks(1, 2, 1, 2), "[/a.cc:12] Connection closed by [::1]:9. More", "closed by [::1]:9)"),
        (Ranks(1, 2, 1, 2), "Timed out waiting 600ms for recv", "(Timed out waiting 600ms for"),
        (Ranks(1, 2, 1, 2), "shape '[2]' is invalid for input of size 3", ""),
        (Ranks(), "Connection closed by peer", ""),
    ],
)
def test_a_rank_that_has_lost_another_one_says_so_and_other_errors_stay(ranks, words, cause):
    kind = MillraceError if cause else RuntimeError
    with pytest.raises(kind, match=re.escape(cause)) as error, devices.peers(ranks, "run"):
        raise RuntimeError(words)
    assert not cause or "rank 1 has lost another rank (" in str(error.value)
    assert "cc:12" not in str(error.value)


@pytest.mark.parametrize(
    "tf32, products, convolutions",
    [
        ("none", "ieee", "ieee"),
        ("all", "tf32", "tf32"),
        ("convolutions", "ieee", "tf32"),  # as torch begins, so that other tests find it so
    ],
)
def test_what_is_computed_in_tf32_is_as_the_settings_say(tf32, products, convolutions):
    devices.launch(Ranks(), LoopSettings(device="cpu", precision="32-true", tf32=tf32))
    assert torch.backends.cuda.matmul.fp32_precision == products
    assert (
        torch.backends.cudnn.conv.fp32_precision
        == torch.backends.cudnn.rnn.fp32_precision
        == convolutions
    )
    # Fabric asks by the older names, which raise where old and new do not agree.
    assert torch.get_float32_matmul_precision() == ("high" if products == "tf32" else "highest")
    assert torch.backends.cudnn.allow_tf32 == (convolutions == "tf32")


@pytest.mark.parametrize(
    "precision, tf32, on_gpu, end",
    [
        ("32-true", "all", True, "(TF32 in convolutions and matrix products)"),
        ("32-true", "none", True, "(no TF32)"),
        ("32-true", "all", False, "computed in float32"),
        ("32-true", None, True, "computed in float32"),
        ("bf16-mixed", "all", True, "computed in bfloat16"),
    ],
)
def test_what_a_precision_computes_in_is_said(precision, tf32, on_gpu, end):
    assert regime(precision, tf32, on_gpu).endswith(end)


def together(
    folder: Path, work: Callable[[int], None], nodes: int = 1, **settings: float
) -> tuple[list[int], str]:
    """The exit codes of two ranks that do `work` of their number and leave together; their
    errors."""

    @devices.leaving_together()
    def run() -> int:
        if nodes == 2:
            os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        ranks = Ranks.from_environment()
        devices.launch(ranks, LoopSettings(device="cpu", precision="32-true", **settings))
        work(ranks.rank)
        return ranks.rank

    def checked() -> int:
        rank = run()
        assert not torch.distributed.is_initialized()
        (folder / f"left-{rank}").touch()
        return 0

    step = cli.step(argparse.ArgumentParser)(lambda args: checked())
    codes = forks.joined(forks.start_ranks(2, lambda: step([]), folder / "stderr"))
    return codes, (folder / "stderr").read_text()


def test_the_others_wait_until_rank_0_has_tested(tmp_path):
    def work(rank: int) -> None:
        if rank == 0:
            time.sleep(1.5)
            (tmp_path / "tested").touch()

    assert together(tmp_path, work)[0] == [0, 0]
    tested = (tmp_path / "tested").stat().st_mtime_ns
    assert all((tmp_path / f"left-{rank}").stat().st_mtime_ns >= tested for rank in range(2))


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_wait_for_a_silent_one_as_long_as_the_settings_say(tmp_path, nodes):
    def work(rank: int) -> None:
        assert torch.distributed.get_world_size() == 2
        if rank == 1:
            with pytest.raises(RuntimeError, match="Timed out"):
                torch.distributed.barrier()
            (tmp_path / "given up").touch()
        until = time.monotonic() + 20
        while not (tmp_path / "given up").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os._exit(int(time.monotonic() > until))

    assert together(tmp_path, work, nodes, timeout_seconds=2)[0] == [0, 0]


class WithAnUnusedPart(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(1, 1)
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).sum()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_parameters_take_no_part_in_a_step_under_ddp_only_if_that_is_allowed(is_allowed):
    """Also of a lone process, which calibrates as a rank of several would."""
    chosen = LoopSettings(device="cpu", precision="32-true", find_unused_parameters=int(is_allowed))

    def trains() -> bool:
        fabric = devices.launch(Ranks(), chosen, ddp=True)
        model = fabric.setup_module(WithAnUnusedPart())
        try:
            for _ in range(2):
                fabric.backward(model(torch.ones(1, 1)))
        except RuntimeError as error:
            return "Expected to have finished reduction" not in str(error)
        return True

    assert forks.answered(trains) == is_allowed


@pytest.mark.parametrize(
    "precision, dtype",
    [
        ("bf16-mixed", torch.bfloat16),
        ("16-mixed", torch.bfloat16),  # Fabric has no other on a CPU
        ("32-true", torch.float32),
    ],
)
def test_without_a_fabric_as_much_is_computed_in_half_precision(precision, dtype):
    with devices.autocast("cpu", precision):
        assert torch.nn.Linear(1, 1)(torch.ones(1, 1)).dtype == dtype


def test_when_the_launcher_dies_a_rank_that_waits_ends_and_one_that_saves_goes_on(tmp_path):
    def work(rank: int) -> None:
        (tmp_path / f"pid-{rank}").write_text(str(os.getpid()))
        if rank == 0:
            wait_for(lambda: (tmp_path / "killed").exists())
            time.sleep(0.5)
            (tmp_path / "saved").touch()
            time.sleep(20)  # and tests

    def launch() -> int:
        together(tmp_path, work)
        return 0

    launcher = forks.start(launch, tmp_path / "stderr", TORCHELASTIC_RUN_ID="x")
    pids = [tmp_path / f"pid-{rank}" for rank in range(2)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in pids))
    time.sleep(2)  # until rank 1 waits
    launcher.kill()
    first, second = (psutil.Process(int(path.read_text())) for path in pids)
    (tmp_path / "killed").touch()
    wait_for(lambda: (tmp_path / "saved").exists())
    assert not second.is_running() or second.status() == psutil.STATUS_ZOMBIE
    first.kill()


def test_nobody_waits_for_a_rank_that_has_failed(tmp_path):
    def work(rank: int) -> None:
        if rank == 0:
            raise MillraceError("the test split is gone")

    codes, errors = together(tmp_path, work)
    assert codes == [1, 1] and "Traceback" not in errors
    assert "the test split is gone" in errors and "rank 1 has lost another rank" in errors


def test_a_stop_in_order_closes_the_group_at_once(tmp_path):
    def work(rank: int) -> None:
        assert Exchange(2).gathered(rank) == [0, 1]  # as the loop does before it saves and stops
        raise Requeue

    codes, errors = together(tmp_path, work)
    assert codes == [75, 75] and "Traceback" not in errors
