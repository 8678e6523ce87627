"""Which segments repeat a held-out one: by bytes and by sound, over splits and countries."""

from pathlib import Path

import pyarrow as pa
import pytest

from millrace.common.fingerprints import matches
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.fingerprints.words import words
from millrace.speech.columns import COMPLETED, DUPLICATE, PROCESSING, SIDECAR_SCHEMA
from millrace.speech.country import copies, repeats
from millrace.speech.shards.index import write_table
from tests.corpora import RATE, noise


def write(
    folder: Path, partition: str, segments: dict[str, int], is_by_sound: bool = False
) -> Path:
    """The index of a partition: `segments` are the seeds of their sound, by key; every second one
    was left out as a copy before."""
    country, split = partition.split("-")[:2]
    rows = []
    for number, (key, seed) in enumerate(segments.items()):
        sound = noise(4.0, seed)
        steps = SEARCHED_STEPS if split == "train" else 1
        row = {"key": key, "country": country, "video_id": f"{split}_video", "split": split}
        row |= {"start_seconds": 5.0 * number, "sha256": f"{seed:064d}"}
        row["status"] = DUPLICATE if number % 2 else COMPLETED
        row["words"] = words(sound, RATE, steps).tobytes() if is_by_sound else b""
        # Sound that is encoded anew has other bytes.
        row["sha256"] = key.rjust(64, "0") if is_by_sound else row["sha256"]
        rows.append(row)
    rows.append({"key": "not cut", "status": PROCESSING, "error_message": "damaged"})
    path = folder / "partitions" / partition / "index.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, pa.Table.from_pylist(rows, schema=SIDECAR_SCHEMA))
    return path


@pytest.mark.parametrize("is_by_sound", [False, True])
@pytest.mark.parametrize("words_at_once", [1, 10**9])
def test_train_loses_what_is_held_out_and_validation_what_lies_in_test(
    tmp_path, monkeypatch, is_by_sound, words_at_once
):
    monkeypatch.setattr(matches, "WORDS_AT_ONCE", words_at_once)
    corpus = {
        "here-train-1-00000": {"t1": 1, "t2": 2, "t3": 3, "t4": 4, "t5": 4},
        "here-validation-00000": {"v1": 5, "v2": 2, "v3": 6},
        "here-test-00000": {"x1": 6, "x2": 7, "x3": 7},
        "there-train-1-00000": {"u1": 8, "u2": 7},
        "there-validation-00000": {"w1": 8},
        "there-test-00100": {"y1": 3, "y2": 2},
    }
    paths = {name: write(tmp_path, name, rows, is_by_sound) for name, rows in corpus.items()}
    held_out = [path for name, path in paths.items() if "train" not in name]
    found = {
        country: copies.find([p for n, p in paths.items() if n.startswith(country)], held_out)
        for country in ("here", "there")
    }
    pairs = {
        country: [(copy.key, copy.of_key, copy.of_split) for copy in of_country]
        for country, of_country in found.items()
    }
    assert pairs == {
        "here": [
            ("t2", "y2", "test"),
            ("t3", "y1", "test"),
            ("v2", "y2", "test"),
            ("v3", "x1", "test"),
        ],
        "there": [("u1", "w1", "validation"), ("u2", "x2", "test")],
    }
    copy = found["here"][0]
    assert copy.recording == "here/train_video" and copy.of_recording == "there/test_video"
    assert copy.offset == pytest.approx(0.0, abs=0.02)
    assert copy.detail == "the same audio as y2 of there/test_video, which is in test"


def test_pairs_of_recordings_say_how_much_where(tmp_path):
    train = write(tmp_path, "here-train-1-00000", {"t1": 3, "t2": 4, "t3": 1})
    test = write(tmp_path, "there-test-00000", {"x1": 0, "x2": 3, "x3": 4})
    pairs = repeats.pairs(copies.find([train], [test]))
    assert pairs == [
        {
            **{"recording": "here/train_video", "split": "train"},
            **{"of_recording": "there/test_video", "of_split": "test"},
            **{"offset": 5.0, "segments": 2},
        }
    ]
    line = "here/train_video (train) repeats 2 segments of there/test_video (test)"
    assert repeats.line(pairs[0]) == f"{line}, 5 s later there: left out of train"
    assert repeats.line(pairs[0] | {"offset": -0.04, "segments": 1}).endswith(
        "repeats 1 segment of there/test_video (test), 0.04 s earlier there: left out of train"
    )
    assert "there:" not in repeats.line(pairs[0] | {"offset": 0.0})


def test_the_offset_of_a_pair_is_that_of_most_segments():
    copy = copies.Copy("t1", "here/a", "train", "x1", "there/b", "test", 1.0)
    found = [copy, copy._replace(key="t2", offset=5.0), copy._replace(key="t3", offset=5.0)]
    (pair,) = repeats.pairs(found)
    assert pair["offset"] == 5.0 and pair["segments"] == 3


def test_without_segments_nothing_is_a_copy(tmp_path):
    train = write(tmp_path, "here-train-1-00000", {"t1": 3})
    empty = write(tmp_path, "here-test-00000", {})
    assert copies.find([train], [empty]) == [] == copies.find([train], [])
