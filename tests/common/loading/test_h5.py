"""HDF5 files beside a writer: whose lock counts, and what a writer that allows readers looks
like."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import h5py
import pytest

from millrace.common.errors import MillraceError
from millrace.common.loading.h5 import RawFile, is_swmr, locking, open_h5


@pytest.mark.parametrize(
    "value, meaning",
    [
        (None, "BEST_EFFORT"),
        ("1", "TRUE"),
        ("0", "FALSE"),
        ("true", "TRUE"),
        ("False", "FALSE"),
        ("maybe", "BEST_EFFORT"),
    ],
)
def test_files_are_locked_as_hdf5_would(monkeypatch, value, meaning):
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    if value is not None:
        monkeypatch.setenv("HDF5_USE_FILE_LOCKING", value)
    assert locking() == meaning


@pytest.mark.parametrize(
    "value, number, is_refused",
    [
        ("BEST_EFFORT", errno.ENOSYS, False),
        ("BEST_EFFORT", errno.ENOLCK, False),
        ("TRUE", errno.ENOSYS, True),
        ("BEST_EFFORT", errno.EAGAIN, True),
        ("FALSE", errno.EAGAIN, False),
    ],
)
def test_a_file_system_without_locks_is_read_unless_locks_are_asked_for(
    tmp_path, monkeypatch, value, number, is_refused
):
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", value)
    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / "a.h5"
    path.write_bytes(b"x")
    before = os.listdir("/proc/self/fd")
    if is_refused:
        with pytest.raises(MillraceError, match=f"LOCKING is {value}") as refused:
            RawFile(str(path), lock=True)
        assert refused.traceback and os.listdir("/proc/self/fd") == before
    else:
        RawFile(str(path), lock=True).close()


def test_several_readers_have_a_file_open_at_once_and_a_writer_has_it_alone(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"x")
    readers = [RawFile(str(path), lock=True) for _ in range(2)]
    with open(path, "rb") as writer:
        with pytest.raises(BlockingIOError):
            fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for reader in readers:
            reader.close()
        fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_writer_that_allows_readers_is_told_from_one_that_does_not(tmp_path: Path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as writer:
        writer["x"] = [1, 2]
        writer.flush()
        assert not is_swmr(path)
        writer.swmr_mode = True
        assert is_swmr(path)
    assert not is_swmr(path) and not is_swmr(tmp_path / "none.h5")
    with open_h5(str(path)) as file:
        assert file["x"][:].tolist() == [1, 2]
    # Bytes that mean something else in an older superblock, and in no HDF5 at all.
    for head in (b"\x89HDF\r\n\x1a\n\0\0\0\4", b"\x89HDF\r\n\x1a\n\3", b"RIFF\r\n\x1a\n\3\0\0\4"):
        path.write_bytes(head)
        assert not is_swmr(path)
