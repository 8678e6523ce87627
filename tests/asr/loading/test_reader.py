"""IndexedTarReader: right bytes, few descriptors, errors in place, changed tars refused, any
process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millrace.asr.loading.reader import IndexedTarReader, ReadError, TarState
from millrace.asr.tars.stamp import Stamp
from millrace.common.errors import MillraceError
from tests.asr.audio_tars import write_tar
from tests.refusals import refused


@pytest.fixture
def tars(tmp_path):
    """20 tars of 12 members of odd sizes: the requests in random order, and the bytes each must
    give."""
    draw, wanted = random.Random(1), []
    for path in (tmp_path / f"{number}.tar" for number in range(20)):
        members = {f"m{at}": draw.randbytes(draw.randrange(1, 9000)) for at in range(12)}
        places = write_tar(path, members)
        wanted += [((str(path), *places[name]), raw) for name, raw in members.items()]
    draw.shuffle(wanted)
    return tuple(map(list, zip(*wanted, strict=True)))


def open_tars(folder: Path) -> int:
    """How many tars of a folder this process has open."""
    return sum(Path(file.path).parent == folder for file in psutil.Process().open_files())


@pytest.mark.parametrize("max_open", [1, 3, 5, 64])
def test_every_member_in_the_order_of_the_requests(tars, max_open):
    requests, expected = tars
    folder = Path(requests[0][0]).parent
    reader = IndexedTarReader(max_open)
    raws, counts = [], []
    for raw in reader.read_many(iter(requests)):
        raws.append(raw)
        counts.append(open_tars(folder))
    assert raws == expected and max(counts) <= max_open
    assert [reader.read(*request) for request in requests[:50]] == expected[:50]
    reader.close()
    assert open_tars(folder) == 0
    assert reader.read(*requests[0]) == expected[0]  # a closed reader opens again


@pytest.fixture
def announced(monkeypatch) -> list[tuple[int, int]]:
    """Where the kernel is told to read, on a file system that does not say what is cached."""
    places = []

    def advise(descriptor: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        places.append((offset, size))

    monkeypatch.setattr(os, "preadv", lambda *_: -1)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    return places


def test_a_tar_is_opened_once_within_the_limit_and_between_announcing_and_reading(
    tars, tmp_path, announced
):
    reader = IndexedTarReader(20)
    for _ in range(3):
        assert list(reader.read_many(tars[0])) == tars[1]
    assert reader.opened == 20
    paths = [tmp_path / f"one{number}.tar" for number in range(96)]
    requests = [(str(path), *write_tar(path, {"a": b"x" * 5000})["a"]) for path in paths]
    reader = IndexedTarReader(max_open_tars=32)
    announced.clear()
    assert all(raw == b"x" * 5000 for raw in reader.read_many(requests))
    assert reader.opened == len(announced) == 96


def test_members_are_announced_whole_in_the_order_of_the_tar_unless_they_are_cached(
    tmp_path, announced, monkeypatch
):
    places = write_tar(tmp_path / "a.tar", {"a": b"1", "b": bytes(3 << 20), "c": b"1"})
    requests = [(str(tmp_path / "a.tar"), *places[name]) for name in "cb"]
    IndexedTarReader().will_need(requests)
    pieces = [(places["b"][0] + at, 1 << 20) for at in (0, 1 << 20, 2 << 20)]
    assert announced == [*pieces, places["c"]]
    # One that is cached says nothing of the others.
    for cached, expected in (("c", [*pieces, places["c"]]), ("bc", [])):
        announced.clear()
        offsets = [places[name][0] for name in cached]
        monkeypatch.setattr(
            os, "preadv", lambda _, into, offset, flags, known=offsets: offset in known
        )
        IndexedTarReader().will_need(requests)
        assert announced == expected


def test_what_cannot_be_read_is_an_error_in_its_place(tars, tmp_path):
    requests, expected = tars
    tar = requests[0][0]
    end = os.path.getsize(tar)
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "loop.tar").symlink_to("loop.tar")
    odd = {
        (str(tmp_path / "loop.tar"), 0, 10): "tar_missing",
        (str(tmp_path / "gone.tar"), 0, 10): "tar_missing",
        (str(tmp_path / "folder.tar"), 0, 10): "io_error",
        (f"{tar}/below.tar", 0, 10): "tar_missing",
        (tar, end - 100, 200): "short_read",
        (tar, end + 512, 1): "short_read",
        (tar, -1, 10): "bad_address",
        (tar, 0, -10): "bad_address",
        (tar, 1 << 70, 10): "bad_address",
    }
    mixed = [request for pair in zip(requests, odd, strict=False) for request in pair]
    reader = IndexedTarReader(4)
    for _ in range(2):  # an error leaves the reader usable
        raws = list(reader.read_many(mixed))
        assert raws[::2] == expected[: len(odd)]
        assert [error.reason for error in raws[1::2]] == list(odd.values())
        assert all(address[0] in str(error) for address, error in zip(odd, raws[1::2], strict=True))
    with pytest.raises(ReadError, match=r"gone.tar does not exist$"):
        reader.read(str(tmp_path / "gone.tar"), 0, 10)
    assert reader.read(tar, 5, 0) == b""


def test_after_an_error_of_the_system_the_tar_is_opened_anew(tmp_path):
    """As after a stale handle of a network file system; a folder fails in the same way."""
    tar = tmp_path / "a.tar"
    tar.mkdir()
    reader = IndexedTarReader()
    with pytest.raises(ReadError, match="Is a directory"):
        reader.read(str(tar), 0, 10)
    tar.rmdir()
    tar.write_bytes(b"0123456789")
    assert reader.read(str(tar), 0, 10) == b"0123456789"


def test_a_tar_that_is_not_as_recorded_is_refused(tars):
    request, path, state = tars[0][0], tars[0][0][0], os.stat(tars[0][0][0])
    size, time_ns = state.st_size, state.st_mtime_ns
    for recorded in ((size, time_ns), (None, None)):
        known = {path: TarState(path, *recorded)}
        assert IndexedTarReader(tars=known).read(*request) == tars[1][0]
    # Time 0 is an old tar's, and not one that was not recorded.
    for recorded in (
        (size + 512, time_ns),
        (size, time_ns + 1),
        (size + 512, time_ns + 1),
        (None, 0),
    ):
        known = {path: TarState(path, *recorded)}
        with pytest.raises(MillraceError) as error:
            IndexedTarReader(tars=known).read(*request)
        assert all(text in str(error.value) for text in (path, "changed", "snakemake asr_data"))
        with refused("changed"):
            list(IndexedTarReader(tars=known).read_many([request]))
    assert open_tars(Path(path).parent) == 0


def test_too_many_open_files_stop_the_run_and_say_what_to_lower(tars):
    reader, limits = IndexedTarReader(64), resource.getrlimit(resource.RLIMIT_NOFILE)
    requests = {request[0]: request for request in tars[0]}.values()
    free = os.open(os.devnull, os.O_RDONLY)  # the next descriptor that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with refused(r"too many open files\. Lower max_open_tars or raise `ulimit -n`"):
            list(reader.read_many(requests))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all(isinstance(raw, bytes) for raw in reader.read_many(requests))


def test_a_copy_is_read_and_said_once(tars, caplog):
    requests, expected = tars
    known = {}
    for path in {request[0] for request in requests}:
        stamp = Stamp.of(path)
        known[path] = TarState(path, stamp.size, stamp.mtime_ns, digest=stamp.digest)
        os.utime(path, ns=(5, 5))  # as cp leaves it
    reader = IndexedTarReader(4, tars=known)
    for _ in range(2):
        assert list(reader.read_many(requests)) == expected
    (line,) = caplog.messages
    assert (
        "is a copy of the one that was indexed: its time alone differs" in line and ".tar" in line
    )


@pytest.mark.parametrize("place", [0, 130, "middle", 700_000, 3_000_000, 5_900_000, -20_000])
def test_a_tar_of_the_same_size_with_other_content_is_refused(tmp_path, place, caplog):
    path = tmp_path / "a.tar"
    offset, size = write_tar(path, {f"m{at}": bytes([at]) * 100_000 for at in range(60)})["m3"]
    stamp = Stamp.of(path)
    content = bytearray(path.read_bytes())
    if place == "middle":  # nothing moves
        content[len(content) // 2 + 10] ^= 1
    elif place > 100_000:  # a member that grew: what is behind it has moved
        content[place:] = bytes(512) + content[place:-512]
    else:
        content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(5, 5))
    known = {path: TarState(str(path), *stamp[:2], digest=stamp.digest)}
    message = (
        rf"{path}: the tar has changed .*no copy either, as its content differs.*folder as tar_root"
    )
    with refused(message):
        IndexedTarReader(tars=known).read(path, offset, size)
    assert not caplog.messages and open_tars(tmp_path) == 0


@pytest.mark.parametrize("many", [False, True])
def test_a_tar_that_is_overwritten_while_it_is_open_is_refused(tmp_path, many):
    path = tmp_path / "a.tar"
    offset, size = write_tar(path, {"a": b"first" * 100})["a"]
    request, reader = (str(path), offset, size), IndexedTarReader()
    assert list(reader.read_many([request])) == [reader.read(*request)] == [b"first" * 100]
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(5, 5))  # also on a file system whose clock is coarse
    with refused(rf"{path}: the tar has changed since it was indexed"):
        list(reader.read_many([request])) if many else reader.read(*request)
    reader.close()


def _read_elsewhere(reader, requests, expected, answers):
    right = list(reader.read_many(requests)) == expected
    folder = Path(requests[0][0]).parent
    answers.put((right, open_tars(folder) <= reader.max_open_tars))
    reader.close()


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.long),
        pytest.param("forkserver", marks=pytest.mark.long),
    ],
)
def test_other_processes(tars, method):
    requests, expected = tars
    reader = IndexedTarReader(6)
    first = iter(reader.read_many(requests))
    assert [next(first) for _ in range(50)] == expected[:50]
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_read_elsewhere, args=(reader, requests, expected, answers))
    child.start()
    assert answers.get() == (True, True)
    child.join()
    assert list(first) == expected[50:]  # the child closed its own descriptors only
    sent = pickle.loads(pickle.dumps(reader))
    assert sent.read(*requests[3]) == expected[3]
    assert sent.max_open_tars == 6


def test_memory_that_is_to_go_back_goes_back_whatever_readers_come_later():
    """A calibrated run counts on it; its evaluations make readers of their own."""
    program = """
from millrace.common.machine import memory
from millrace.asr.loading.reader import IndexedTarReader
IndexedTarReader()
memory.return_freed_memory()
IndexedTarReader()
before = memory.resident()
blocks = [b"x" * (1 << 20) for _ in range(24)]
full = memory.resident()
del blocks
assert full > before + (20 << 20) and memory.resident() < before + (4 << 20)
"""
    subprocess.check_call([sys.executable, "-c", program])
