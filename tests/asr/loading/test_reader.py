"""IndexedTarReader and RowTable: right bytes, few descriptors, told errors, changed tars refused, any start
method."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.loading import row_table_writer
from millrace.asr.loading.reader import IndexedTarReader, ReadError, TarState
from millrace.asr.loading.row_table import RowTable
from millrace.common.errors import MillraceError
from tests.asr.audio_tars import corpus, write_buckets, write_tar


@pytest.fixture
def tars(tmp_path):
    """20 tars of 12 members of odd sizes: the requests in random order, and the bytes each must give."""
    rng = np.random.default_rng(0)
    wanted = []
    for number in range(20):
        members = {f"m{at}": rng.bytes(int(rng.integers(1, 9000))) for at in range(12)}
        path = tmp_path / f"{number}.tar"
        places = write_tar(path, members)
        wanted += [((str(path), *places[name]), raw) for name, raw in members.items()]
    random.Random(1).shuffle(wanted)
    return [request for request, _ in wanted], [raw for _, raw in wanted]


def open_tars() -> int:
    return sum(
        os.readlink(f"/proc/self/fd/{fd}").endswith(".tar")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("max_open", "lookahead"), [(1, 64), (3, 64), (64, 64), (64, 1), (64, 0), (5, 8)])
def test_every_member_in_the_order_asked(tars, max_open, lookahead, threads):
    requests, expected = tars
    reader = IndexedTarReader(max_open, lookahead=lookahead, threads=threads)
    got, most = [], 0
    for raw in reader.read_many(iter(requests)):
        got.append(raw)
        most = max(most, open_tars())
    assert got == expected
    assert most <= max_open
    assert [reader.read(*request) for request in requests[:50]] == expected[:50]
    reader.close()
    assert open_tars() == 0
    assert reader.read(*requests[0]) == expected[0]  # a closed reader opens again


def test_tars_within_the_limit_are_opened_once(tars):
    requests, _ = tars
    reader = IndexedTarReader(20)
    for _ in range(3):
        assert len(list(reader.read_many(requests))) == len(requests)
    assert reader.opened == 20


def test_announcing_and_reading_open_a_tar_once(tmp_path):
    requests = []
    for number in range(96):
        path = tmp_path / f"{number}.tar"
        places = write_tar(path, {"a": b"x" * 5000})
        requests.append((str(path), *places["a"]))
    os.sync()
    reader = IndexedTarReader(max_open_tars=32, lookahead=64)
    for request in requests:
        with open(request[0], "rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert all(raw == b"x" * 5000 for raw in reader.read_many(requests))
    assert reader.opened == 96


def cached_pages(path) -> np.ndarray:
    """Which pages of a file are in the page cache, without reading any (mincore)."""
    with open(path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), pages
        )
        del start
        assert not failed
        return np.array(pages) & 1


def test_announced_bytes_come_into_the_page_cache(tmp_path):
    path = tmp_path / "big.tar"
    places = write_tar(path, {f"m{at}": os.urandom(300_000) for at in range(8)})
    os.sync()
    with open(path, "rb") as handle:
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path).any():
        pytest.skip("this file system keeps its pages")
    requests = [(str(path), *place) for place in places.values()][2:5]
    first, last = requests[0][1] // mmap.PAGESIZE, (requests[2][1] + 299_999) // mmap.PAGESIZE
    IndexedTarReader().will_need(requests)
    for _ in range(500):
        if cached_pages(path)[first : last + 1].all():
            break
        time.sleep(0.01)
    assert cached_pages(path)[first : last + 1].all()
    assert not cached_pages(path)[last + 20 :].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_cannot_be_read_is_told_in_its_place(tars, tmp_path, threads):
    requests, expected = tars
    tar = requests[0][0]
    end = os.path.getsize(tar)
    (tmp_path / "folder.tar").mkdir()
    odd = {
        (str(tmp_path / "gone.tar"), 0, 10): "tar_missing",
        (str(tmp_path / "folder.tar"), 0, 10): "io_error",
        (tar, end - 100, 200): "short_read",
        (tar, end + 512, 1): "short_read",
        (tar, -1, 10): "bad_address",
        (tar, 0, -10): "bad_address",
        (tar, 1 << 70, 10): "bad_address",
    }
    asked = [pair for number, address in enumerate(odd) for pair in (requests[number], address)]
    reader = IndexedTarReader(4, lookahead=6, threads=threads)
    for _ in range(2):  # an error leaves the reader usable
        got = list(reader.read_many(asked))
        assert got[::2] == expected[: len(odd)]
        assert [error.reason for error in got[1::2]] == list(odd.values())
        assert all(address[0] in str(error) for address, error in zip(odd, got[1::2], strict=True))
    with pytest.raises(ReadError):
        reader.read(str(tmp_path / "gone.tar"), 0, 10)
    assert reader.read(tar, 5, 0) == b""


@pytest.mark.parametrize("change", ["grown", "touched", "replaced"])
def test_a_tar_that_has_changed_is_refused(tars, change):
    requests, expected = tars
    path = requests[0][0]
    state = os.stat(path)
    known = {path: TarState(path, state.st_size, state.st_mtime_ns)}
    assert IndexedTarReader(tars=known).read(*requests[0]) == expected[0]
    if change == "grown":
        with open(path, "ab") as handle:
            handle.write(bytes(512))
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif change == "touched":
        os.utime(path, ns=(1, state.st_mtime_ns + 1))
    else:
        os.rename(requests[1][0] if requests[1][0] != path else requests[2][0], path)
    for use in (
        lambda reader: reader.read(*requests[0]),
        lambda reader: list(reader.read_many(requests[:1])),
    ):
        with pytest.raises(MillraceError) as error:
            use(IndexedTarReader(tars=known))
        assert (
            path in str(error.value)
            and "changed" in str(error.value)
            and "snakemake asr_data" in str(error.value)
        )
    assert open_tars() == 0
    at_epoch = {path: TarState(path, None, 0)}  # an old tar's time, and not one that was not recorded
    with pytest.raises(MillraceError, match="changed"):
        IndexedTarReader(tars=at_epoch).read(path, 0, 512)
    unknown = {path: TarState(path)}  # nothing was recorded: nothing to compare
    assert len(IndexedTarReader(tars=unknown).read(path, 0, 512)) == 512


def _read_elsewhere(reader, requests, expected, answers):
    right = list(reader.read_many(requests)) == expected
    answers.put((right, open_tars() <= reader.max_open_tars))
    reader.close()


@pytest.mark.parametrize(("method", "threads"), [("fork", 1), ("fork", 2), ("spawn", 2), ("forkserver", 1)])
def test_other_processes(tars, method, threads):
    requests, expected = tars
    reader = IndexedTarReader(6, threads=threads)
    first = iter(reader.read_many(requests))
    assert [next(first) for _ in range(50)] == expected[:50]
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_read_elsewhere, args=(reader, requests, expected, answers))
    child.start()
    assert answers.get() == (True, True)
    child.join()
    assert list(first) == expected[50:]  # the child closed its own descriptors only
    assert pickle.loads(pickle.dumps(reader)).read(*requests[3]) == expected[3]


# the rows of the buckets


def test_rows_are_those_of_the_parquets(tmp_path):
    buckets = corpus(tmp_path)
    table = RowTable.open(buckets, tmp_path / "cache")
    rows = [
        row
        for name in ("b_0_3", "b_3_5")
        for row in pq.read_table(buckets / "train" / f"{name}.parquet").to_pylist()
    ]
    assert len(table) == len(rows) == 24
    order = np.random.default_rng(0).permutation(len(rows))
    for number, row in zip(order, table.rows(order), strict=True):
        known = rows[number]
        assert (row.number, row.offset, row.size, row.sample_id) == (
            number,
            known["offset"],
            known["size"],
            known["sample_id"],
        )
        assert row.transcript == known["transcript"] and row.language == (known["language"] or "")
        assert row.duration_s == np.float32(known["duration_s"])
        state = table.tar_state(row.tar)
        stat = os.stat(known["tar_path"])
        assert state == TarState(known["tar_path"], stat.st_size, stat.st_mtime_ns)
        assert table.member(number) == known["tar_member_name"]
    assert [len(lengths) for lengths in table.durations()] == [12, 12]
    copy = pickle.loads(pickle.dumps(table))
    assert copy.rows(order) == table.rows(order)
    for beyond in (-1, 24):
        with pytest.raises(MillraceError, match="there is no row"):
            table.rows([beyond])


def test_the_table_follows_the_buckets(tmp_path):
    one, two, cache = corpus(tmp_path / "1"), corpus(tmp_path / "2"), tmp_path / "cache"
    paths = {RowTable.open(folder, cache).path for folder in (one, two, one, two)}
    assert len(paths) == 2 and all(path.exists() for path in paths)
    rows = pq.read_table(one / "train" / "b_0_3.parquet").to_pylist()
    write_buckets(one, {"b_0_3": rows[:5]}, [])
    table = RowTable.open(one, cache)
    assert len(table) == 5 and table.tar_state(0).size is None
    assert sorted(path.name for path in cache.glob("*.table")) == sorted(
        {table.path.name, RowTable.open(two, cache).path.name}
    )


def test_ranks_that_open_at_once_share_one_table(tmp_path, monkeypatch):
    buckets, written = corpus(tmp_path), []
    original = row_table_writer.write
    monkeypatch.setattr(
        "millrace.asr.loading.row_table.write", lambda *args: (written.append(1), original(*args))
    )
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: RowTable.open(buckets), range(8)))
    assert len(written) == 1 and len({table.path for table in tables}) == 1


def test_a_table_that_is_there_needs_nothing_to_be_written(tmp_path):
    buckets = corpus(tmp_path)
    expected = RowTable.open(buckets).rows([3])
    (buckets / ".rows.lock").unlink()
    (buckets / ".rows.lock").mkdir()  # as on a read-only mount: the lock cannot be opened
    assert RowTable.open(buckets).rows([3]) == expected


def test_a_table_that_was_swept_under_a_run_is_told(tmp_path):
    table = RowTable.open(corpus(tmp_path))
    table.path.unlink()
    with pytest.raises(MillraceError, match="built again"):
        pickle.loads(pickle.dumps(table)).rows([0])


def test_buckets_are_read_from_their_folder_or_their_file(tmp_path):
    folder = corpus(tmp_path)
    config = BucketConfig.read(folder)
    assert config == BucketConfig.read(str(folder / "bucket_config.json"))
    assert config.ids == ["b_0_3", "b_3_5"] and config.splits == {}
    assert config.parquets() == [folder / "train" / f"{name}.parquet" for name in config.ids]


def test_memory_that_is_to_go_back_goes_back_whatever_readers_come_later():
    """A calibrated run counts on it; its evaluations make readers of their own."""
    program = """
from millrace.common.machine import memory as memory_meter
from millrace.asr.loading.reader import IndexedTarReader
IndexedTarReader()
memory_meter.return_freed_memory()
IndexedTarReader()
before = memory_meter.resident()
blocks = [b"x" * (1 << 20) for _ in range(24)]
held = memory_meter.resident()
del blocks
assert held > before + (20 << 20) and memory_meter.resident() < before + (4 << 20)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_folders_that_are_no_buckets(tmp_path):
    for content in (None, b"{", b"[]", b'{"buckets": []}', b'{"buckets": [{"bucket_id": "b_0_3"}]}'):
        if content is not None:
            (tmp_path / "bucket_config.json").write_bytes(content)
        with pytest.raises(MillraceError) as error:
            RowTable.open(tmp_path)
        assert "bucket_config.json" in str(error.value) and "snakemake asr_data" in str(error.value)
    with pytest.raises(MillraceError, match="no split dev"):
        RowTable.open(corpus(tmp_path / "c"), split="dev")
    damaged = tmp_path / "x.table"
    damaged.write_bytes(b"not a table at all")
    with pytest.raises(MillraceError, match="not a row table"):
        RowTable(damaged)
