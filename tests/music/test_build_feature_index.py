"""The step build_feature_index: a partition of the workflow, and whole folders as the original
script."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import h5py
import pytest

from millrace.music import build_feature_index
from millrace.music.features.index import FeatureIndex
from millrace.music.features.track import read_tracks
from tests.music.features.trees import add_group, cqt, write_mm

TYPED = "--jsonl meta.jsonl --h5-root h5 --mm-root mm --out cache/discogs_h5_index.pt"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Four tracks in H5, one in .mm, one refused; a JSONL with a pointer for one and a broken
    line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h5").mkdir()
    with h5py.File("h5/discogs_vi_chunk_00001.h5", "w") as h5:
        for n in range(4):
            add_group(h5, f"-_{n}AAAAAAAA", cqt(n), {"hop_s": 0.02})
        add_group(h5, "zzzzzzzzzzz", 0 * cqt(0), {"hop_s": 0.02})
    write_mm(tmp_path / "mm", "abcdefghijk", cqt(7).T)
    row = {
        "youtube_id": "-_0AAAAAAAA",
        "h5_chunk": "discogs_vi_chunk_00001.h5",
        "h5_key": "/-_0AAAAAAAA/cqt",
    }
    (tmp_path / "meta.jsonl").write_text(json.dumps(row) + "\n{broken\n")
    return tmp_path


def test_a_partition_becomes_a_table_and_a_report(tree):
    content = {
        "id": "p",
        "kind": "h5",
        "root": "h5",
        "path": "discogs_vi_chunk_00001.h5",
        "records": [],
    }
    (tree / "p.json").write_text(json.dumps(content))
    assert (
        build_feature_index.main(
            shlex.split("--partition p.json --output p.parquet --report r.json")
        )
        == 0
    )
    assert [track.refused for track in read_tracks("p.parquet")] == [""] * 4 + ["constant"]
    report = json.loads((tree / "r.json").read_text())
    assert (
        report["ledger"]["rejected"] == {"constant": 1}
        and report["refused"][0]["id"] == "zzzzzzzzzzz"
    )


def test_the_original_command_writes_the_index(tree):
    assert build_feature_index.main(shlex.split(TYPED)) == 0
    assert len(FeatureIndex("cache/discogs_h5_index.pt")) == 5
    reasons = [json.loads(line)["reason"] for line in (tree / "cache/rejects.jsonl").open()]
    assert reasons == ["broken_line", "constant"]

    # A recording in both kinds of file.
    write_mm(tree / "mm", "-_1AAAAAAAA", cqt(1).T)
    assert build_feature_index.main(shlex.split(f"{TYPED} --prefer mm")) == 0
    index = FeatureIndex("cache/discogs_h5_index.pt")
    assert index.track(index.find(["-_1AAAAAAAA"])[0]).source == "mm"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--jsonl meta.jsonl", "no features to look for"),
        ("--jsonl /dev/null --h5-root mm --out a.index", "/dev/null: no video ids"),
        ("--h5-root h5 --splits mm --out a.index", "mm: holds no split"),
        ("--jsonl meta.jsonl --h5-root mm --out a.index", "not one track can be used"),
        (
            "--h5-root h5 --hop 0.03 --pool 1 --out a.index",
            "4 other_hop, 1 constant; discogs_vi_chunk_00001.h5 -_0AAAAAAAA/cqt: hop 0.02 s",
        ),
    ],
)
def test_nothing_to_index_is_an_error(tree, capsys, arguments, words):
    assert build_feature_index.main(shlex.split(arguments)) == 1
    assert words in capsys.readouterr().err and not (tree / "a.index").exists()


def write_splits(**cliques: list[str]) -> None:
    """Splits of one clique each, of recordings by their ids."""
    Path("metadata").mkdir()
    for name, ids in cliques.items():
        content = {f"C-{name}": [{"youtube_id": each} for each in ids]}
        Path("metadata", f"{name}.json").write_text(json.dumps(content))


IDS = [f"-_{n}AAAAAAAA" for n in range(3)]


def test_whole_folders_show_progress_and_the_coverage_of_the_splits(tree, capsys):
    write_splits(train=[*IDS, "absent_____"])
    assert build_feature_index.main(shlex.split(f"{TYPED} --splits metadata")) == 0
    said = capsys.readouterr().err
    assert "features: 2 of 2 files and folders (100 %)" in said and "errors 1" in said
    assert (
        "train: 1 cliques of at least 2 (100.0 %) and 3 versions (75.0 %) remain, 3 of 4 found"
        in said
    )
    assert (
        "1 of 5 tracks state no hop and are read at 0.02 s" in said
    )  # the .mm, in the original's form


def test_splits_that_share_a_recording_make_an_index_and_are_said(tree, capsys):
    write_splits(train=IDS[1:], verify=IDS)
    assert build_feature_index.main([*shlex.split(TYPED), "--splits", "metadata"]) == 0
    assert len(FeatureIndex("cache/discogs_h5_index.pt")) == 5
    assert "2 recordings of train that are also in test: kept" in capsys.readouterr().err
