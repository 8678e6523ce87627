"""Some damaged files of each kind; `make fuzz` reads 100,000."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fuzz import run
from tests.fuzz.kinds import KINDS, ROOT, Kind
from tests.fuzz.run import finds


@pytest.mark.long
def test_damaged_files_of_every_kind_are_read_or_refused():
    command = [sys.executable, "-m", "tests.fuzz", "--count", "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("200 files, 0 finds") == len(KINDS)


def hang(folder):
    while True:
        pass


def grow(folder):
    return bytearray(4 << 30)


def leave(folder):
    (folder.parents[2] / "outside").write_text("x")


@pytest.mark.parametrize(
    "read, problem",
    [
        (lambda folder: 1 / 0, "ZeroDivisionError"),
        (hang, "no end"),
        (grow, "MemoryError"),
        (lambda folder: os._exit(3), "the process died (3)"),
        (leave, "wrote "),
    ],
)
def test_what_goes_wrong_is_a_find(monkeypatch, tmp_path, read, problem):
    monkeypatch.setattr(run, "SECONDS", 1)
    monkeypatch.setattr(run.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setitem(KINDS, "bad", Kind(lambda folder: [{"a": b"content"}], read, (ValueError,)))
    [find] = finds("bad", 1, first_seed=7)
    assert (find.kind, find.seed) == ("bad", 7) and problem in find.problem
