"""The step verify_h5_sample: what it prints of one track or a sample, and its picture."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import h5py
import pytest
import yaml

from millrace.music import verify_h5_sample
from millrace.music.features.track import Contract
from millrace.music.features.verification import facts
from tests.music.features.trees import add_group, cqt, h5_file, indexed, write_mm


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with h5py.File("a.h5", "w") as h5:
        for name in ("-first_____", "second_____"):
            add_group(h5, name, cqt(1), {"hop_s": 0.02})
    indexed(tmp_path, ["a.h5"])
    content = {"C-1": [{"youtube_id": "-first_____"}, {"youtube_id": "lost_______"}]}
    (tmp_path / "train.json").write_text(json.dumps(content))
    conf = {"path": {"index": "features.pt", "splits": {"train": "train.json"}}}
    (tmp_path / "config").mkdir()
    (tmp_path / "config/dvi-h5.yaml").write_text(yaml.safe_dump(conf))
    return tmp_path


@pytest.mark.parametrize(
    "chosen, ids",
    [
        ("--conf config/dvi-h5.yaml --split train --index 0 --verbose", ["-first_____"]),
        ("--feature-index features.index --id second_____", ["second_____"]),
        ("--feature-index features.index --sample 5", ["-first_____", "second_____"]),
    ],
)
def test_tracks_are_shown_with_all_facts(tree, capsys, chosen, ids):
    assert verify_h5_sample.main(shlex.split(f"{chosen} --output facts.json --picture a.png")) == 0
    lines = dict(
        line.split(None, 1)
        for line in capsys.readouterr().err.splitlines()
        if line and "None" not in line
    )
    assert {"id", "source", "key", "offset", "layout", "dtype", "shape", "hop", "S"} <= lines.keys()
    assert {"min", "mean", "max", "nan"} <= lines.keys() and ("origins" in lines) == (
        "verbose" in chosen
    )
    tracks = json.loads((tree / "facts.json").read_text())["tracks"]
    assert [track["id"] for track in tracks] == ids and (tree / "a.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "flag, configured, source",
    [
        ("", "h5", "h5"),
        ("", "mm", "mm"),
        ("--prefer mm", "h5", "mm"),
        ("--prefer h5", "mm", "h5"),
    ],
)
def test_prefer_counts_before_the_configuration(tmp_path, monkeypatch, flag, configured, source):
    monkeypatch.chdir(tmp_path)
    with h5py.File("a.h5", "w") as h5:
        add_group(h5, "abcdefghijk", cqt(1), {"hop_s": 0.02})
    write_mm(tmp_path, "abcdefghijk", cqt(2).T)
    indexed(tmp_path, ["a.h5"], ["ab"])
    content = {"path": {"index": "features.index"}, "data": {"prefer": configured}}
    Path("dvi.yaml").write_text(yaml.safe_dump(content))
    arguments = shlex.split(f"--conf dvi.yaml --id abcdefghijk {flag} --output facts.json")
    assert verify_h5_sample.main(arguments) == 0
    assert json.loads(Path("facts.json").read_text())["tracks"][0]["source"] == source


@pytest.mark.parametrize(
    "chosen, words",
    [
        ("--splits . --index 1", "lost_______ has no features"),
        ("--splits . --id=", "no track is named"),
        ("--splits . --index 2", "train has 2 recordings, no number 2"),
        ("--splits . --split verify --index 0", "no file of the split test is named"),
        ("--feature-index none.pt", "none.index: there is no index of features"),
    ],
)
def test_a_track_that_is_not_there_is_named(tree, capsys, chosen, words):
    assert verify_h5_sample.main(["--feature-index", "features.index", *shlex.split(chosen)]) == 1
    assert words in capsys.readouterr().err


def test_facts_of_a_track(tmp_path):
    values = cqt(1, 2150)
    with h5_file(tmp_path) as h5:
        add_group(h5, "abcdefghijk", values.T.astype("f2"), {"hop_s": 0.02})
        add_group(h5, "zzzzzzzzzzz", values, {"hop_s": 0.1}, compression="gzip", chunks=(100, 84))
    index = indexed(tmp_path)
    first, second = (facts(index, row, Contract()) for row in range(2))
    assert {**first, "offset": None, "min": 0, "mean": 0, "max": 0} == {
        **{
            "id": "abcdefghijk",
            "source": "h5",
            "file": str(tmp_path / "a.h5"),
            "key": "abcdefghijk/cqt",
        },
        **{"offset": None, "layout": "contiguous", "orientation": "(C, T)", "dtype": "float16"},
        **{"shape": [84, 2150], "chunks": None, "hop": 0.02, "pooling": 5, "seconds": 43.0, "S": 3},
        **{"min": 0, "mean": 0, "max": 0, "nan": 0},
        "origins": {
            **{"hop": "attribute", "bins": "config", "dtype": "file", "orientation": "inferred"},
            "shape": "file",
        },
    }
    assert (first["min"], first["max"]) == pytest.approx((values.min(), values.max()), rel=1e-3)
    assert (second["layout"], second["chunks"], second["pooling"]) == (
        "filtered or virtual",
        [100, 84],
        1,
    )
