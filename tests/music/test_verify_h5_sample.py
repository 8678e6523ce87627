"""The step verify_h5_sample: what it prints of a track of a split."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from millrace.music import verify_h5_sample
from millrace.music.features.verification import facts
from tests.music.features.trees import cqt, indexed, write_group


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A recording and one that is lost, and a configuration that names them."""
    monkeypatch.chdir(tmp_path)
    write_group(tmp_path, "-first_____", cqt(1), {"hop_s": 0.02})
    indexed(tmp_path, ["a.h5"])
    content = {"C-1": [{"youtube_id": "-first_____"}, {"youtube_id": "lost_______"}]}
    (tmp_path / "train.json").write_text(json.dumps(content))
    return tmp_path


def shown(index: str = "features.index", flags: str = "") -> int:
    path = {"index": index, "splits": {"train": "train.json"}}
    Path("dvi-h5.yaml").write_text(yaml.safe_dump({"path": path}))
    return verify_h5_sample.main(["--conf", "dvi-h5.yaml", *shlex.split(flags)])


def test_a_track_is_shown_with_its_facts(tree, capsys):
    assert shown(flags="--split train --index 0 --verbose") == 0
    lines = {line[:13].strip(): line[13:] for line in capsys.readouterr().out.splitlines()}
    assert (lines["id"], lines["source"]) == ("-first_____", "h5")
    assert {"offset", "dtype", "shape", "hop", "S", "min", "mean", "max"} <= lines.keys()
    assert shown() == 0
    assert "offset" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "index, flags, words",
    [
        ("features.index", "--index 1", "lost_______ has no features"),
        ("features.index", "--index 2", "train has 2 recordings, no number 2"),
        ("features.index", "--split verify", "path.splits.test is not set"),
        ("", "", "path.index is not set"),
        ("none.pt", "", "none.pt: there is no index of features"),
    ],
)
def test_a_track_that_is_not_there_is_named(tree, capsys, index, flags, words):
    assert shown(index, flags) == 1
    assert words in capsys.readouterr().err


def test_facts_of_a_track(tmp_path):
    values = cqt(1, 2150)
    write_group(tmp_path, "abcdefghijk", values.T.astype("f2"), {"hop_s": 0.02})
    track = facts(indexed(tmp_path), 0, shingle=20.0)
    wanted = {
        "file": str(tmp_path / "a.h5"),
        "key": "abcdefghijk/cqt",
        "orientation": "(C, T)",
        "dtype": "<f2",
        "shape": [84, 2150],
        "hop": 0.02,
        "pooling": 5,
        "seconds": 43.0,
        "S": 3,
    }
    assert wanted.items() <= track.items()
    assert (track["min"], track["max"]) == pytest.approx((values.min(), values.max()), rel=1e-3)
