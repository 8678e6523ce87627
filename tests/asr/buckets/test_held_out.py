"""Rows of train that are also in dev or test: found by sample and by bytes, and rejected, kept or
refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.asr import build_bucket_manifests, status
from millrace.asr.buckets import held_out, sound
from millrace.asr.buckets.build import BucketChoices
from millrace.asr.buckets.held_out import PAGE, HeldOut, Rows
from millrace.common.fingerprints import matches
from millrace.common.leaks.leakage import BY_BYTES, BY_SOUND, NOT_AT_ALL
from millrace.common.ledger import Ledger
from tests.asr import audio_tars
from tests.asr.bucket_corpus import (
    build_from,
    files,
    index_of,
    rejects,
    row_of,
    rows_of,
    train_rows,
    write_manifest,
)
from tests.corpora import RATE, noise
from tests.refusals import refused

_LONG = np.random.default_rng(0).bytes(3 * PAGE)
# Alike in the page that is read first.
_NEARLY = _LONG[:-1] + bytes([_LONG[-1] ^ 1])
# By tar and member: a and b are of train, the same or not as members of others.
TARS = {
    "train.tar": {"a": b"own content", "b": _LONG, "c": b"of dev, once more", "d": _NEARLY},
    "dev.tar": {"e": b"of dev, once more", "f": b"of dev and of test"},
    "test.tar": {"g": _LONG, "h": b"of dev and of test", "i": b"as long too"},
}


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> dict[str, list[dict]]:
    """The rows of each split; train has a row of test, and dev one, by the same tar and member."""
    monkeypatch.chdir(tmp_path)
    rows = {row["tar_member_name"]: row for row in _written(TARS)}
    return {
        "train": [rows[name] for name in "abcdi"],
        "dev": [rows[name] for name in "efg"],
        "test": [rows[name] for name in "ghi"],
    }


def _written(tars: dict[str, dict[str, bytes]]) -> list[dict]:
    """Write tars and their index; a row of each member."""
    for tar, members in tars.items():
        audio_tars.write_tar(Path(tar), members)
    index_of(list(map(Path, tars)), Path("index.parquet"))
    return [row_of(tar, name) for tar, members in tars.items() for name in members]


def _built(splits: dict[str, list[dict]], **choices: object) -> dict[str, Ledger]:
    return build_from(Path("out"), Path("index.parquet"), BucketChoices(**choices), **splits)


def _members(split: str) -> list[str]:
    rows = train_rows(Path("out")) if split == "train" else rows_of(Path(f"out/{split}.parquet"))
    return sorted(row["tar_member_name"] for row in rows)


@pytest.mark.parametrize(
    "copies, train, dev, of_train, of_dev",
    [
        (BY_BYTES, "ad", "e", {"also_in_test": 2, "also_in_dev": 1}, {"also_in_test": 2}),
        (NOT_AT_ALL, "abcd", "ef", {"also_in_test": 1}, {"also_in_test": 1}),
    ],
)
def test_what_test_or_dev_holds_is_rejected(corpus, copies, train, dev, of_train, of_dev):
    ledgers = _built(corpus, copies=copies)
    assert [*map(_members, ("train", "dev", "test"))] == [[*train], [*dev], [*"ghi"]]
    assert (ledgers["train"].rejected, ledgers["dev"].rejected) == (of_train, of_dev)
    assert not ledgers["train"].warnings + ledgers["dev"].warnings
    rejected = {
        (row["split"], row["tar_member_name"]): (row["reason"], row["detail"])
        for row in rejects(Path("out"))
    }
    assert len(rejected) == sum(of_train.values()) + sum(of_dev.values())
    assert rejected["train", "i"] == ("also_in_test", "is also in test")
    if copies == BY_BYTES:
        detail = "the same bytes as g in test.tar, which is in test"
        assert rejected["train", "b"] == ("also_in_test", detail)


def test_kept_rows_stay_and_are_counted(corpus):
    ledgers = _built(corpus, on_leak="keep")
    assert (_members("train"), _members("dev")) == (list("abcdi"), list("efg"))
    # c is in dev, which keeps e; f of dev is in test.
    assert ledgers["train"].warnings == {"also_in_test": 2, "also_in_dev": 1}
    assert ledgers["dev"].warnings == {"also_in_test": 2}
    assert rejects(Path("out")) == []


def test_an_error_builds_nothing_and_lists_the_rows(corpus):
    words = "2 rows of dev that are also in test and 1 row of train that is also in dev and 2 rows"
    with refused(words) as error:
        _built(corpus, on_leak="error")
    assert "the first: f in dev.tar" in str(error.value) and "asr.on_leak" in str(error.value)
    assert {path for path in files(Path("out")) if "parquet" in path or "config" in path} == set()
    assert len(rejects(Path("out"))) == 5


@pytest.mark.parametrize("on_leak, verdict", [("reject", "rejected"), ("keep", "kept")])
def test_step_and_run_end_with_the_same_line(corpus, on_leak, verdict, capfd):
    arguments = ["--tar-index", "index.parquet", "--output", "results/asr/buckets"]
    for split, rows in corpus.items():
        arguments += [f"--{split}", str(write_manifest(Path(f"{split}.parquet"), rows))]
    assert build_bucket_manifests.main([*arguments, "--on-leak", on_leak]) == 0
    lines = [
        f"1 row of train that is also in dev: {verdict}",
        f"2 rows of train that are also in test: {verdict}",
        f"2 rows of dev that are also in test: {verdict}",
    ]
    seen = capfd.readouterr().err
    assert all(f" INFO {line}\n" in seen for line in lines)
    fact = status.facts()[status.BUCKETS]
    assert all(f"; {line}; " in fact for line in lines)


def test_without_rows_that_are_left_there_is_an_error(corpus):
    with refused("no dev row is left of 3: 3 also_in_test"):
        _built({**corpus, "dev": corpus["test"]})


def _rows(contents: list[bytes], path: Path) -> Rows:
    """Contents in one file, one after the other, as rows of samples that are no others'."""
    offset = path.stat().st_size if path.exists() else 0
    with open(path, "ab") as file:
        file.write(b"".join(contents))
    sizes = np.array([len(content) for content in contents], np.int64)
    offsets = offset + np.cumsum(sizes) - sizes
    names = pa.array([str(offset) for offset in offsets], pa.large_string())
    return Rows(offsets.astype(np.uint64), np.zeros(len(sizes), np.int32), offsets, sizes, names)


def _held_out(rows: Rows, path: Path, copies: str = BY_BYTES) -> HeldOut:
    """Rows of test, which lie in the one tar that there is."""
    held_out = HeldOut([str(path)], copies, 2, path.parent / "prints")
    held_out.add("test", [rows])
    return held_out


@pytest.mark.parametrize(
    "content, pages, whole, is_leak",
    [
        (_LONG[:-1], 0, 0, False),
        (_LONG[::-1], 1, 0, False),
        (_LONG[:PAGE] + bytes(PAGE) + _LONG[-PAGE:], 1, 0, False),
        (_NEARLY, 1, 1, False),
        (_LONG, 1, 1, True),
    ],
)
def test_only_what_can_be_equal_is_read(tmp_path, monkeypatch, content, pages, whole, is_leak):
    pread, sizes = os.pread, []
    monkeypatch.setattr(os, "pread", lambda *of: sizes.append(of[1]) or pread(*of))
    path = tmp_path / "a.tar"
    held_out = _held_out(_rows([_LONG, b"short"], path), path)
    assert sum(sizes) == PAGE + len(b"short")
    sizes.clear()
    rows = _rows([content, b"none so long"], path)
    assert [leak.row for leak in held_out.leaks(rows)] == ([0] if is_leak else [])
    assert sum(sizes) == pages * PAGE + 2 * whole * len(_LONG)
    # What was read of the held-out rows is known; those of the other rows are read again.
    sizes.clear()
    held_out.leaks(rows)
    assert sum(sizes) == pages * PAGE + whole * len(_LONG)


def test_of_held_out_members_with_the_same_bytes_the_first_is_named(tmp_path):
    path = tmp_path / "a.tar"
    members = _rows([_LONG, _LONG], path)
    (leak,) = _held_out(members, path).leaks(_rows([_LONG], path))
    assert leak.detail == f"the same bytes as {members.names[0]} in {path}, which is in test"


def test_of_test_and_dev_the_one_that_was_added_first_is_named(tmp_path):
    path = tmp_path / "a.tar"
    members = _rows([_LONG], path)
    held_out = _held_out(members, path)
    held_out.add("dev", [members])
    assert [leak.held_out for leak in held_out.leaks(members)] == ["test"]


def test_members_whose_ends_are_lost_are_no_copies_of_each_other(tmp_path):
    paths = [tmp_path / "a.tar", tmp_path / "b.tar"]
    held, row = (_rows([_LONG], path) for path in paths)
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1])
    row = row._replace(keys=row.keys + np.uint64(1), tars=row.tars + 1)
    held_out = HeldOut(list(map(str, paths)), BY_BYTES, 2, tmp_path)
    held_out.add("test", [held])
    assert held_out.leaks(row) == []
    assert held_out.unread() == 2


def test_what_cannot_be_read_stays_and_is_counted(corpus):
    Path("test.tar").write_bytes(Path("test.tar").read_bytes()[:1000])
    ledgers = _built(corpus)
    # b and g, i and c are as long as members of test; only tar and member tell of them.
    assert ledgers["train"].rejected["also_in_test"] == 1
    assert ledgers["test"].warnings["not_compared"] >= 1
    assert "b" in _members("train")


def _sounds() -> dict[str, dict[str, bytes]]:
    """Tars of real audio, by name and member: each split has sound of its own, and copies."""
    sounds = [noise(6, seed) for seed in range(8)]
    later = np.concatenate([np.zeros(RATE // 25, np.int16), sounds[2]])
    louder = np.stack([sounds[4], sounds[4] // 2], axis=1)
    halved = sounds[5].reshape(-1, 2).mean(axis=1).astype(np.int16)
    whole = audio_tars.encoded(sounds[6][:, None])
    return {
        "train.tar": {
            "own.flac": audio_tars.encoded(sounds[1]),
            **{f"same_{number}.flac": audio_tars.encoded(sounds[2]) for number in range(3)},
            "later.flac": audio_tars.encoded(later),
            "cut.flac": audio_tars.encoded(sounds[3][2 * RATE :]),
            "opus.ogg": audio_tars.encoded(sounds[3], "OGG", "OPUS"),
            "stereo.wav": audio_tars.encoded(louder, "WAV"),
            "halved.wav": audio_tars.encoded(halved, "WAV", rate=RATE // 2),
            "short.flac": audio_tars.encoded(sounds[2][: RATE // 4]),
            "silent.flac": audio_tars.encoded(0 * sounds[2]),
            "damaged.flac": whole[: len(whole) // 2],
            "no_sound.flac": b"a text",
        },
        "dev.tar": {"d5.flac": audio_tars.encoded(sounds[5]), "d2.wav": _wav(sounds[2])},
        "test.tar": {f"t{seed}.flac": audio_tars.encoded(sounds[seed]) for seed in (2, 3, 4)}
        | {"silent_too.wav": _wav(0 * sounds[2])},
    }


def _wav(samples: np.ndarray) -> bytes:
    return audio_tars.encoded(samples, "WAV")


@pytest.fixture
def heard(tmp_path, monkeypatch) -> dict[str, list[dict]]:
    """The rows of each split of `_sounds`."""
    monkeypatch.chdir(tmp_path)
    splits = {"train": [], "dev": [], "test": []}
    for row in _written(_sounds()):
        splits[Path(row["tar_path"]).stem].append(row)
    return splits


COPIES_OF_TEST = {"later.flac": "t2.flac", "cut.flac": "t3.flac", "opus.ogg": "t3.flac"}
COPIES_OF_TEST |= {"stereo.wav": "t4.flac"}
SAME_BYTES = {f"same_{number}.flac" for number in range(3)}


@pytest.mark.parametrize("parts, at_once", [(1, 10**9), (1, 1), (1, 2), (4, 1)])
def test_copies_of_sound_leave_train_and_dev_and_test_keeps_them(
    heard, monkeypatch, parts, at_once
):
    monkeypatch.setattr(matches, "WORDS_AT_ONCE", at_once)
    for module in (sound, held_out):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(held_out, "_MEMBERS_AT_ONCE", at_once)
    ledgers = _built(heard, copies=BY_SOUND, parts=parts)
    assert ledgers["train"].rejected == {"also_in_test": 7, "also_in_dev": 1}
    assert ledgers["dev"].rejected == {"also_in_test": 1}
    assert _members("test") == sorted(row["tar_member_name"] for row in heard["test"])
    expected = {
        name: f"the same sound as {of} in test.tar, which is in test"
        for name, of in COPIES_OF_TEST.items()
    }
    expected["halved.wav"] = "the same sound as d5.flac in dev.tar, which is in dev"
    same_bytes = "the same bytes as t2.flac in test.tar, which is in test"
    expected |= dict.fromkeys(SAME_BYTES, same_bytes)
    expected["d2.wav"] = "the same sound as t2.flac in test.tar, which is in test"
    rejected = {row["tar_member_name"]: row["detail"] for row in rejects(Path("out"))}
    assert rejected == expected
    # What cannot be decoded stays, and is counted.
    assert ledgers["train"].warnings == {"not_compared": 2}
    assert not list(Path("out").rglob("*.npz"))


def test_by_bytes_other_encodings_stay_and_by_sound_they_can_be_kept(heard):
    ledgers = _built(heard, copies=BY_BYTES)
    assert ledgers["train"].rejected == {"also_in_test": 3} and not ledgers["dev"].rejected
    assert set(_members("train")) >= {*COPIES_OF_TEST, "halved.wav"}
    ledgers = _built(heard, copies=BY_SOUND, on_leak="keep")
    # later.flac is in dev too: test counts.
    counted = {"also_in_test": 7, "also_in_dev": 1, "not_compared": 2}
    assert ledgers["train"].warnings == counted and not ledgers["train"].rejected
    words = "1 row of dev that is also in test and 1 row of train that is also in dev and 7 rows"
    with refused(words):
        _built(heard, copies=BY_SOUND, on_leak="error")


def test_held_out_sound_that_cannot_be_decoded_is_counted_in_its_split(heard):
    damaged = heard["train"][-2:]
    splits = {"train": [*heard["train"][:1], *heard["train"][4:6]], "test": heard["test"] + damaged}
    ledgers = _built(splits, copies=BY_SOUND)
    assert ledgers["test"].warnings == {"not_compared": 2}
    assert ledgers["train"].rejected == {"also_in_test": 2} and not ledgers["train"].warnings


def test_a_member_that_the_tar_does_not_hold_whole_is_not_compared(tmp_path):
    path = tmp_path / "a.tar"
    rows = _rows([audio_tars.encoded(noise(6, 1), "MP3")], path)
    path.write_bytes(path.read_bytes()[:-5000])
    compared = _held_out(rows, path, BY_SOUND)
    assert compared.unread() == 1
    assert compared.unread() == 0


def test_a_member_too_long_for_an_utterance_is_not_compared(monkeypatch):
    content = audio_tars.encoded(noise(60, 1))
    assert sound.fingerprint(content, 1) is not None
    monkeypatch.setattr(sound, "_MOST_SECONDS", 59.0)
    assert sound.fingerprint(content, 1) is None
