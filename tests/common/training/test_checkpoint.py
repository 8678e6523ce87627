"""Checkpoints: whole or not there, whatever kills the writer or damages the file."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
from pathlib import Path

import pytest
import torch

from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.training.checkpoint import Checkpoints
from tests.common.test_atomic import disk_calls
from tests.common.training.test_ranks import Evil
from tests.refusals import refused


def state(step: int) -> dict:
    return {
        "weight": torch.full((1000,), float(step)),
        "nested": {"rng": (3, (1, 2), None)},
        "ranks": [{"a": step}],
    }


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, state(step), {})


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


def test_saved_found_loaded_and_pruned(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", total_limit=2)
    assert checkpoints.newest() is None
    for step in (5, 10, 123456789):
        checkpoints.save(step, state(step), {"seed": 1})
    assert steps(tmp_path / "c") == [10, 123456789] and leftovers(tmp_path / "c") == []
    assert (tmp_path / "c/last").read_text() == "step-123456789\n"
    found = checkpoints.newest()
    assert (found.step, found.header["seed"]) == (123456789, 1)
    for mapped in (False, True):
        loaded = checkpoints.load(found, mapped)
        assert torch.equal(loaded["weight"], state(123456789)["weight"])
        assert loaded["nested"] == state(0)["nested"] and loaded["ranks"] == [{"a": 123456789}]


def test_the_same_state_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        Checkpoints(tmp_path / name).save(3, state(3), {"seed": 1})
    for name in ("state.pt", "checkpoint.json"):
        assert (tmp_path / "a/step-00000003" / name).read_bytes() == (
            tmp_path / "b/step-00000003" / name
        ).read_bytes()


def test_a_checkpoint_is_on_disk_before_it_gets_its_name_and_so_is_the_name(tmp_path, monkeypatch):
    calls = disk_calls(monkeypatch)
    save(Checkpoints(tmp_path), 1)
    partial = f"{tmp_path}/.step-00000001.{os.getpid()}.partial"
    renamed = calls.index(("rename", partial))
    assert ("fsync", f"{partial}/state.pt") in calls[:renamed]
    assert calls[renamed + 1] == ("fsync", str(tmp_path))
    Checkpoints(tmp_path).mark_best(1)
    best = partial.replace("partial", "best.partial")
    assert calls[-2:] == [("rename", best), ("fsync", str(tmp_path))]


def test_a_checkpoint_whose_reading_could_run_code_is_not_read(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"weight": Evil(tmp_path / "ran")}, {})
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        checkpoints.load(checkpoints.newest())
    assert not (tmp_path / "ran").exists()


def flip(folder: Path) -> None:
    raw = bytearray((folder / "state.pt").read_bytes())
    raw[-2000] ^= 4
    (folder / "state.pt").write_bytes(raw)


DAMAGES = {
    "flipped bit": flip,
    "cut": lambda folder: os.truncate(folder / "state.pt", 100),
    "empty": lambda folder: os.truncate(folder / "state.pt", 0),
    "longer": lambda folder: (folder / "state.pt").open("ab").write(b"\0"),
    "no state": lambda folder: (folder / "state.pt").unlink(),
    "no header": lambda folder: (folder / "checkpoint.json").unlink(),
    "header cut": lambda folder: os.truncate(folder / "checkpoint.json", 20),
    "header of nothing": lambda folder: (folder / "checkpoint.json").write_text("[]"),
    "empty folder": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "a file instead": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("limit", [1, 2, 0])
def test_the_newest_good_one_is_used_and_never_pruned(tmp_path, caplog, damage, limit):
    checkpoints = Checkpoints(tmp_path, total_limit=0)
    save(checkpoints, 1, 2, 3)
    for step in (2, 3):
        DAMAGES[damage](tmp_path / f"step-{step:08d}")
    found = checkpoints.newest()
    assert found.step == 1
    assert (
        "step-00000003: damaged checkpoint" in caplog.text
        and "step-00000001: resuming" in caplog.text
    )
    # The run goes on from 1 and saves 2 again: that one must stay, and be whole, whatever the
    # limit.
    checkpoints = Checkpoints(tmp_path, limit)
    save(checkpoints, 2)
    assert checkpoints.newest().step == 2
    assert torch.equal(checkpoints.load(checkpoints.newest())["weight"], state(2)["weight"])
    assert steps(tmp_path) == ([2] if limit == 1 else [1, 2]) and leftovers(tmp_path) == []


@pytest.mark.parametrize("other", [0, 9])
def test_another_format_is_refused_not_taken_for_damage(tmp_path, other):
    save(Checkpoints(tmp_path), 1)
    header = tmp_path / "step-00000001/checkpoint.json"
    header.write_text(header.read_text().replace('"format": 1', f'"format": {other}'))
    with refused(f"format {other}"):
        Checkpoints(tmp_path).newest()


def _killed_at(folder: Path, call: int) -> None:
    """Save step 3, and die just before the `call`-th of the calls that change the file system."""
    left = [call]

    def dying(function):
        def run(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return run

    for name in ("replace", "fsync", "mkdir", "rmdir", "unlink", "open"):
        setattr(os, name, dying(getattr(os, name)))
    save(Checkpoints(folder, total_limit=1), 3)


def test_a_writer_killed_at_any_point_leaves_a_good_checkpoint(tmp_path, caplog):
    seen = set()
    for call in range(60):
        folder = tmp_path / str(call)
        save(Checkpoints(folder, total_limit=1), 2)
        child = multiprocessing.get_context("fork").Process(target=_killed_at, args=(folder, call))
        child.start()
        child.join(60)
        found = Checkpoints(folder).newest()
        assert found is not None and "damaged" not in caplog.text, call
        assert torch.equal(Checkpoints(folder).load(found)["weight"], state(found.step)["weight"])
        seen.add(found.step)
        # The next writer clears up.
        save(Checkpoints(folder, total_limit=1), 4)
        assert steps(folder) == [4]
        assert [name for name in leftovers(folder) if name.startswith(".step")] == []
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert child.exitcode == 0 and call > 6 and seen == {2, 3}


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, total_limit=1)
    save(checkpoints, 1)

    def limited() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            save(checkpoints, 2)
        except MillraceError as error:
            os._exit(7 if "Is the disk full" in str(error) else 8)

    child = multiprocessing.get_context("fork").Process(target=limited)
    child.start()
    child.join(60)
    assert child.exitcode == 7
    assert steps(tmp_path) == [1] and leftovers(tmp_path) == []
    assert jsonl.read(tmp_path / "step-00000001/checkpoint.json")["step"] == 1


def no_links(source: str, target: str) -> None:
    """os.link of a file system without hard links."""
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("link", [os.link, no_links])
def test_the_best_one_outlives_those_beside_it_and_is_replaced_by_a_better_one(
    tmp_path, monkeypatch, link
):
    monkeypatch.setattr(os, "link", link)
    checkpoints = Checkpoints(tmp_path, total_limit=2)
    for step in range(1, 6):
        checkpoints.save(step, state(step), {"seed": 1})
        if step in (1, 3):
            # Left by a process that was killed, of the same number: in a container all are 1.
            (tmp_path / f".step-{step:08d}.{os.getpid()}.best.partial").mkdir()
            checkpoints.mark_best(step)
            assert checkpoints.named("best").step == step and leftovers(tmp_path) == []
            states = [tmp_path / name / "state.pt" for name in ("best", f"step-{step:08d}")]
            assert os.path.samefile(*states) == (link is not no_links)
    assert steps(tmp_path) == [4, 5] and leftovers(tmp_path) == []
    for name, step in (("best", 3), ("last", 5), ("step-00000004", 4)):
        found = checkpoints.named(name)
        assert found.step == step and torch.equal(
            checkpoints.load(found)["weight"], state(step)["weight"]
        )
    with refused(r"no checkpoint step-00000003. There are: .*step-00000004, .*best"):
        checkpoints.named("step-00000003")
    flip(tmp_path / "step-00000005")
    assert checkpoints.named("last").step == 4
    flip(tmp_path / "best")
    for name in ("step-00000005", "best"):
        with refused(r"no whole checkpoint .the content of state.pt has changed"):
            checkpoints.named(name)
    with refused(r"no checkpoint last. Is this the folder of a run"):
        Checkpoints(tmp_path / "none").named("last")
