"""Records of the JSONL, pointers from other machines, splits, coverage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from millrace.common.errors import MillraceError
from millrace.music.features.metadata import Record, place_records, read_metadata
from millrace.music.features.roots import Root, split_files, split_name
from millrace.music.features.splits import Split, coverage, read_split
from millrace.music.features.track import Contract
from tests.music.features.trees import (
    PUBLISHED,
    add_group,
    cqt,
    h5_file,
    indexed,
    reasons,
    scanned,
    write_group,
    write_mm,
)

WATCH = "https://www.youtube.com/watch?v="


def write_lines(path: Path, *lines: object) -> Path:
    path.write_bytes(
        b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines)
    )
    return path


def version(*ids: str) -> dict:
    return {
        "version_id": "V-1",
        "youtube_video": [{"url": WATCH + each, "match_type": 0} for each in ids],
    }


def test_lines_of_cliques_and_of_tracks_are_read_with_all_names(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        {
            "clique_id": "C-1",
            "versions": [version("-aaaaaaaaaa", "_bbbbbbbbbb"), {"version_id": "V-2"}],
        },
        {
            "clique_id": "C-2",
            "versions": [
                {"tracks": 5, "youtube_video": 5},
                {"tracks": [version("xABcABcABcA"), version("xabcabcabca")]},
            ],
        },
        {
            "youtube_id": "one",
            "h5_chunk": "c.h5",
            "h5_key": "/one/cqt/",
            "hop_s": 0.02,
            "shape": [84, 10],
        },
        {
            "ytid": "two",
            "h5_file": "3.h5",
            "cqt_mm_path": None,
            "hoplen_s": 0.1,
            "cqt_shape": [10, 84],
        },
        {"youtubeId": "three", "cqt_mm_path": "th/three.mm", "frame_hop_s": 1, "h5_key": None},
        {"youtube_id": "four", "mm_path": "", "h5_chunk": None},
    )
    metadata = read_metadata(path)
    cliques = {"-aaaaaaaaaa", "_bbbbbbbbbb", "xABcABcABcA", "xabcabcabca"}
    assert metadata.ids == cliques | {"one", "two", "three", "four"} and metadata.note == ""
    assert metadata.records == {
        "one": Record("one", "c.h5", "one/cqt", None, 0.02, [84, 10]),
        "two": Record("two", "3.h5", None, None, 0.1, [10, 84]),
        "three": Record("three", None, None, "th/three.mm", 1),
    }


def test_broken_lines_are_counted_with_their_numbers(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl",
        {"youtube_id": "one", "h5_chunk": "1.h5"},
        b'{"youtube_id": "cut", "h5_',
        b"\xff\xfe\x00",
        b"",
        {"artist": "nobody"},
        [1],
        {"youtube_id": "two", "hop_s": 20, "shape": [84], "h5_chunk": 1},
        {"youtube_id": "one", "h5_chunk": "2.h5", "h5_key": "k"},
        {"youtube_id": "three", "h5_chunk": [1], "h5_key": 7, "mm_path": {}, "hop_s": 2},
        {"youtube_id": "four", "shape": [0, 84], "hop_s": True},
    )
    metadata = read_metadata(path)
    assert [(row["line"], row["reason"]) for row in metadata.problems] == [
        *((2, "broken_line"), (3, "broken_line"), (5, "no_id"), (6, "no_id")),
        *((7, "bad_h5"), (7, "bad_hop"), (7, "bad_shape"), (8, "duplicate_id")),
        *((9, "bad_h5"), (9, "bad_key"), (9, "bad_mm"), (9, "bad_hop")),
        *((10, "bad_hop"), (10, "bad_shape")),
    ]
    assert metadata.records["one"] == Record("one", "2.h5", "k")


def test_a_jsonl_without_video_ids_names_the_files_that_have_them(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"clique_id": "C-1", "versions": [{"version_id": 1}]})
    assert "no video ids; Discogs-VI-YT-<date>.jsonl holds some" in read_metadata(path).note


@pytest.mark.parametrize(
    "pointer, file",
    [
        ("discogs_vi_chunk_00001.h5", "discogs_vi_chunk_00001.h5"),
        ("../../discogs-vi-h5-rechunked/discogs_vi_chunk_00001.h5", "discogs_vi_chunk_00001.h5"),
        (r"D:\data\discogs\discogs_vi_chunk_00001.h5", "discogs_vi_chunk_00001.h5"),
        (r"C:/gone/part/discogs_vi_chunk_00002.h5", "part/discogs_vi_chunk_00002.h5"),
        ("/dead/part\\discogs_vi_chunk_00002.h5", "part/discogs_vi_chunk_00002.h5"),
        ("00001", None),
        ("discogs_vi_chunk_00002.h5", "part/discogs_vi_chunk_00002.h5"),
        ("discogs_vi_chunk_00009.h5", None),
        ("twice.h5", None),  # of two folders
        ("DISCOGS_vi_chunk_00001.h5", None),
    ],
)
def test_pointers_of_any_machine_lead_below_the_root(tmp_path, pointer, file):
    (tmp_path / "part").mkdir()
    (tmp_path / "part/loop").symlink_to(tmp_path)
    files = [
        "discogs_vi_chunk_00001.h5",
        "part/c.HDF5",
        "part/discogs_vi_chunk_00002.h5",
        "part/twice.h5",
    ]
    (tmp_path / "more").mkdir()
    files.insert(1, "more/twice.h5")
    for name in (*files, "._discogs_vi_chunk_00001.h5"):
        (tmp_path / name).touch()
    assert list(Root(tmp_path).places("h5")) == files
    assert Root(tmp_path).find("h5", pointer) == file


@pytest.mark.parametrize(
    "base", ["", "cqt", "magnitude_cqt/cqt", "Discogs-VI-20240701/magnitude_cqt/cqt"]
)
def test_folders_of_mm_files_are_found_in_the_published_places(tmp_path, base):
    for folder in ("-a", "AB", "ab", "logs", "x"):
        (tmp_path / base / folder).mkdir(parents=True)
        (tmp_path / base / "a_file").touch()
    folders = Root(tmp_path).places("mm")
    assert list(folders) == [f"{base}/{name}".lstrip("/") for name in ("-a", "AB", "ab")]


def test_a_folder_that_may_not_be_listed_is_named(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(MillraceError, match=f"{tmp_path}.*cannot be listed"):
        Root(tmp_path).places("h5")


@pytest.mark.parametrize("name", [b"\xff.h5", "ü".encode() * 80 + b".h5"])
def test_a_file_whose_name_makes_no_partition_is_named(tmp_path, name):
    open(os.fsencode(tmp_path) + b"/" + name, "w").close()
    with pytest.raises(MillraceError, match=r"too long or not printable.*Rename it"):
        Root(tmp_path).places("h5")


def test_records_go_where_their_pointers_lead_and_wrong_ones_are_named(tmp_path):
    (tmp_path / "a_1.h5").touch()
    write_mm(tmp_path, "abcdefghijk", cqt(1))
    records = [
        Record("abcdefghijk", h5="a_1.h5", mm=r"E:\cqt\ab\abcdefghijk.mm"),
        Record("ab_no_mm___", shape=[84, 5]),
        Record("lost_______", h5="b.h5", mm="lo/lost_______.mm"),
        Record("no_folder__", mm="ab"),
        Record("in_logs____", mm="logs/in_logs____.mm"),
        Record("zZ_any_case", hop=0.1),
    ]
    (tmp_path / "Zz").mkdir()
    write_mm(tmp_path, "in_logs____", cqt(1), folder="logs")
    places, wrong = place_records(records, {"h5": Root(tmp_path), "mm": Root(tmp_path)})
    assert {place: places[place] for place in ("a_1.h5", "ab", "Zz")} == {
        "a_1.h5": [Record("abcdefghijk", h5="a_1.h5")],
        "ab": [Record("abcdefghijk", mm="ab/abcdefghijk.mm"), Record("ab_no_mm___", shape=[84, 5])],
        "Zz": [Record("zZ_any_case", hop=0.1)],
    }
    assert [(row["id"], row["problem"].split(" is ")[0]) for row in wrong] == [
        ("in_logs____", "mm_path 'logs/in_logs____.mm'"),
        ("lost_______", "h5_chunk 'b.h5'"),
        ("lost_______", "mm_path 'lo/lost_______.mm'"),
        ("no_folder__", "mm_path 'ab'"),
    ]


def write_split(path: Path, cliques: dict[str, list[str]]) -> Path:
    content = {
        clique: [
            {"version_id": f"V-{n}", "track_title": "Ä", "youtube_id": each}
            for n, each in enumerate(ids)
        ]
        for clique, ids in cliques.items()
    }
    path.write_text(json.dumps(content))
    return path


def test_coverage_counts_versions_and_the_cliques_of_two_recordings(tmp_path):
    ids = [f"{'-_aA'[n % 4]}{n:010d}" for n in range(12)]
    for n, name in enumerate(ids[:10]):
        values = cqt(n, 8000)
        if n == 3:
            values = np.clip(20 * np.log10(values / values.max()), -80, 0)
        write_mm(tmp_path, name, values.astype("<f2"), sidecar=n != 4)
    write_group(tmp_path, ids[0], cqt(0, 9000), {"hop_s": 512 / 22050})
    groups = [
        ids[:3],
        [*ids[3:7], ids[6]],  # two refused, and one recording twice
        [ids[7], ids[10], ids[10]],
        [ids[8], ids[8]],
        [ids[11], ids[0]],  # one missing, and one that stays in the first clique
    ]
    path = write_split(
        tmp_path / "Discogs-VI-YT-light.json.val", {f"C-{n}": g for n, g in enumerate(groups)}
    )
    folders = Root(tmp_path).places("mm")
    index = indexed(tmp_path, mm=folders, contract=PUBLISHED)
    split = read_split(path, "val")
    refused = reasons(scanned(tmp_path, ["a.h5"], folders, PUBLISHED))
    cliques, result, lost = coverage(split, index, refused)
    present = {index.id(row) for row in range(len(index))}
    assert present == {*ids[:3], *ids[5:10]}
    counts = {
        "split": "valid",
        "versions": 15,
        "versions_found": 10,
        "versions_kept": 6,
        "cliques": 5,
        "cliques_found": 2,
        "missing": 5,
    }
    assert counts.items() <= result.items()
    assert result["missing_fraction"] == pytest.approx(5 / 15)
    numbers = {name: [index.id(row) for row in of.values()] for name, of in cliques.items()}
    assert numbers == {"C-0": ids[:3], "C-1": ids[5:7]}
    assert [row["clique"] for row in lost if "clique" in row] == ["C-2", "C-3", "C-4"]
    assert {row["id"]: row["reason"] for row in lost if "id" in row} == {
        ids[0]: "in_two_cliques",
        ids[3]: "negative",
        ids[4]: "shape_unknown",
        ids[10]: "absent",
        ids[11]: "absent",
    }
    assert result["hours"] == pytest.approx((9000 + 4 * 8000) * 512 / 22050 / 3600)
    text = "valid: 2 cliques of at least 2 (40.0 %) and 6 versions (40.0 %) remain, 10 of 15 found,"
    text += " 0.3 h"
    assert result["line"] == text


def test_a_recording_stays_in_the_first_clique_also_where_that_is_too_small(tmp_path):
    with h5_file(tmp_path) as h5:
        for seed, name in enumerate("abc"):
            add_group(h5, name, cqt(seed))
    split = read_split(write_split(tmp_path / "train.json", {"C-1": "a", "C-2": "abc"}), "train")
    cliques, _, lost = coverage(split, indexed(tmp_path), {})
    assert {name: list(of) for name, of in cliques.items()} == {"C-2": ["b", "c"]}
    assert [row.get("id") for row in lost] == ["a", None]


def test_two_files_of_a_folder_that_may_be_one_split_are_refused(tmp_path):
    (tmp_path / "val").mkdir()
    for name in ("valid.json", "light.json.val"):
        (tmp_path / name).touch()
    with pytest.raises(MillraceError, match=r"light\.json\.val and valid\.json may both be valid"):
        split_files(str(tmp_path))


@pytest.mark.parametrize(
    "content, problem",
    [
        ("[]", "not a split"),
        ("{", "cut off"),
        ("0\t1\tA tune\n", r"not valid JSON \(.*\)\. Bring .* as JSON of cliques"),  # of SHS100K
        ('{"C": 1}', "not a split"),
        ('{"C": [], "D": [], "C": []}', "C stands twice"),
    ],
)
def test_a_file_that_is_no_split_is_named(tmp_path, content, problem):
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(MillraceError, match=rf"train\.json: {problem}"):
        read_split(tmp_path / "train.json", "train")


def test_versions_without_a_text_as_video_id_are_listed_with_their_clique(tmp_path):
    write_group(tmp_path, "abcdefghijk", cqt(1))
    split = Split(
        "train", "train.json", {"C-1": [{"version_id": "V-1", "youtube_id": 12345678901}]}
    )
    _, result, lost = coverage(split, indexed(tmp_path), {})
    of = {"split": "train", "id": "", "in_clique": "C-1", "version_id": "V-1"}
    assert lost[0] == {**of, "reason": "without_video_id"} and result["without_id"] == 1


def test_splits_have_the_names_that_people_use():
    assert [split_name(name) for name in ("valid", "val", "verify")] == ["valid", "valid", "test"]
    with pytest.raises(MillraceError, match="no split is called dev"):
        split_name("dev")


def test_the_contract_says_how_stored_frames_make_the_models():
    contract = Contract()
    hops = {0.02: 5, 0.1: 1, 0.05: 2, 0.01: 10, 0.2: None, 512 / 22050: None, 0.0201: None}
    assert {hop: contract.pooling(hop) for hop in hops} == hops
