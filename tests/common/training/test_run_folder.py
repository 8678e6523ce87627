"""A run goes on in its own folder, and never from the weights of another."""

import errno
import fcntl
import multiprocessing
import subprocess
import sys
import threading
import time

import pytest

from millrace.common import jsonl
from millrace.common.training import run_folder
from tests.refusals import refused


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_same_run_goes_on(tmp_path):
    digest = run_folder.claim(tmp_path / "run", {"lr": 1e-3, "model": "ctc"})
    (tmp_path / "run/metrics.jsonl").write_text("{}\n")
    assert run_folder.claim(tmp_path / "run", {"model": "ctc", "lr": 1e-3}) == digest
    assert names(tmp_path / "run") == {"run.json", "metrics.jsonl"}


def test_another_run_begins_anew_and_the_old_one_stays_whole(tmp_path):
    folder, seen = tmp_path / "run", []
    for lr in (1, 2, 1, 2):
        seen.append(run_folder.claim(folder, {"lr": lr}))
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints/weights").write_text(str(lr))
    assert names(folder) == {
        "run.json",
        "checkpoints/weights",
        f"previous/{seen[0]}/checkpoints/weights",
        f"previous/{seen[1]}/checkpoints/weights",
        f"previous/{seen[0]}-2/checkpoints/weights",
    }


def test_a_folder_is_another_runs_until_all_of_that_is_moved(tmp_path):
    digest = run_folder.claim(tmp_path, {"lr": 1})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "previous").touch()  # as if the disk were full
    with pytest.raises(OSError, match="previous"):
        run_folder.claim(tmp_path, {"lr": 2})
    assert jsonl.read(tmp_path / "run.json")["digest"] == digest


@pytest.mark.parametrize("note", [None, '{"dig'])
def test_a_folder_that_holds_files_of_no_run_is_refused_and_stays(tmp_path, note):
    (tmp_path / "old").write_text("x")
    if note:
        (tmp_path / "run.json").write_text(note)
    before = names(tmp_path)
    with refused(r"holds old, which is of no run. Name a folder of"):
        run_folder.claim(tmp_path, {"lr": 1})
    assert names(tmp_path) == before


def test_two_processes_never_train_in_one_folder(tmp_path, caplog):
    other = "import sys, time; from millrace.common.training import run_folder\n"
    other += "with run_folder.held(sys.argv[1]): print('in', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", other, str(tmp_path / "run")], stdout=subprocess.PIPE
    ) as running:
        assert running.stdout.readline() == b"in\n"
        with (
            refused("another process is training here"),
            run_folder.held(tmp_path / "run", 0),
        ):
            pass
        # A killed run holds nothing, and is waited for.
        threading.Timer(0.5, running.kill).start()
        with run_folder.held(tmp_path / "run"):
            assert run_folder.claim(tmp_path / "run", {"lr": 1})
            assert names(tmp_path / "run") == {".lock", "run.json"}
    assert caplog.text.count("another process is training here; waiting 60 s") == 1


def test_a_worker_that_lives_longer_keeps_nobody_out(tmp_path):
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    with run_folder.held(tmp_path):
        worker.start()
    with run_folder.held(tmp_path, 0):
        worker.kill()
    worker.join()


def test_without_locks_of_the_file_system_nobody_is_kept_out(tmp_path, monkeypatch):
    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with run_folder.held(tmp_path, 0):
        pass
