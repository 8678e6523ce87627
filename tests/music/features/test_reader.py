"""Windows: the same as a plain reader's in every layout, under every start method, with few open
files."""

from __future__ import annotations

import dataclasses
import fcntl
import multiprocessing
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from millrace.music.features import reader as reader_module
from millrace.music.features.index import FeatureIndex, merge
from millrace.music.features.reader import FeatureError, WindowReader, as_float32
from millrace.music.features.track import Contract, Track
from tests.music.features.trees import add_group, cqt, indexed, number
from tests.refusals import refused

LAYOUTS = {
    "contiguous": {},
    "chunked": {"chunks": (50, 30)},
    "gzip": {"chunks": (50, 30), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (50, 30), "compression": "lzf"},
}


def write_h5(root, kind, layout, time_axis, dtype, hop) -> dict[str, np.ndarray]:
    """Three tracks of one file; returns their values as (T, C)."""
    storage, attributes = LAYOUTS[layout], {"hop_s": hop}
    tracks = {
        number(seed): cqt(seed, frames).astype(dtype) for seed, frames in enumerate((700, 1300, 90))
    }
    with h5py.File(root / "chunk_00001.h5", "w") as h5:
        if kind == "concatenated":
            values = np.concatenate(list(tracks.values()))
            h5.create_dataset("cqt", data=values if time_axis == 0 else values.T, **storage)
            h5["cqt"].attrs.update(attributes)
            h5["offsets"] = np.cumsum([0, *map(len, tracks.values())])
            h5["ids"] = [name.encode() for name in tracks]
        for at, (name, values) in enumerate(tracks.items()):
            stored = values if time_axis == 0 else np.ascontiguousarray(values.T)
            if kind == "group":
                add_group(h5, name, stored, attributes, **storage)
            elif kind == "flat":
                h5.create_dataset(name, data=stored, **storage).attrs.update(attributes)
            elif kind == "attributed":
                marked = attributes | {"youtube_id": name.encode() if at % 2 else name}
                h5.create_dataset(f"track_{at}", data=stored, **storage).attrs.update(marked)
    return tracks


@pytest.mark.parametrize("hop", [0.02, 0.1])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4"])
@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["group", "flat", "attributed", "concatenated"])
def test_every_layout_gives_the_windows_of_a_plain_reader(
    tmp_path, kind, layout, time_axis, dtype, hop
):
    tracks = write_h5(tmp_path, kind, layout, time_axis, dtype, hop)
    index = indexed(tmp_path)
    reader = WindowReader(index)
    for name, values in tracks.items():
        row = index.find([name])[0]
        entry = index.track(row)
        assert (entry.hop, entry.frames) == (hop, len(values))
        assert entry.storage == {"contiguous": "raw", "chunked": "chunks"}.get(layout, "h5py")
        for start, frames in ((0, 40), (len(values) - 61, 61), (37, 45), (len(values) - 1, 1)):
            window = reader.read(row, start, frames)
            assert window.dtype == np.float32 and window.shape == (84, frames)
            np.testing.assert_array_equal(window, values[start : start + frames].T.astype("f4"))


def test_float64_is_read_as_float32(tmp_path):
    tracks = write_h5(tmp_path, "group", "contiguous", 0, "<f8", 0.02)
    index = indexed(tmp_path)
    window = WindowReader(index).read(index.find([number(0)])[0], 5, 9)
    assert window.dtype == np.float32
    np.testing.assert_array_equal(window, tracks[number(0)][5:14].T.astype("f4"))


def test_a_window_beyond_the_end_repeats_what_it_has(tmp_path):
    tracks = write_h5(tmp_path, "group", "chunked", 1, "<f4", 0.02)
    index = indexed(tmp_path)
    reader, row, values = WindowReader(index), index.find([number(2)])[0], tracks[number(2)].T
    piece = values[:, 80:]
    np.testing.assert_array_equal(
        reader.read(row, 80, 25), np.concatenate([piece] * 3, axis=1)[:, :25]
    )
    for start, frames in ((-1, 10), (90, 10), (0, 0)):
        with pytest.raises(IndexError, match=f"frame {start} of 90"):
            reader.read(row, start, frames)


def write_tree(root, files=6) -> FeatureIndex:
    for file in range(files):
        with h5py.File(root / f"chunk_{file:05d}.h5", "w") as h5:
            for seed in (2 * file, 2 * file + 1):
                storage = LAYOUTS[list(LAYOUTS)[seed % 3]]
                add_group(h5, number(seed), cqt(seed, 300), {"hop_s": 0.02}, **storage)
    return indexed(root)


def sums(reader: WindowReader, rows: list[int]) -> tuple[list[float], int]:
    """A checksum of a window of each row, and the files open then."""
    return [float(reader.read(row, 10, 100).sum(dtype="f8")) for row in rows], reader.open_files


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.long),
        pytest.param("forkserver", marks=pytest.mark.long),
    ],
)
def test_readers_that_are_open_travel_to_processes_of_every_start_method(tmp_path, method):
    index = write_tree(tmp_path)
    reader, rows = WindowReader(index, max_open_files=2), list(range(len(index)))
    seeds = sorted(range(12), key=lambda seed: number(seed).encode())
    expected = [float(cqt(seed, 300)[10:110].sum(dtype="f8")) for seed in seeds]
    assert sums(reader, rows)[0] == pytest.approx(expected)
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.starmap(sums, [(reader, rows), (reader, rows[::-1])])
        # Let them end by themselves: terminate() waits for ever for a child that has inherited a
        # handler of SIGTERM from a test before.
        pool.close()
        pool.join()
    assert results[0][0] == pytest.approx(expected) and results[1][0] == pytest.approx(
        expected[::-1]
    )
    assert all(0 < open_files <= 2 for _, open_files in results)
    # What the children did has not closed the parent's files.
    assert sums(reader, rows)[0] == pytest.approx(expected)


def test_few_files_are_open_however_many_are_read(tmp_path):
    index = write_tree(tmp_path)
    reader = WindowReader(index, max_open_files=3)
    before = len(os.listdir("/proc/self/fd"))
    for row in [*range(12), *range(12)]:
        reader.read(row, 0, 10)
        assert reader.open_files <= 3 and len(os.listdir("/proc/self/fd")) <= before + 6
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("keeps_its_time", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_that_changed_after_indexing_is_refused(tmp_path, is_open, keeps_its_time):
    reader = WindowReader(write_tree(tmp_path, files=1))
    path = tmp_path / "chunk_00000.h5"
    then = path.stat().st_mtime_ns
    if is_open:
        reader.read(0, 0, 1)
    os.truncate(path, 4096)
    if keeps_its_time:
        os.utime(path, ns=(then, then))
    with refused(r"has changed since it was indexed.*Build its partition again"):
        reader.read(0, 0, 1)


def test_an_open_file_that_was_written_anew_is_refused_also_at_its_size(tmp_path):
    reader = WindowReader(write_tree(tmp_path, files=1))
    reader.read(0, 0, 1)
    os.utime(tmp_path / "chunk_00000.h5", ns=(1, 1))
    with refused("then, 1 now"):
        reader.read(0, 0, 1)


def test_a_file_that_cannot_be_read_is_opened_again(tmp_path, monkeypatch):
    write_h5(tmp_path, "group", "gzip", 0, "<f4", 0.02)
    reader = WindowReader(indexed(tmp_path))

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(reader_module, "_through_h5py", fail)
        with pytest.raises(FeatureError, match="chunk_00001") as error:
            reader.read(0, 0, 5)
    assert (error.value.reason, reader.open_files) == ("file_unreadable", 0)
    assert reader.read(0, 0, 5).shape == (84, 5)


@pytest.mark.parametrize("layout", ["contiguous", "chunked"])
def test_a_place_beyond_the_end_of_the_file_is_an_error_and_no_crash(tmp_path, layout):
    write_h5(tmp_path, "group", layout, 0, "<f4", 0.02)
    index = indexed(tmp_path)
    track = index.track(0)
    end = track.size - 5 * track.bins * 4 + 1  # by one byte
    index.track = lambda number: dataclasses.replace(
        track, offset=end, addresses=[end] * len(track.addresses)
    )
    with pytest.raises(FeatureError, match="ends before the window") as error:
        WindowReader(index).read(0, 0, 5)
    assert error.value.reason == "file_cut"


def test_a_file_below_what_is_a_folder_no_longer_is_missing(tmp_path):
    (tmp_path / "part").mkdir()
    write_h5(tmp_path / "part", "group", "contiguous", 0, "<f4", 0.02)
    reader = WindowReader(indexed(tmp_path, h5=["part/chunk_00001.h5"]))
    (tmp_path / "part").rename(tmp_path / "away")
    (tmp_path / "part").touch()
    with pytest.raises(FeatureError) as error:
        reader.read(0, 0, 5)
    assert error.value.reason == "file_missing"


@pytest.mark.parametrize(
    "locking, problem, layout",
    [
        ("TRUE", True, "contiguous"),
        ("BEST_EFFORT", True, "contiguous"),
        ("FALSE", False, "contiguous"),
        ("TRUE", True, "gzip"),
    ],
)
def test_a_lock_that_is_refused_names_the_variable(tmp_path, locking, problem, layout):
    write_h5(tmp_path, "group", layout, 0, "<f4", 0.02)
    indexed(tmp_path)
    program = """
import sys
from millrace.common.errors import MillraceError
from millrace.music.features.index import FeatureIndex
from millrace.music.features.reader import WindowReader
try:
    print(WindowReader(FeatureIndex(sys.argv[1])).read(0, 0, 5).shape)
except MillraceError as error:
    print(error)
"""
    with open(tmp_path / "chunk_00001.h5", "rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        environment = {**os.environ, "HDF5_USE_FILE_LOCKING": locking}
        command = [sys.executable, "-c", program, str(tmp_path / "features.index")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    text = f"HDF5_USE_FILE_LOCKING is {locking}" if problem else "(84, 5)"
    assert text in done.stdout and "chunk_00001.h5" in done.stdout + "chunk_00001.h5"


def test_half_a_million_entries_open_at_once(tmp_path):
    common = {
        "storage": "raw",
        "dtype": "<f2",
        "frames": 9000,
        "bins": 84,
        "hop": 0.02,
        "hop_from": "file",
    }
    ids = ["short", *(f"{n * 7919 % 20_011:011d}" for n in range(1, 20_000))]
    tracks = [
        Track(name, "h5", f"{at % 489}.h5", f"{name}/cqt", **common) for at, name in enumerate(ids)
    ]
    merge(tmp_path / "a.index", tracks, {"h5": "/x"}, Contract())
    index = FeatureIndex(tmp_path / "a.index")
    numbers = index.find(
        [*ids[:50], "absent", "99999999999", ids[1] + "0", "x" * 300, "", "short\0"]
    )
    assert [index.id(row) for row in numbers[:50]] == ids[:50] and set(numbers[50:]) == {-1}
    assert index.track(numbers[3]).file == "/x/3.h5"
    with refused(r"ids is 'short'\. Give a list"):
        index.find("short")
    for outside in (-1, len(index)):
        for ask in (index.track, index.id):
            with pytest.raises(IndexError, match="no track of number"):
                ask(outside)
    assert index.frames().tolist() == [9000] * 20_000
    # An index of an earlier build says nothing of values.
    names = [name for name in index.records.dtype.names if name != "crc"]
    index.records = index.records[names]
    assert index.crcs().tolist() == [0] * 20_000


def test_every_finite_float16_becomes_the_float32_of_the_same_value():
    half = np.arange(1 << 16, dtype="<u2").view("<f2")
    half = half[np.isfinite(half)]
    ours = as_float32(half)
    assert ours.dtype == np.float32 and ours.tobytes() == half.astype("<f4").tobytes()
    assert as_float32(half[::-3]).tobytes() == half[::-3].astype("<f4").tobytes()
