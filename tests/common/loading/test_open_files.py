"""Few open files: which are closed, and whose they are."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from millrace.asr.loading.reader import IndexedTarReader
from millrace.common.loading.open_files import OpenFiles
from millrace.image.records.reader import RecordReader
from millrace.music.features.reader import WindowReader
from tests.image.record_sets import write_set
from tests.music.features.trees import add_group, cqt, indexed, number
from tests.refusals import refused
from tests.tars.tars import write_tar


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
    for limit in (0, 2.5, "4"):
        with refused("the limit of open files is"):
            OpenFiles(opened, limit)


@pytest.mark.parametrize("close_inherited, closed", [(True, ["a"]), (False, [])])
def test_a_forked_process_opens_files_of_its_own(close_inherited, closed):
    CLOSED.clear()
    files = OpenFiles(opened, 2, close_inherited)
    files.get("a")

    def look(pipe) -> None:
        is_free = files.lock.acquire(blocking=False)
        pipe.send((is_free, files.get("a").pid == os.getpid(), files.opened, CLOSED))

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=look, args=(there,))
    reads, has_read = threading.Event(), threading.Event()

    def read() -> None:
        with files.lock:
            reads.set()
            has_read.wait()

    reader = threading.Thread(target=read)
    reader.start()
    reads.wait()
    child.start()  # which has no such thread
    has_read.set()
    assert here.poll(60) and here.recv() == (True, True, 1, closed)
    child.join()
    reader.join()
    assert files.get("a").pid == os.getpid() and CLOSED == []


def read_tars(folder: Path) -> Callable[[int], Any]:
    paths = [str(write_tar(folder / f"{name}.tar", [("k.txt", name.encode())])) for name in "ab"]
    reader = IndexedTarReader(max_open_tars=1)
    return lambda number: reader.read(paths[number], 512, 1)


def read_records(folder: Path) -> Callable[[int], Any]:
    reader = RecordReader(write_set(folder, [1, 1]), max_open_files=1)
    return lambda number: reader.read(number, 0, 1).ids


def read_windows(folder: Path) -> Callable[[int], Any]:
    for seed in range(2):
        with h5py.File(folder / f"{seed}.h5", "w") as h5:
            add_group(h5, number(seed), cqt(seed, 90), {"hop_s": 0.02})
    reader = WindowReader(indexed(folder), max_open_files=1)
    return lambda number: reader.read(number, 0, 90).copy()


@pytest.mark.parametrize("prepare", [read_tars, read_records, read_windows])
def test_a_file_stays_open_while_a_thread_reads_it(tmp_path, monkeypatch, prepare):
    read = prepare(tmp_path)
    expected = read(0)
    get = OpenFiles.get
    others: list[threading.Thread] = []

    def get_while_another_reads(files: OpenFiles, key: Any) -> Any:
        handle = get(files, key)
        if not others:
            others.append(threading.Thread(target=read, args=(1,)))
            others[0].start()
            others[0].join(0.3)
        return handle

    monkeypatch.setattr(OpenFiles, "get", get_while_another_reads)
    assert np.array_equal(read(0), expected)
    others[0].join()


def test_what_is_open_is_not_pickled():
    files = OpenFiles(opened, 3, True)
    files.get("a")
    copy = pickle.loads(pickle.dumps(files))
    assert (copy.limit, copy.close_inherited, len(copy), copy.opened) == (3, True, 0, 0)
