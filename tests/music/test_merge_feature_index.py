"""The step merge_feature_index: one index, what of the splits has features, leaks, and too much
missing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import h5py
import pytest

from millrace.common.errors import MillraceError
from millrace.music import merge_feature_index, status
from millrace.music.features import merging
from millrace.music.features.index import FeatureIndex
from millrace.music.features.metadata import Record
from millrace.music.features.track import write_tracks
from tests.music.features.trees import add_group, cqt, scanned, write_mm

COMMAND = (
    "--merge merge.json --tables features --coverage out/coverage.json --output out/features.index"
)
SPLITS = {"train": {"C-1": "abc", "C-2": "dx", "C-3": "ef"}, "test": {"C-4": "gh"}}


def write_tree(folder, splits=SPLITS, ids="abcdefgh", hops=()):
    (folder / "h5").mkdir(exist_ok=True)
    names = []
    for number, part in enumerate((ids[:4], ids[4:])):
        with h5py.File(folder / f"h5/{number}.h5", "w") as h5:
            for n, name in enumerate(part):
                hop = dict(hops).get(name, 0.02)
                add_group(h5, name, cqt(4 * number + n), {"hop_s": hop} if hop else {})
        names.append(f"h5-{number}.h5")
        write_tracks(
            folder / f"features/{names[-1]}.parquet", scanned(folder / "h5", [f"{number}.h5"])
        )
    for split, cliques in splits.items():
        content = {
            name: [{"youtube_id": each} for each in versions] for name, versions in cliques.items()
        }
        (folder / f"{split}.json").write_text(json.dumps(content))
    problems = [
        {"line": 3, "reason": "broken_line", "problem": "cut off"},
        {"id": "x", "reason": "wrong_pointer", "problem": "no file"},
    ]
    content = {
        "partitions": names,
        "roots": {"h5": "h5"},
        "splits": {name: f"{name}.json" for name in splits},
    }
    content |= {"jsonl": "", "problems": problems}
    (folder / "merge.json").write_text(json.dumps(content))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def merge(*flags: str) -> int:
    return merge_feature_index.main([*shlex.split(COMMAND), *flags])


def coverage(tree) -> dict:
    return json.loads((tree / "out/coverage.json").read_text())


@contextmanager
def changed_partitions(tree) -> Iterator[dict]:
    """What the merge reads beside the tables, to be changed."""
    content = json.loads((tree / "merge.json").read_text())
    yield content
    (tree / "merge.json").write_text(json.dumps(content))


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_partitions_become_one_index_with_its_coverage_and_rejects(tree):
    write_tree(tree, ids="abcdefga", hops=[("f", 0.03)])
    (tree / "features/h5-gone.h5.parquet").touch()
    assert merge() == 0
    assert len(FeatureIndex("out/features.index")) == 6
    assert not (tree / "features/h5-gone.h5.parquet").exists()
    assert [part["line"].partition(" remain")[0] for part in coverage(tree)["splits"]] == [
        "train: 1 cliques of at least 2 (33.3 %) and 3 versions (42.9 %)",
        "test: 0 cliques of at least 2 (0.0 %) and 0 versions (0.0 %)",
    ]
    line, pointer, *rejects = rows(tree / "out/rejects.jsonl")
    assert (line["reason"], pointer["id"]) == ("broken_line", "x")
    assert [(row["reason"], row["id"], row["file"], row["key"]) for row in rejects] == [
        ("duplicate_id", "a", "1.h5", "a/cqt"),
        ("other_hop", "f", "1.h5", "f/cqt"),
    ]
    missing = [[*row.values()] for row in rows(tree / "out/missing.jsonl")]
    assert missing == [
        ["train", "x", "wrong_pointer: no file"],
        ["train", "f", f"other_hop: {rejects[1]['problem']}"],
        ["train", "C-2"],
        ["train", "C-3"],
        ["test", "h", "absent"],
        ["test", "C-4"],
    ]
    ledger = json.loads((tree / "out/ledger.json").read_text())
    counts = {"duplicate_id": 1, "other_hop": 1}
    assert (ledger["rows_in"], ledger["rows_out"], ledger["rejected"]) == (8, 6, counts)


def test_an_index_is_there_only_with_its_coverage(tree, monkeypatch):
    write_tree(tree)

    def fail(*_: object) -> None:
        raise MillraceError("the disk is full")

    monkeypatch.setattr(merging.clique_splits, "coverage", fail)
    assert merge() == 1
    assert not (tree / "out/features.index").exists()


def test_a_recording_of_valid_and_test_is_a_leak(tree, capsys):
    write_tree(tree, {"train": {"C-1": "ab"}, "valid": {"C-2": "cd"}, "test": {"C-3": "dg"}})
    assert merge() == 1
    words = "1 recording of valid that is also in test, the first: recording d"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("prefer, hours", [("h5", 1200 * 0.02), ("mm", 600 * 0.1)])
def test_hours_are_those_of_the_files_that_are_read(tree, prefer, hours):
    write_tree(tree, {"train": {"C-1": "ab"}}, ids="ab")
    write_mm(tree / "mm", "a", cqt(7, 600).T, folder="aa")
    records = {"aa": [Record("a", mm="aa/a.mm", hop=0.1)]}
    write_tracks(tree / "features/mm-aa.parquet", scanned(tree / "mm", mm=["aa"], records=records))
    with changed_partitions(tree) as content:
        content["partitions"].append("mm-aa")
        content["roots"]["mm"] = "mm"
    assert merge("--prefer", prefer) == 0
    # Track a as it is read, b of HDF5.
    expected = pytest.approx((hours + 1200 * 0.02) / 3600, abs=1e-4)
    assert coverage(tree)["hours"] == expected
    assert coverage(tree)["splits"][0]["hours"] == expected


def test_tracks_without_a_hop_are_said_and_records_without_a_pointer_count(tree, capsys):
    write_tree(tree, ids="abcdefgc", hops=[("a", None), ("b", None), ("c", 0.1)])
    assert merge() == 0
    # The other c is refused.
    words = "2 of 7 tracks state no hop and are read at 0.02 s"
    assert words in capsys.readouterr().err
    assert words in coverage(tree)["hop_note"]
    with changed_partitions(tree) as content:
        content["jsonl"] = "a.jsonl"
    lines = [{"youtube_id": name, "hop_s": 0.1} for name in "abd"]
    (tree / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert merge() == 0
    assert "state no hop" not in capsys.readouterr().err
    reasons = {row.get("id"): row["reason"] for row in rows(tree / "out/rejects.jsonl")}
    assert reasons["d"] == "hop_contradicts" and not {"a", "b"} & reasons.keys()


LEAKING = {"train": {**SPLITS["train"], "C-4": "gb"}, "test": {"C-4": "gh", "C-5": "ef"}}
LEAKS = ("1 clique of train that is also in test", "3 recordings of train that are also in test")


@pytest.mark.parametrize(
    "on_leak, verdict, cliques", [("reject", "rejected", 1), ("keep", "kept", 2)]
)
def test_leaks_leave_train_or_stay_and_are_said(tree, capsys, on_leak, verdict, cliques):
    write_tree(tree, LEAKING)
    assert merge("--on-leak", on_leak) == 0
    assert [split["cliques_found"] for split in coverage(tree)["splits"]] == [cliques, 2]
    assert len(rows(tree / "out/leaks.jsonl")) == 4

    lines = [f"{leak}: {verdict}" for leak in LEAKS]
    assert coverage(tree)["leak_lines"] == lines
    seen = capsys.readouterr().err
    assert all(f"INFO {line}\n" in seen for line in lines)
    results = tree / "results/music"
    results.mkdir(parents=True)
    (tree / "out").rename(results / "index")
    assert all(line in status.facts()[status.COVERAGE] for line in lines)


def test_leaks_are_an_error_unless_the_config_says_otherwise(tree, capsys):
    write_tree(tree, LEAKING)
    assert merge() == 1
    words = (
        f"{LEAKS[0]} and {LEAKS[1]}, the first: clique C-4. Mend the splits, or set music.on_leak"
    )
    assert words in capsys.readouterr().err
    assert not (tree / "out/features.index").exists()
