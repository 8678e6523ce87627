"""Few open files: which are closed, and whose they are."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from typing import NamedTuple

import pytest

from millrace.common.loading.open_files import OpenFiles


class Handle(NamedTuple):
    key: str
    pid: int
    closed: list[str]

    def close(self) -> None:
        self.closed.append(self.key)


CLOSED: list[str] = []


def opened(key: str) -> Handle:
    return Handle(key, os.getpid(), CLOSED)


def test_the_least_recent_file_is_closed_before_another_is_opened():
    CLOSED.clear()
    files = OpenFiles(opened, 2)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert files.get(key).key == key and len(files) <= 2
    assert CLOSED == ["b", "c"] and files.opened == 4 and list(files.own) == ["a", "b"]
    files.drop("a")
    files.drop("nothing")
    files.close()
    assert CLOSED == ["b", "c", "a", "b"] and len(files) == 0
    assert files.get("a").key == "a"
    with pytest.raises(ValueError, match="at least one file"):
        OpenFiles(opened, 0)


@pytest.mark.parametrize(("close_inherited", "closed"), [(True, ["a"]), (False, [])])
def test_a_forked_process_opens_files_of_its_own(close_inherited, closed):
    CLOSED.clear()
    files = OpenFiles(opened, 2, close_inherited)
    files.get("a")

    def look(pipe) -> None:
        pipe.send((files.get("a").pid == os.getpid(), files.opened, CLOSED))

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=look, args=(there,))
    child.start()
    assert here.poll(60) and here.recv() == (True, 1, closed)
    child.join()
    assert files.get("a").pid == os.getpid() and CLOSED == []


def test_what_is_open_is_not_pickled():
    files = OpenFiles(opened, 3, True)
    files.get("a")
    copy = pickle.loads(pickle.dumps(files))
    assert (copy.limit, copy.close_inherited, len(copy), copy.opened) == (3, True, 0, 0)
