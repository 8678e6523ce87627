"""Files appear whole or not at all, also when the writer is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.common import atomic
from tests.workflow.workflow import ROOT

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4)
    ),
    max_leaves=12,
)


def start(program: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


WRITE_HALF_AND_WAIT = """
import sys, time
from millrace.common import atomic
with atomic.replacing(sys.argv[1]) as partial, open(partial, "w") as handle:
    handle.write("half")
    handle.flush()
    print(partial, flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_sweeps_up(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    writer = start(WRITE_HALF_AND_WAIT, path)
    partial = Path(writer.stdout.readline().strip())
    assert partial.parent == tmp_path and partial.read_text() == "half"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert path.read_text() == "old" and partial.exists()
    atomic.write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_the_temporary_of_a_living_writer_is_left_alone(tmp_path: Path):
    path = tmp_path / "table.csv"
    writer = start(WRITE_HALF_AND_WAIT, path)
    try:
        partial = Path(writer.stdout.readline().strip())
        atomic.write_text(path, "new")
        assert partial.read_text() == "half" and path.read_text() == "new"
    finally:
        writer.kill()
        writer.wait()


def test_temporaries_of_other_hosts_and_files_are_left_alone(tmp_path: Path):
    others = [".table.csv.elsewhere-99999999.partial", ".table.csv.partial"]
    dead = f"{atomic._HOST}-99999999"
    others += [f".table.csv2.{dead}.partial", f".table.csv.2.{dead}.partial"]
    others += [f".table_csv.{dead}.partial", f".table.csv.{dead}.partial.gz", f".table.csv.{dead}"]
    others += [f".table.csv.{atomic._HOST}-copy.partial"]
    for name in others:
        (tmp_path / name).write_text("")
    atomic.write_text(tmp_path / "table.csv", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "table.csv"])


def test_two_processes_may_sweep_one_temporary(tmp_path: Path, monkeypatch):
    litter = tmp_path / f".table.csv.{atomic._HOST}-99999999.partial"
    litter.touch()
    monkeypatch.setattr(atomic.processes, "started", lambda pid: litter.unlink())
    atomic.sweep_folder(tmp_path)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_file_and_no_temporary(tmp_path: Path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic.replacing(path) as partial:
        partial.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_writer_that_wrote_nothing_is_an_error_not_an_empty_file(tmp_path: Path):
    with pytest.raises(FileNotFoundError), atomic.replacing(tmp_path / "file"):
        pass
    assert os.listdir(tmp_path) == []


def test_readers_never_see_a_half_written_file(tmp_path: Path):
    path = tmp_path / "file"
    size = 300_000
    program = f"""
import sys
from millrace.common import atomic
for number in range(40):
    atomic.write_bytes(sys.argv[1], bytes([number % 256]) * {size})
"""
    atomic.write_bytes(path, bytes(size))
    writers = [start(program, path), start(program, path)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        content = path.read_bytes()
        assert len(content) == size and len(set(content)) == 1
        seen += 1
    assert seen and [writer.returncode for writer in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["file"]


def disk_calls(monkeypatch) -> list[tuple[str, str]]:
    """A list that gets what is fsynced and renamed from now on."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_replace(source: object, target: object) -> None:
        calls.append(("rename", str(source)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return calls


def test_a_file_is_on_disk_before_it_gets_its_name_and_so_is_the_name(tmp_path: Path, monkeypatch):
    calls = disk_calls(monkeypatch)
    open_files = os.listdir("/proc/self/fd")
    atomic.write_bytes(tmp_path / "file", b"x")
    assert set(os.listdir("/proc/self/fd")) <= set(open_files)
    (first, partial), second, third = calls
    assert first == "fsync" and second == ("rename", partial) and third == ("fsync", str(tmp_path))


def test_a_zombie_is_no_living_writer(tmp_path: Path):
    path = tmp_path / "table.csv"
    writer = start(WRITE_HALF_AND_WAIT, path)
    partial = Path(writer.stdout.readline().strip())
    os.kill(writer.pid, signal.SIGKILL)
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
    atomic.write_text(path, "new")
    assert not partial.exists()
    writer.wait()


def test_folders_are_made(tmp_path: Path):
    atomic.write_text(tmp_path / "a/b/c.txt", "ü\r\n")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"\xc3\xbc\r\n"


def test_an_unchanged_file_keeps_its_time_and_a_changed_one_does_not(tmp_path: Path):
    path = tmp_path / "file"
    assert atomic.write_if_changed(path, b"abc")
    os.utime(path, ns=(1, 1))
    inode = path.stat().st_ino
    assert not atomic.write_if_changed(path, b"abc")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (1, inode)
    # Of equal size, so that only the content tells.
    assert atomic.write_if_changed(path, b"abd")
    assert path.read_bytes() == b"abd" and path.stat().st_mtime_ns != 1


@given(value=st.dictionaries(st.text(), JSON))
def test_the_same_value_gives_the_same_bytes_whatever_its_order(value):
    turned = dict(reversed(value.items()))
    assert atomic.json_bytes(turned) == atomic.json_bytes(value)
    assert json.loads(atomic.json_bytes(value)) == value
    assert atomic.json_bytes(value).endswith(b"\n")
