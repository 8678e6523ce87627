"""What is read of processes: whether they compute, and the memory that is their own."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.audit.runner import linux

READS = "zeros = open('/dev/zero', 'rb', 0)\nwhile True: zeros.read(2**24)"

STARVES = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
starved = os.getpid()
if os.fork():
    os.nice(19)
while starved in (os.getpid(), os.getppid()):
    pass
"""


@pytest.mark.parametrize(
    "works, is_busy",
    [
        (STARVES, True),  # it would, on a machine that is less busy
        ("while True: pass", True),
        (READS, True),  # the kernel does what there is to do
        ("import time; time.sleep(600)", False),
    ],
)
def test_a_process_is_busy_if_it_computes(works, is_busy):
    command = [sys.executable, "-c", f"print(flush=True)\n{works}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        busy = linux.is_busy([process.pid])
        process.kill()
    assert busy == is_busy


@pytest.mark.parametrize("looks, is_busy", [(2, False), (3, True)])
def test_processes_are_busy_if_one_computes_more_than_a_tenth(monkeypatch, looks, is_busy):
    runs = iter([True] * looks + [False] * 20)
    monkeypatch.setattr(linux, "_runs", lambda pid: pid == 2 and next(runs))
    assert linux.is_busy([1, 2]) == is_busy


def test_pages_of_files_are_no_memory_of_a_process(tmp_path: Path):
    size = 2**26
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    before = linux.anonymous_bytes(os.getpid())
    with file.open() as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) == 0
        assert linux.anonymous_bytes(os.getpid()) - before < size // 2
        held = bytearray(pages)
        assert linux.anonymous_bytes(os.getpid()) - before > size // 2
    assert len(held) == size
