"""What is found in HDF5 files and .mm folders, and what is refused by name."""

from __future__ import annotations

import json
import os
import pickle
import resource
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from millrace.common.errors import MillraceError
from millrace.music.features import h5_files
from millrace.music.features.decisions import PUBLISHED_HOP, checked_digest
from millrace.music.features.index import FeatureIndex, merge
from millrace.music.features.merging import apply_records
from millrace.music.features.metadata import Metadata, Record
from millrace.music.features.partition import build, hop_note, read_partition
from millrace.music.features.reader import WindowReader
from millrace.music.features.track import BY_H5PY, Contract, Track, read_tracks, write_tracks
from tests.music.features.trees import (
    PUBLISHED,
    add_group,
    cqt,
    h5_file,
    indexed,
    number,
    reasons,
    scanned,
    write_group,
    write_mm,
)

ID = "abcdefghijk"


def only(tracks):
    (track,) = tracks
    return track


BAD_VALUES = {
    "not_finite": lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size // 2, np.nan, x),
    "negative": lambda x: np.clip(20 * np.log10(x / x.max()), -80, 0),  # decibels
    "constant": lambda x: 0 * x,
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("reason, change", BAD_VALUES.items())
@pytest.mark.parametrize("dtype", ["<f2", "<f4"])
def test_values_that_are_no_linear_magnitudes_are_refused(tmp_path, reason, change, dtype):
    values = change(cqt(1)).astype(dtype)
    write_group(tmp_path, ID, values, {"hop_s": 0.02})
    write_mm(tmp_path, ID, values)
    tracks = scanned(tmp_path, mm=["ab"], contract=PUBLISHED)
    assert [(track.id, track.refused) for track in tracks] == [(ID, reason)] * 2
    assert all(track.problem for track in tracks)


@pytest.mark.parametrize("reason, factor", [("not_finite", 1e300), ("constant", 1e-60)])
def test_float64_is_judged_as_the_float32_that_is_read(tmp_path, reason, factor):
    write_group(tmp_path, ID, cqt(1).astype("<f8") * factor)
    assert only(scanned(tmp_path)).refused == reason


@pytest.mark.parametrize("storage", [{}, {"compression": "gzip"}])
def test_a_track_that_was_written_in_part_is_refused(tmp_path, storage):
    with h5_file(tmp_path) as h5:
        dataset = h5.create_dataset(f"{ID}/cqt", (1200, 84), "f4", chunks=(100, 84), **storage)
        dataset[:1100] = cqt(1)[:1100]
    track = only(scanned(tmp_path))
    assert track.refused == "not_written" and "11 of 12 chunks" in track.problem


def test_published_files_have_the_published_hop_unless_the_jsonl_states_theirs(tmp_path):
    write_mm(tmp_path, ID, cqt(1).astype("<f2"))
    track = only(scanned(tmp_path, mm=["ab"], contract=PUBLISHED))
    assert (track.refused, track.hop, track.hop_from) == ("", PUBLISHED_HOP, "published")
    assert (
        hop_note([track], PUBLISHED)
        == "1 of 1 track are taken as published .mm files, of 0.02322 s: state the hop_s of those"
        " that were averaged over time in the JSONL"
    )
    record = Record(ID, hop=0.1)
    # The folder may have another name, to which no record leads.
    apply_records([track], Metadata("", {ID: record}), PUBLISHED)
    (pointed_to,) = scanned(tmp_path, mm=["ab"], contract=PUBLISHED, records={"ab": [record]})
    for each in (track, pointed_to):
        assert (each.refused, each.hop, each.hop_from) == ("", 0.1, "jsonl")
        assert hop_note([each], PUBLISHED) == ""


# A float16 (T, C) file must never be read as float32 (C, T), nor the other way round.
@pytest.mark.parametrize(
    "dtype, axis, sidecar, jsonl, refused",
    [
        ("<f2", 0, [1200, 84], None, ""),
        ("<f2", 1, [84, 1200], None, ""),
        ("<f4", 0, [1200, 84], None, ""),
        ("<f4", 1, [84, 1200], None, ""),
        ("<f2", 0, [1200, 84], [84, 600], ""),  # the sidecar is nearer
        ("<f2", 0, None, [1200, 84], ""),
        ("<f4", 0, None, [1200, 84], ""),
        ("<f4", 1, None, [84, 1200], ""),
        ("<f2", 0, None, [84, 1200], "orientation_unknown"),  # as of the H5, maybe
        ("<f4", 1, None, [84, 2400], "orientation_unknown"),
        ("<f4", 1, None, [2400, 84], "not_finite"),
        ("<f2", 0, None, [84, 1100], "wrong_shape"),
        ("<f4", 1, [84, 1100], None, "wrong_shape"),
        ("<f2", 0, None, None, "shape_unknown"),
        ("<f4", 1, None, None, "shape_unknown"),
    ],
)
def test_mm_files_are_read_as_they_are_stored_or_refused(
    tmp_path, dtype, axis, sidecar, jsonl, refused
):
    values = cqt(3).astype(dtype)
    path = write_mm(tmp_path, ID, values.T if axis else values, sidecar=False)
    if sidecar:
        np.save(path.with_suffix(".npy"), sidecar)
    is_published = (dtype, axis) == ("<f2", 0)
    records = {"ab": [Record(ID, shape=jsonl)]}
    contract = PUBLISHED if is_published else Contract()
    track = only(scanned(tmp_path, mm=["ab"], records=records, contract=contract))
    assert track.refused == refused
    if refused:
        return
    assert (track.dtype, track.time_axis) == (dtype, axis)
    assert track.hop_from == ("published" if is_published else "config")
    index = indexed(tmp_path, mm=["ab"], records=records, contract=contract)
    window = WindowReader(index).read(0, 100, 1000)
    np.testing.assert_array_equal(window, values[100:1100].T.astype("f4"))


def test_mm_files_of_wrong_shape_or_name_are_refused(tmp_path):
    assert only(scanned(tmp_path, mm=["no"])).refused == "unreadable"
    half = cqt(1).astype("<f2")
    write_mm(tmp_path, "ab_wrong_shape", half)
    np.save(tmp_path / "ab/ab_wrong_shape.npy", (1199, 84))
    np.save(write_mm(tmp_path, "ab_sidecar", half).with_suffix(".npy"), half[:, :1])
    (write_mm(tmp_path, "ab_cut_npy", half).with_suffix(".npy")).write_bytes(b"\x93NUMPY")
    np.save(write_mm(tmp_path, "ab_fraction", half).with_suffix(".npy"), [1200.5, 84.0])
    with open(write_mm(tmp_path, "ab_npz", half).with_suffix(".npy"), "wb") as handle:
        np.savez(handle, half.shape)
    write_mm(tmp_path, "two", half, folder="ab")
    write_mm(tmp_path, "ab_bins", half[:, :80])
    write_mm(tmp_path, "ab_square", half[:84])
    write_mm(tmp_path, "ab_cut", half.ravel()[:-5], sidecar=False)
    write_mm(tmp_path, "ab_nothing", half[:0], sidecar=False)
    write_mm(tmp_path, "zz_elsewhere", half, folder="ab")
    write_mm(tmp_path, "Ab_other_casing", half, folder="ab")
    write_mm(tmp_path, "pointed", half, folder="ab")
    records = [Record("a_pointer", mm="ab/pointed.mm"), Record("gone", mm="ab/gone.mm")]
    records += [Record("two_a", mm="ab/two.mm"), Record("two_b", mm="ab/two.mm")]
    tracks = scanned(tmp_path, mm=["ab"], contract=PUBLISHED, records={"ab": records})
    assert reasons(tracks) == {
        **{
            "ab_wrong_shape": "wrong_shape",
            "ab_sidecar": "bad_sidecar",
            "ab_cut_npy": "bad_sidecar",
            "ab_fraction": "bad_sidecar",
        },
        **{
            "ab_bins": "bins",
            "ab_square": "orientation_unknown",
            "ab_cut": "shape_unknown",
            "ab_nothing": "empty",
            "zz_elsewhere": "",
        },
        **{"Ab_other_casing": "", "a_pointer": "", "gone": "unreadable", "ab_npz": "bad_sidecar"},
        **dict.fromkeys(("two_a", "two_b"), "shared_file"),
    }


class Makes:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_nothing_of_a_sidecar_is_run(tmp_path):
    path = write_mm(tmp_path, ID, cqt(1))
    sidecar = np.array([Makes(tmp_path / "made"), 84], object)
    np.save(path.with_suffix(".npy"), sidecar, allow_pickle=True)
    assert only(scanned(tmp_path, mm=["ab"])).refused == "bad_sidecar"
    assert not (tmp_path / "made").exists()


def test_a_file_whose_name_is_no_text_is_named_in_the_table(tmp_path):
    path = write_mm(tmp_path, ID, cqt(1).T, sidecar=False)
    path.rename(os.fsdecode(bytes(path.with_name("ab_")) + b"\xff.mm"))
    track = only(scanned(tmp_path, mm=["ab"]))
    assert (track.refused, track.file) == ("shape_unknown", r"ab/ab_\udcff.mm")
    write_tracks(tmp_path / "t.parquet", [track])


H5_DAMAGE = {
    "bins": lambda h5: add_group(h5, ID, cqt(1, bins=96)),
    "orientation_unknown": lambda h5: add_group(h5, ID, cqt(1, 84)),
    "dtype": lambda h5: add_group(h5, ID, np.ones((84, 100), "u1")),
    "hop_contradicts": lambda h5: add_group(h5, ID, cqt(1), {"hop_s": 0.02}),
    "wrong_pointer": lambda h5: add_group(h5, "another", cqt(1)),
}


@pytest.mark.parametrize("reason, write", H5_DAMAGE.items())
def test_data_sets_that_cannot_be_read_for_certain_are_refused(tmp_path, reason, write):
    with h5_file(tmp_path) as h5:
        write(h5)
    hop = 0.1 if reason == "hop_contradicts" else None
    record = Record(ID, h5="a.h5", key=f"{ID}/cqt", hop=hop)
    tracks = scanned(tmp_path, records={"a.h5": [record]})
    assert reasons(tracks)[ID] == reason


@pytest.mark.parametrize(
    "attributes",
    [
        {"hop": 320},
        {"hop": 0.02},
        {"Hop_S": 0.02},
        {"hop_s": 320, "sr": 16000},
        {"hop_length": 0.02},
        {"hop_length": 320, "sr": "16000"},
        {"hop_length": 320, "sr": 0},
        {"hop_length": 20, "sr": 16000},  # ms
        {"hop_ms": 23.2},
        {"hop_s": 0.02, "hop_length": 512, "sr": 22050},
        {"hop_s": 1},
        {"hop_s": h5py.Empty("f4")},
    ],
)
def test_a_hop_of_another_name_or_unit_or_of_two_values_is_refused(tmp_path, attributes):
    write_group(tmp_path, ID, cqt(1), attributes)
    assert only(scanned(tmp_path)).refused == "bad_hop"


@pytest.mark.parametrize(
    "attributes", [{"order": 1}, {"dims": [1200, 84]}, {"axes": h5py.Empty("S1")}]
)
def test_attributes_that_say_nothing_are_passed_over(tmp_path, attributes):
    write_group(tmp_path, ID, cqt(1), {**attributes, "title": b"\xff", "youtube_id": 7})
    with h5py.File(tmp_path / "a.h5", "a") as h5:  # of a type that NumPy lacks
        scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        h5py.h5a.create(h5[f"{ID}/cqt"].id, b"made", h5py.h5t.UNIX_D32LE, scalar)
    assert reasons(scanned(tmp_path)) == {ID: ""}


@pytest.mark.parametrize(
    "attributes, hop",
    [
        ({"hop_s": 0.1}, 0.1),
        ({"hop_length": 320, "sr": 16000}, 0.02),
        ({"frame_hop_s": np.float32(0.02)}, 0.02),
        ({}, 0.02),
    ],
)
def test_the_hop_is_read_from_attributes_of_data_set_group_or_file(tmp_path, attributes, hop):
    for place in ("data", "group", "file"):
        with h5_file(tmp_path) as h5:
            # As published .mm files are stored, whose hop no HDF5 file has.
            values = cqt(1).astype("<f2")
            add_group(h5, ID, values, attributes if place == "data" else {})
            {"data": {}, "group": h5[ID].attrs, "file": h5.attrs}[place].update(attributes)
        track = only(scanned(tmp_path))
        assert (round(track.hop, 6), track.hop_from) == (
            hop,
            "file" if attributes else "config",
        )


def test_what_is_nearest_to_the_values_says_their_hop_and_whose_they_are(tmp_path):
    with h5_file(tmp_path) as h5:
        add_group(h5, "a_group____", cqt(1), {"hop_s": 0.02, "youtube_id": f"{ID} "})  # padded
        h5["a_group____"].attrs.update({"hop_s": 0.05, "youtube_id": "another____"})
        h5.attrs["hop_s"] = 0.1
    track = only(scanned(tmp_path))
    assert (track.id, track.hop) == (ID, 0.02)
    with h5_file(tmp_path) as h5:
        add_group(h5, ID, cqt(1))
        h5[ID].attrs["hop_s"] = 0.05
        h5.attrs["hop_s"] = 0.1
    assert only(scanned(tmp_path)).hop == 0.05


def test_the_digest_is_of_all_values_however_they_are_cut():
    values = cqt(1)
    whole = zlib.crc32(values.data)
    assert [checked_digest(np.split(values, count)) for count in (1, 3)] == [whole, whole]


def test_the_time_of_an_mm_file_is_that_before_its_values_are_read(tmp_path, monkeypatch):
    path = write_mm(tmp_path, ID, cqt(1).T)
    before = path.stat().st_mtime_ns
    read_bytes = Path.read_bytes

    def replaced_meanwhile(each: Path) -> bytes:
        os.utime(path, ns=(1, 1))
        return read_bytes(each)

    monkeypatch.setattr(Path, "read_bytes", replaced_meanwhile)
    assert only(scanned(tmp_path, mm=["ab"])).mtime_ns == before


def test_the_first_reason_of_a_refusal_stays():
    track = Track(ID, "h5", "a.h5").refuse("one", "this").refuse("two", "that")
    assert (track.refused, track.problem) == ("one", "this")


@pytest.mark.parametrize(
    "stated, said, refused, hop",
    [
        ({}, 0.1, "", (0.1, "jsonl")),
        ({"hop_s": 0.02}, 0.02, "", (0.02, "file")),
        ({"hop_s": 0.02}, 0.1, "hop_contradicts", (0.02, "file")),
        ({"hop_s": 0.02}, 0.0201, "hop_contradicts", (0.02, "file")),
        ({"hop_s": 0.02}, 0.020001, "", (0.02, "file")),  # rounded
    ],
)
def test_records_without_a_pointer_give_their_hop_to_the_tracks_of_every_file(
    tmp_path, stated, said, refused, hop
):
    write_group(tmp_path, ID, cqt(1), stated)
    (track,) = tracks = scanned(tmp_path)
    records = {ID: Record(ID, hop=said), "x": Record("x", hop=0.5)}
    apply_records(tracks, Metadata("", records), Contract())
    assert (track.refused, (track.hop, track.hop_from)) == (refused, hop)


def test_a_file_that_is_cut_missing_or_no_hdf5_names_all_that_point_to_it(tmp_path):
    with h5py.File(tmp_path / "cut.h5", "w") as h5:
        for seed in range(3):
            add_group(h5, number(seed), cqt(seed))
    with open(tmp_path / "cut.h5", "r+b") as handle:
        handle.truncate(100_000)
    (tmp_path / "text.h5").write_text("no HDF5")
    for file, words in (("cut.h5", "truncated"), ("text.h5", "file"), ("gone.h5", "No such file")):
        tracks = scanned(tmp_path, [file], records={file: [Record(ID, h5=file)]})
        assert [(track.id, track.refused) for track in tracks] == [
            (i, "file_unreadable") for i in ("", ID)
        ]
        assert words in tracks[0].problem


def test_pipes_and_folders_that_are_called_like_features_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.h5")
    (tmp_path / "folder.h5").mkdir()
    for file in ("pipe.h5", "folder.h5"):
        track = only(scanned(tmp_path, [file]))
        assert (track.refused, "no regular file" in track.problem) == ("file_unreadable", True)

    (tmp_path / "ab").mkdir()
    os.mkfifo(tmp_path / "ab/ab_pipe.mm")
    write_mm(tmp_path, "ab_sidecar", cqt(1).astype("<f2"), sidecar=False)
    os.mkfifo(tmp_path / "ab/ab_sidecar.npy")
    refused = reasons(scanned(tmp_path, [], mm=["ab"]))
    assert refused == {"ab_pipe": "unreadable", "ab_sidecar": "bad_sidecar"}


HUGE = 1 << 44


@pytest.mark.parametrize(
    "storage", [{"chunks": (84, 1)}, {"chunks": (84, 1), "compression": "gzip"}, {}]
)
def test_a_shape_that_the_file_cannot_hold_refuses_its_track_only(tmp_path, storage):
    with h5_file(tmp_path) as h5:
        add_group(h5, number(1), cqt(1))
        h5.create_dataset(f"{ID}/cqt", (84, HUGE), "<f4", **storage)
    tracks = scanned(tmp_path)
    assert reasons(tracks) == {number(1): "", ID: "not_written"}
    assert str(HUGE) in tracks[-1].problem


def test_a_list_of_ids_larger_than_the_memory_makes_the_file_a_reject(tmp_path):
    with h5_file(tmp_path) as h5:
        h5["data"] = cqt(1)
        h5.create_dataset("ids", (HUGE,), "S16", chunks=(1024,))[0] = b"written"
    assert [track.refused for track in scanned(tmp_path)] == ["file_unreadable"]


def test_an_mm_larger_than_the_memory_is_a_reject(tmp_path):
    write_mm(tmp_path, ID, cqt(1).T)
    os.truncate(write_mm(tmp_path, "ab_huge", cqt(2)), 1 << 37)  # sparse
    write_mm(tmp_path, "ab_last", cqt(3).T)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, before[1]))
    try:
        tracks = scanned(tmp_path, mm=["ab"])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert reasons(tracks) == {
        ID: "",
        "ab_huge": "unreadable",
        "ab_last": "",
    }


def test_a_damaged_chunk_refuses_its_track_only(tmp_path):
    with h5_file(tmp_path) as h5:
        for seed in range(3):
            add_group(h5, number(seed), cqt(seed), compression="gzip", chunks=(100, 84))
        place = h5[f"{number(1)}/cqt"].id.get_chunk_info(7).byte_offset
    with open(tmp_path / "a.h5", "r+b") as handle:
        handle.seek(place)
        handle.write(b"\0" * 100)
    tracks = scanned(tmp_path)
    assert reasons(tracks) == {number(0): "", number(1): "unreadable", number(2): ""}
    assert "read data" in tracks[1].problem


def test_a_filter_that_is_not_installed_is_named(tmp_path):
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_shuffle()
    options.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)  # Blosc, as PyTables writes it
    with h5_file(tmp_path) as h5:
        add_group(h5, number(1), cqt(1))
        values = h5.create_dataset(f"{ID}/cqt", (9, 84), "<f4", chunks=(9, 84), dcpl=options)
        values.id.write_direct_chunk((0, 0), b"packed")
    with h5py.File(tmp_path / "b.h5", "w") as h5:
        h5["long/cqt"] = cqt(1)
        ids = h5.create_dataset("long/ids", (2,), "S11", chunks=(2,), dcpl=options)
        ids.id.write_direct_chunk((0,), b"packed")
    tracks = scanned(tmp_path)
    assert reasons(tracks) == {number(1): "", ID: "unreadable", "": "file_unreadable"}
    words = "packed by filter 32001, which is not installed: set HDF5_PLUGIN_PATH"
    assert [words in track.problem for track in tracks] == [False, True, True]


def test_keys_of_the_jsonl_say_whose_data_sets_are_and_are_checked(tmp_path):
    with h5_file(tmp_path) as h5:
        h5["features/0001"], h5[f"{ID}/cqt"], h5[f"{ID}/chroma"] = cqt(1), cqt(2), cqt(3, bins=12)
    records = [
        Record("-_by_a_key__", h5="a.h5", key="features/0001"),
        Record(ID, h5="a.h5", key="wrong/cqt"),
    ]
    tracks = scanned(tmp_path, records={"a.h5": records})
    assert {track.id: (track.key, track.refused) for track in tracks} == {
        "-_by_a_key__": ("features/0001", ""),
        ID: (f"{ID}/cqt", "wrong_key"),
    }


@pytest.mark.parametrize("is_named_by", ["name", "attribute"])
@pytest.mark.parametrize("files", [["a.h5"] * 3, ["a.h5", "b.h5", "c.h5"]])
def test_a_jsonl_whose_pointers_have_slipped_gives_none_the_features_of_another(
    tmp_path, files, is_named_by
):
    first, second, third = ids = [f"ab_{number(seed)}" for seed in range(3)]
    slipped = {second: first, third: second, first: third}
    records: dict[str, list[Record]] = {file: [] for file in (*files, "ab")}
    for seed, (name, other) in enumerate(slipped.items()):
        # The features of `name`, to which the line of `other` points.
        write_mm(tmp_path, name, cqt(seed))
        group = name if is_named_by == "name" else str(seed)
        with h5py.File(tmp_path / files[seed], "a") as h5:
            add_group(h5, group, cqt(seed), {"hop_s": 0.02, "youtube_id": name})
        records[files[seed]].append(Record(other, h5=files[seed], key=f"{group}/cqt"))
        records["ab"].append(Record(other, mm=f"ab/{name}.mm"))
    by_id = {record.id: record for file in files for record in records[file]}
    tracks = scanned(tmp_path, mm=["ab"], records=records)
    apply_records(tracks, Metadata("", by_id, {*ids}), Contract())
    assert [track.refused for track in tracks] == ["wrong_pointer"] * 6
    words = f"the JSONL points {first} to features of {second}: mend the JSONL"
    assert [track.problem for track in tracks if track.id == first] == [words] * 2


def test_an_attribute_that_names_another_recording_is_believed_also_if_ids_are_numbers(tmp_path):
    with h5_file(tmp_path) as h5:
        for place, stated in enumerate(("1", "3", "2")):
            add_group(h5, str(place), cqt(place), {"youtube_id": stated})
    records = [Record(str(place + 1), h5="a.h5", key=f"{place}/cqt") for place in range(3)]
    tracks = scanned(tmp_path, records={"a.h5": records})
    apply_records(tracks, Metadata("", {r.id: r for r in records}, {"1", "2", "3"}), Contract())
    refused = {track.id: track.refused for track in tracks}
    assert refused == {"1": "", "2": "wrong_pointer", "3": "wrong_pointer"}


def test_what_is_not_named_after_the_recording_that_it_is_of_may_be_read(tmp_path):
    with h5_file(tmp_path) as h5:
        # Ids that are numbers, and their features by place.
        for place in range(3):
            h5[str(place)] = cqt(place)
        # One long array in the group of a recording that lies elsewhere.
        h5[f"{ID}/cqt"], h5[f"{ID}/ids"], h5[f"{ID}/offsets"] = cqt(1, 60), ["x", "y"], [0, 30]
    records = [Record(str(place + 1), h5="a.h5", key=str(place)) for place in range(3)]
    records += [Record(name, h5="a.h5") for name in ("x", ID)]
    tracks = scanned(tmp_path, records={"a.h5": records})
    assert {track.id for track in tracks if not track.refused} == {"1", "2", "3", "x", "y"}


def test_a_place_in_a_file_is_no_recording_that_the_jsonl_points_to_another_file(tmp_path):
    with h5_file(tmp_path) as h5:
        for place in range(6):
            h5[f"{place}/cqt"] = cqt(place, 60)
    pointing = [Record("9", h5="a.h5", key="0/cqt"), Record("1", h5="a.h5", key="1/cqt")]
    others = [Record("3", h5="is_gone.h5", key="7/cqt"), Record("2", hop=0.02)]
    tracks = scanned(tmp_path, records={"a.h5": pointing})
    records = {record.id: record for record in pointing + others}
    apply_records(tracks, Metadata("", records, {*records}), Contract())
    refused = {track.id: track.refused for track in tracks}
    # No line names another place for 1, 2, 4 and 5: they are ids.
    assert refused == {**dict.fromkeys("91245", ""), "3": "wrong_pointer"}


def test_of_two_tracks_of_one_id_the_one_that_the_jsonl_points_to_is_read(tmp_path):
    with h5_file(tmp_path) as h5:
        add_group(h5, "copied", cqt(1), {"youtube_id": ID})
        add_group(h5, f"{ID}/late", cqt(2))
    records = {"a.h5": [Record(ID, h5="a.h5", key=f"{ID}/late/cqt")]}
    index = indexed(tmp_path, records=records)
    assert index.track(0).key == f"{ID}/late/cqt"


OFFSETS = {
    "first frames and the end": {"offsets": [0, 100, 700]},
    "unsigned first frames": {"offsets": np.array([0, 100], "u8")},
    "attributes": {},
}
NO_OFFSETS = {
    "beyond the end": {"offsets": [0, 100, 900]},
    "counted from 1": {"offsets": [1, 101]},
    "descending": {"offsets": [0, 800, 700]},
    "lengths": {"lengths": [100, 600]},
    "a gap": {"offsets": [0, 100, 600]},
    "floats": {"offsets": [0.0, 100.0]},
    "pairs": {"offsets": [[0, 100], [100, 700]]},
    "text": {"offsets": ["0", "100"]},
    "a number": {"offsets": 100},
    "never written": {"offsets": None},
    "a type": {"offsets": np.dtype("i8")},
    "nothing": {},
}


@pytest.mark.parametrize("form", [*OFFSETS, *NO_OFFSETS])
def test_offsets_of_a_long_array_are_read_in_every_form_or_refused(tmp_path, form):
    values, ids = cqt(1, 700), ["first______", "second_____"]
    with h5_file(tmp_path) as h5:
        h5["data"], h5["ids"] = values, np.array(ids, "S16")
        if form != "attributes":
            h5["noise"] = values[::-1]  # another feature, which is not a track of its own
        for name, numbers in (OFFSETS | NO_OFFSETS)[form].items():
            if numbers is None:
                h5.create_dataset(name, (2,), "i8")
            else:
                h5[name] = numbers
        if form == "attributes":
            h5["data"].attrs["offsets"] = [0, 100]
    if form in NO_OFFSETS:
        tracks = scanned(tmp_path)
        assert [
            (track.id, track.key, track.refused) for track in tracks if track.key == "data"
        ] == [(name, "data", "bad_offsets") for name in ids]
        return
    index = indexed(tmp_path)
    assert len(index) == 2
    for name, part in zip(ids, (values[:100], values[100:]), strict=True):
        window = WindowReader(index).read(index.find([name])[0], 0, len(part))
        np.testing.assert_array_equal(window, part.T)


def test_values_that_lie_in_other_files_are_refused(tmp_path):
    values = cqt(1)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as h5:
        add_group(h5, "a_userblock", values)
        layout = h5py.VirtualLayout(values.shape, "f4")
        layout[:600] = h5py.VirtualSource(str(tmp_path / "gone.h5"), "a", values.shape)[
            :600
        ]  # read as zeros
        layout[600:] = h5py.VirtualSource(h5["a_userblock/cqt"])[600:]
        h5.create_virtual_dataset("a_virtual__/cqt", layout)
        outside = [(str(tmp_path / "raw"), 0, values.nbytes)]
        h5.create_dataset("an_external/cqt", data=values, external=outside)
        h5["a_link"] = h5py.SoftLink("/gone/cqt")
    tracks = scanned(tmp_path)
    assert [track.refused for track in tracks] == ["", "elsewhere", "elsewhere"]
    # HDF5 1.14 counts addresses of chunks from behind a user block.
    assert tracks[0].storage == BY_H5PY
    index = indexed(tmp_path)
    np.testing.assert_array_equal(WindowReader(index).read(0, 30, 50), values[30:80].T)


def test_floats_that_numpy_lacks_are_read_by_the_library_and_those_beyond_float64_refused(tmp_path):
    values = cqt(1, 200)
    bfloat16 = h5py.h5t.IEEE_F32LE.copy()
    bfloat16.set_fields(15, 7, 8, 0, 7)  # sign, exponent, mantissa
    bfloat16.set_size(2)
    bfloat16.set_ebias(127)
    with h5_file(tmp_path) as h5:
        add_group(h5, number(1), values.astype(np.longdouble))
        space = h5py.h5s.create_simple(values.shape)
        stored = h5py.h5d.create(h5.create_group(ID).id, b"cqt", bfloat16, space)
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    assert reasons(scanned(tmp_path)) == {number(1): "dtype", ID: ""}
    window = WindowReader(indexed(tmp_path)).read(0, 30, 50)
    np.testing.assert_allclose(window, values[30:80].T, rtol=2**-8)


def test_every_id_that_a_file_names_is_a_track_or_refused(tmp_path):
    with h5_file(tmp_path) as h5:
        for name in ("0bcdefghijk/cqt", "1bcdefghijk/data", "group_attr/1", "flat"):
            h5[name] = cqt(1, 200)
        h5["group_attr"].attrs["youtube_id"] = np.bytes_(b"2bcdefghijk\0\0")
        h5["flat"].attrs["youtube_id"] = np.array([b"3bcdefghijk"], "S16")
        h5["4bcdefghijk"] = h5py.SoftLink("/flat")
        h5["5bcdefghijk"] = h5py.ExternalLink("b.h5", "/")
        h5.create_group("6bcdefghijk/loop")["up"] = h5["/"]
        h5["7bcdefghijk"] = np.ones((84, 200), "u1")
        h5["8bcdefghijk"] = h5py.Empty("f4")
        h5["abcdefghijk/cqt"] = np.ones(200, "f4")
        h5["9bcdefghijk/loudness"] = np.ones(200)
        h5["shared"], h5["keyed/cqt"], h5["cqt"] = cqt(2, 200), cqt(3, 200), cqt(4, 200)
        h5[b"\xff_bcdefghij"] = cqt(1, 200)
        h5[f"{'a' * 201}/cqt"], h5["b\nc/cqt"] = cqt(1, 200), cqt(1, 200)
        h5[f"{'ä' * 101}/cqt"] = cqt(1, 200)
        add_group(h5, "no_name____", cqt(1, 200), {"youtube_id": ""})
        space = h5py.h5s.create_simple((84, 200))
        h5py.h5d.create(h5.id, b"time_stamps", h5py.h5t.UNIX_D32LE, space)
    keys = {"share_one": "shared", "share_two": "shared", "by_a_key": "keyed/cqt"}
    records = [Record(name, h5="a.h5", key=key) for name, key in keys.items()]
    tracks = scanned(tmp_path, records={"a.h5": records})
    assert reasons(tracks) == {
        **{f"{n}bcdefghijk": "" for n in range(4)},
        **{
            "7bcdefghijk": "dtype",
            "share_one": "shared_key",
            "share_two": "shared_key",
            "by_a_key": "",
        },
        **{"cqt": "no_id", "time_stamps": "dtype", r"\xff_bcdefghij": "bad_name"},
        **{"a" * 201: "bad_id", r"b\nc": "bad_id", "abcdefghijk": "dtype"},
        **{r"\xe4" * 101: "bad_id", "": "bad_id"},
    }
    write_tracks(tmp_path / "t.parquet", tracks)


def test_a_file_without_tracks_is_named(tmp_path):
    with h5_file(tmp_path) as h5:
        h5["tempo"] = np.ones(5)
    track = only(scanned(tmp_path))
    assert track.refused == "no_features"
    assert track.problem == "none of its 1 names is a data set of 2 dimensions"


def test_duplicates_are_refused_and_one_is_chosen_for_good(tmp_path):
    with h5_file(tmp_path) as a, h5py.File(tmp_path / "b.h5", "w") as b:
        add_group(a, ID, cqt(1)), add_group(b, ID, cqt(2))
    for folder in ("AB", "ab"):
        write_mm(tmp_path, ID, cqt(3).T, folder=folder)
    roots, contract = {"h5": str(tmp_path), "mm": str(tmp_path)}, Contract()
    files = ["a.h5", "b.h5", f"AB/{ID}.mm", f"ab/{ID}.mm"]
    # The JSONL names the second of each kind.
    named = {"b.h5": [Record(ID, h5="b.h5")], "ab": [Record(ID, mm=f"ab/{ID}.mm")]}
    named_first = ["b.h5", "a.h5", f"ab/{ID}.mm", f"AB/{ID}.mm"]
    for prefer, records, order in (
        ("h5", {}, files),
        ("mm", {}, files[2:] + files[:2]),
        ("h5", named, named_first),
        ("mm", named, named_first[2:] + named_first[:2]),
    ):
        tracks = scanned(tmp_path, ["b.h5", "a.h5"], ["AB", "ab"], records=records)
        rejects = merge(tmp_path / "i", tracks, roots, contract, prefer)
        assert [(track.refused, track.file) for track in rejects] == [
            ("duplicate_id", file) for file in order[1:]
        ]
        assert FeatureIndex(tmp_path / "i").track(0).file == str(tmp_path / order[0])


def test_of_two_files_the_first_by_path_is_read_whatever_its_keys_are(tmp_path):
    facts = {"storage": "raw", "dtype": "<f4", "frames": 9, "bins": 84, "hop": 0.02}
    tracks = [Track(ID, "h5", "b.h5", "a", **facts), Track(ID, "h5", "a.h5", "z", **facts)]
    merge(tmp_path / "i", tracks, {"h5": "/x"}, Contract())
    index = FeatureIndex(tmp_path / "i", {"h5": "/y"})
    assert index.track(0).file == "/y/a.h5"
    assert pickle.loads(pickle.dumps(index)).track(0).file == "/y/a.h5"
    for roots in ("/y", {"H5": "/y"}, {"h5": b"/y"}):
        with pytest.raises(MillraceError, match="roots is "):
            FeatureIndex(tmp_path / "i", roots)  # type: ignore[arg-type]
    with pytest.raises(MillraceError, match=r"path is b'i'\. Give a path"):
        FeatureIndex(b"i")  # type: ignore[arg-type]


def test_features_that_the_model_cannot_take_are_rejected_with_their_name(tmp_path):
    write_mm(tmp_path, ID, cqt(1).astype("<f2"))
    with pytest.raises(
        MillraceError, match=rf"1 other_hop; .*{ID}: hop 0.02322 s, .*frame of 0.1 s.*set contract"
    ):
        indexed(tmp_path, mm=["ab"])
    # One among others: these are indexed, and so is another copy of its own.
    with h5_file(tmp_path) as a, h5py.File(tmp_path / "b.h5", "w") as b:
        (
            add_group(a, number(1), cqt(1), {"hop_s": 0.03}),
            add_group(b, number(1), cqt(1), {"hop_s": 0.02}),
        )
        (
            add_group(a, number(2), cqt(2), {"hop_s": 0.03}),
            add_group(a, number(3), cqt(3), {"hop_s": 0.1}),
        )
    tracks = scanned(tmp_path, ["a.h5", "b.h5"])
    rejects = merge(tmp_path / "i", tracks, {"h5": str(tmp_path)}, Contract())
    assert [(track.id, track.refused) for track in rejects] == [
        (number(1), "other_hop"),
        (number(2), "other_hop"),
    ]
    assert "hop 0.03 s" in rejects[0].problem and "contract" in rejects[0].problem
    index = FeatureIndex(tmp_path / "i")
    assert {index.id(row): hop for row, hop in enumerate(index.hops())} == {
        number(1): 0.02,
        number(3): 0.1,
    }
    with pytest.raises(MillraceError, match="not one track can be used"):
        merge(tmp_path / "i", [], {}, Contract())


def test_a_table_holds_all_facts_and_is_the_same_bytes_again(tmp_path, monkeypatch):
    # A chunk may be as large as the whole file.
    monkeypatch.setattr(h5_files, "_LARGEST_CHUNK", 1)
    with h5_file(tmp_path) as h5:
        add_group(h5, ID, cqt(1), chunks=(50, 30))
        add_group(h5, "zzz", cqt(1, bins=3))
    [file] = tmp_path.glob("*.h5")
    tracks = scanned(tmp_path, records={file.name: [Record(ID, h5=file.name)]})
    assert [track.is_pointed_to for track in tracks] == [True, False]
    assert [track.refused for track in tracks] == ["", "bins"]
    write_tracks(tmp_path / "1.parquet", tracks)
    write_tracks(tmp_path / "2.parquet", tracks[::-1])
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()
    back = read_tracks(tmp_path / "1.parquet")
    assert back[0] == tracks[0] and (back[1].refused, back[1].id) == ("bins", "zzz")


def test_a_partition_file_says_what_is_read_and_from_where(tmp_path):
    with h5_file(tmp_path) as h5:
        h5["some/0001"], h5["other_____"] = cqt(1), cqt(2)
        # Beside a flat data set they cut nothing.
        h5["ids"], h5["offsets"] = ["other_____", "x"], [0, 9]
    records = [{"id": ID, "key": "some/0001"}]
    content = {"id": "p-1", "kind": "h5", "root": str(tmp_path), "path": "a.h5", "size": 1}
    content["records"] = records
    (tmp_path / "p.json").write_text(json.dumps(content))
    tracks = list(build(read_partition(tmp_path / "p.json"), Contract()))
    assert [(track.id, track.refused) for track in tracks] == [("other_____", ""), (ID, "")]
    merge(tmp_path / "i", tracks, {"h5": str(tmp_path)}, Contract())
    index = FeatureIndex(tmp_path / "i")
    np.testing.assert_array_equal(
        WindowReader(index).read(index.find([ID])[0], 5, 9), cqt(1)[5:14].T
    )
    (tmp_path / "p.json").write_text('{"id": "p"}')
    with pytest.raises(MillraceError, match=r"p\.json: damaged since it was made"):
        read_partition(tmp_path / "p.json")
