"""Bucket parquets: every row accounted for, its address right, the same bytes from any order of the
input."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.asr.buckets import build as buckets
from millrace.asr.buckets import parquets
from millrace.asr.buckets.addresses import TarIndices
from millrace.asr.buckets.build import BucketChoices, build
from millrace.asr.buckets.config import BucketConfig
from millrace.asr.buckets.edges import DEFAULT_EDGES, bucket_ids, bucket_of
from millrace.asr.buckets.rejects import place_of
from millrace.asr.manifests.manifest import manifest_of
from millrace.common import atomic
from tests.asr import audio_tars
from tests.asr.bucket_corpus import (
    build_from,
    build_train,
    config_of,
    content,
    corpus,
    files,
    index_of,
    index_of_rows,
    rejects,
    row_of,
    rows_of,
    train_rows,
    write_jsonl,
    write_manifest,
)
from tests.asr.tars.test_scan import info_of, tar_of
from tests.refusals import refused


def test_every_row_is_in_its_bucket_with_its_address(built):
    folder, rows, _ = built
    by_member = {}
    for number, bucket in enumerate(bucket_ids(DEFAULT_EDGES)):
        for row in rows_of(folder / f"out/train/{bucket}.parquet"):
            assert bucket_of(np.array([row["duration_s"]]), DEFAULT_EDGES)[0] == number
            tar = Path(row["tar_path"])
            body = content(row).decode()
            assert body.startswith(f"{tar.parent.name}/{tar.name}:{row['tar_member_name']}:")
            by_member[row["tar_path"], row["tar_member_name"]] = row
    assert len(by_member) == len(rows)
    for row in rows:
        other = by_member[row["tar_path"], row["tar_member_name"].removeprefix("./")]
        assert all(other[name] == row[name] for name in ("transcript", "language", "duration_s"))
    assert len({row["sample_id"] for row in by_member.values()}) == len(rows)


def test_a_mended_transcript_shows_in_the_config_and_nothing_else_does(built, tmp_path):
    folder, rows, index = built
    mended = [{**rows[0], "transcript": "mended"}, *rows[1:]]
    for name, chosen in (("same", rows[::-1]), ("mended", mended)):
        build_from(tmp_path / name, index, train=chosen)
    before, same, after = (
        (place / "bucket_config.json").read_bytes()
        for place in (folder / "out", tmp_path / "same", tmp_path / "mended")
    )
    assert before == same != after


def check_facts(facts: dict, seconds: list[float]) -> None:
    """What the config says of rows that last so long."""
    assert (facts["samples"], facts["max_duration"]) == (len(seconds), max(seconds, default=0.0))
    assert facts["hours"] == pytest.approx(sum(seconds) / 3600)
    assert facts["mean_duration"] == pytest.approx(np.mean(seconds or [0.0]))


def test_config_adds_up(built):
    folder, rows, _ = built
    config = config_of(folder / "out")
    seconds = [row["duration_s"] for row in rows]
    assert config["total_samples"] == len(rows) and config["seed"] == 42
    assert config["total_hours"] == pytest.approx(sum(seconds) / 3600)
    assert [bucket["range"] for bucket in config["buckets"]][:2] == ["0.0-3.0s", "3.0-5.0s"]
    assert sum(bucket["pct_samples"] for bucket in config["buckets"]) == pytest.approx(100)
    for number, bucket in enumerate(config["buckets"]):
        mine = [s for s in seconds if bucket_of(np.array([s]), DEFAULT_EDGES)[0] == number]
        check_facts(bucket, mine)
        assert bucket["pct_hours"] == pytest.approx(100 * sum(mine) / sum(seconds))
    assert len(train_rows(folder / "out")) == len(rows)
    for tar in rows_of(folder / "out" / "tars.parquet"):
        stat = Path(tar["tar_path"]).stat()
        assert (tar["size"], tar["mtime_ns"]) == (stat.st_size, stat.st_mtime_ns)


def test_same_bytes_for_any_order_pieces_threads_and_parts(built, tmp_path, out):
    folder, rows, index = built
    expected = files(folder / "out")
    shuffled = list(rows)
    np.random.default_rng(5).shuffle(shuffled)
    train = write_manifest(tmp_path / "train.parquet", shuffled, row_group_size=17)
    for threads, parts in ((1, 1), (2, 8), (2, 32)):
        choices = BucketChoices(threads=threads, parts=parts)
        build_from(out, index, choices, piece_rows=40, train=train)
        assert files(out) == expected


def test_order_is_shuffled_seeded_and_free_of_the_tars_folder(built, tmp_path):
    folder, rows, _ = built
    shutil.copytree(folder, tmp_path / "moved" / "deeper")
    place = str(tmp_path / "moved" / "deeper")
    moved = [{**row, "tar_path": row["tar_path"].replace(str(folder), place)} for row in rows]
    index = index_of_rows(moved, tmp_path / "index.parquet")
    build_from(tmp_path / "out", index, train=moved)
    build_from(tmp_path / "seeded", index, BucketChoices(seed=43), train=moved)
    relative = [{**row, "tar_path": os.path.relpath(row["tar_path"])} for row in moved]
    index = index_of_rows(relative, tmp_path / "i.parquet")
    build_from(tmp_path / "relative", index, train=relative)
    for bucket in ("b_3_5", "b_7_10"):
        outs = [folder / "out", *(tmp_path / name for name in ("out", "seeded", "relative"))]
        tables = [rows_of(out / "train" / f"{bucket}.parquet") for out in outs]
        names = [[(row["sample_id"], row["tar_member_name"]) for row in table] for table in tables]
        assert names[0] == names[1] == names[3]
        assert names[0] != names[2] and sorted(names[0]) == sorted(names[2])
        # Tars are mixed: neighbours in a bucket mostly come from different tars.
        tar = [row["tar_path"] for row in tables[0]]
        assert np.mean([a == b for a, b in itertools.pairwise(tar)]) < 0.6


BAD_VALUES = [
    ("transcript", "empty_transcript", [" \t\n\u3000", None, "\u200b\ufeff \0"]),
    ("transcript", "empty_transcript", ["\u200b" * 5 + "\0"]),
    ("duration_s", "duration_nan", [math.nan]),
    ("duration_s", "duration_missing", [None]),
    ("duration_s", "duration_infinite", [math.inf, -math.inf]),
    ("duration_s", "duration_not_positive", [0.0, -3.0]),
    ("duration_s", "duration_implausible", [4e9, 1e-60]),
    ("tar_member_name", "not_in_tar", ["clips/absent.flac", "hid0"]),
    ("tar_member_name", "no_member_name", ["", None]),
    ("tar_path", "no_tar_path", [None]),
    ("tar_path", "tar_not_indexed", ["/nowhere/audio_16k.tar"]),
]
DEFECTS = [({name: value}, reason) for name, reason, values in BAD_VALUES for value in values]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_every_defect_is_rejected_by_its_reason(tmp_path, out, kind):
    rows, index = corpus(tmp_path, tars=2, members=20)
    good, spoiled = rows[len(DEFECTS) :], rows[: len(DEFECTS)]
    good[0]["duration_s"] = 1e-3
    good[1]["duration_s"] = 1e6
    bad = [{**row, **change} for row, (change, _) in zip(spoiled, DEFECTS, strict=True)]
    write = write_jsonl if kind == "jsonl" else write_manifest
    manifest = write(tmp_path / f"train.{kind}", bad + good)
    ledger = build_train(out, index, manifest)
    listed = {(row["row"] - (kind == "jsonl")): row for row in rejects(out)}
    assert [listed[at]["reason"] for at in range(len(listed))] == [reason for _, reason in DEFECTS]
    assert ledger.rows_in == len(rows) and ledger.rows_out == len(good)
    assert listed[len(DEFECTS) - 1]["detail"] == "in none of the tar indices"
    assert listed[len(DEFECTS) - 2]["tar_path"] is None
    assert listed[0]["file"] == str(manifest)
    assert json.loads((out / "ledger.json").read_text())[0]["rows_rejected"] == len(DEFECTS)


def test_the_last_edge_and_beyond(tmp_path):
    rows, index = corpus(tmp_path, tars=1, members=6)
    for row, seconds in zip(rows, (30.0, 30.001, 61.5, 0.3, 2.9999, 29.999), strict=True):
        row["duration_s"] = seconds
    ledger = build_train(tmp_path / "keep", index, rows)
    assert ledger.rows_out == 6 and ledger.warnings == {"longer_than_last_edge": 2}
    dropped = build_train(tmp_path / "drop", index, rows, BucketChoices(over_max="drop"))
    assert dropped.rejected == {"longer_than_last_edge": 2} and dropped.rows_out == 4
    for bucket, expected in (
        ("keep/train/b_20_30", [29.999, 30.0, 30.001, 61.5]),
        ("keep/train/b_0_3", [0.3, 2.9999]),
        ("drop/train/b_20_30", [29.999, 30.0]),
    ):
        seconds = [row["duration_s"] for row in rows_of(tmp_path / f"{bucket}.parquet")]
        assert sorted(seconds) == expected


def test_rows_of_a_cut_tar_say_that_it_is_cut(tmp_path, out):
    rows, _ = corpus(tmp_path, tars=2, members=10)
    paths = sorted({Path(row["tar_path"]) for row in rows})
    paths[0].write_bytes(paths[0].read_bytes()[: 4 * 1024 + 530])
    rows[0]["tar_member_name"], rows[0]["tar_path"] = "absent.flac", str(paths[1])
    index = index_of(paths, tmp_path / "cut.parquet")
    ledger = build_train(out, index, rows)
    assert ledger.rejected["not_in_tar"] >= 6
    for row in rejects(out):
        is_cut = row["tar_path"] == str(paths[0])
        assert ("truncated: the file ends inside" in row.get("detail", "")) == is_cut


def test_twins_are_rejected_and_the_one_kept_does_not_depend_on_the_order(tmp_path, out):
    rows, index = corpus(tmp_path, tars=2, members=30)
    twins = [{**row, "tar_member_name": f"././{row['tar_member_name']}"} for row in rows[:10]]
    twins = [{**row, "transcript": f"another {n}"} for n, row in enumerate(twins)]
    outputs = []
    for order in (rows + twins + rows[:3], rows[:3] + twins[::-1] + rows[::-1]):
        ledger = build_train(out, index, order)
        assert ledger.rejected == {"duplicate_row": 13} and ledger.rows_out == len(rows)
        outputs.append(files(out))
        assert outputs[-1].pop("rejects.jsonl")
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("start", [".", "{here}/0"])
def test_a_tar_that_is_spelled_in_two_ways_is_one_tar(tmp_path, monkeypatch, start):
    rows, index = corpus(tmp_path, tars=2, members=30)
    monkeypatch.chdir(tmp_path)
    Path("0").symlink_to(tmp_path)
    place = start.format(here=tmp_path)
    others = [
        {**row, "tar_path": f"{place}/{Path(row['tar_path']).relative_to(tmp_path)}"}
        for row in rows
    ]
    train = write_manifest(tmp_path / "train.parquet", rows[:50] + others[:9])
    ledgers = build_from(tmp_path / "out", index, train=train, dev=others[40:])
    assert ledgers["train"].rejected == {"duplicate_row": 9, "also_in_dev": 10}
    dev = rows_of(tmp_path / "out/dev.parquet")
    assert {row["tar_path"] for row in dev} <= {row["tar_path"] for row in rows}
    # The index tells of a tar also where only its other spelling is named.
    build_train(tmp_path / "others", index, others[40:])
    offsets = {row["tar_member_name"]: row["offset"] for row in train_rows(tmp_path / "others")}
    assert {row["tar_member_name"]: row["offset"] for row in dev} == offsets
    assert len(offsets) == 20


def test_twin_members_and_members_without_bytes(tmp_path, out):
    path = tmp_path / "a.tar"
    members = [("x.wav", b"first"), ("empty.wav", b""), ("x.wav", b"second")]
    path.write_bytes(tar_of(*members, info_of("folder.wav", kind=tarfile.DIRTYPE)))
    names = ("x.wav", "empty.wav", "folder.wav")
    rows = [row_of(path, name, language=None) for name in names]
    index = index_of([path], tmp_path / "i.parquet")
    ledger = build_train(out, index, rows)
    assert ledger.rejected == {"empty_member": 1, "not_a_file": 1}
    (row,) = rows_of(tmp_path / "out/train/b_0_3.parquet")
    assert content(row) == b"second" and row["language"] is None
    details = {row["reason"]: row.get("detail") for row in rejects(out)}
    remark = "ok: 1 names stand there more than once: the last one counts"
    assert details == {"empty_member": None, "not_a_file": remark}


def test_splits_are_flat_and_what_another_build_has_not_is_swept(tmp_path, out):
    rows, index = corpus(tmp_path, tars=3, members=40)
    build_from(out, index, train=rows[:100], dev=rows[95:110], test=rows[110:])
    assert len(rows_of(out / "dev.parquet")) == 15
    assert len(rows_of(out / "test.parquet")) == 10
    names = [
        "tar_path",
        "tar_member_name",
        "offset",
        "size",
        "transcript",
        "language",
        "duration_s",
        "sample_id",
    ]
    assert pq.read_schema(out / "dev.parquet").names == names
    bucket = pq.read_table(out / "train" / "b_3_5.parquet")
    assert bucket.column_names == [*names, "bucket_id", "bucket_max_duration"]
    assert set(bucket["bucket_id"].to_pylist()) == {"b_3_5"}
    assert set(bucket["bucket_max_duration"].to_pylist()) == {5.0}
    # Without them in the next build, their files go; other edges sweep the old buckets, and what a
    # killed build left of them.
    names = ("train/.b_3_5.parquet", ".dev.parquet")
    litter = [tmp_path / f"out/{name}.{atomic._HOST}-99999999.partial" for name in names]
    for path in litter:
        path.touch()
    choices = BucketChoices(edges=(0.0, 8.0, 30.0))
    build_from(out, index, choices, train=rows[:100])
    assert not any(path.exists() for path in litter)
    left = {name for name in files(out) if name.endswith(".parquet")}
    assert left == {"train/b_0_8.parquet", "train/b_8_30.parquet", "tars.parquet"}


def test_without_a_tar_index_rows_are_rejected_by_name(tmp_path, out):
    rows, _ = corpus(tmp_path, tars=1, members=3)
    manifest = manifest_of("train", [write_manifest(tmp_path / "train.parquet", rows)])
    with refused("no train row is left of 3: 3 tar_not_indexed"):
        build([manifest.scan()], None, out, BucketChoices())
    details = {row["detail"] for row in rejects(out)}
    assert details == {"no tar index was given"}


def test_one_tar_with_a_relative_path_gives_the_buckets_a_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, _ = corpus(tmp_path, tars=2, members=3)
    first = min(row["tar_path"] for row in rows)
    for row in rows:
        if row["tar_path"] == first:
            row["tar_path"] = os.path.relpath(first)
    build_train(Path("out"), index_of_rows(rows, Path("index.parquet")), rows)
    assert BucketConfig.read("out").tar_root == tmp_path


def test_a_killed_build_leaves_nothing_and_no_false_config(built, tmp_path, monkeypatch):
    folder, _, index = built
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    (out / buckets.SPILL / "rejects").mkdir(parents=True)
    (out / buckets.SPILL / "rejects" / "000000.jsonl").write_bytes(b"of a run that was killed")
    with monkeypatch.context() as patch:
        patch.setattr(buckets.config, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_from(out, index, BucketChoices(seed=1), train=folder / "train.parquet")
    # The files have changed: the config that named the old ones is gone, and no spill or temporary
    # is left.
    assert "bucket_config.json" not in files(out)
    assert not (out / buckets.SPILL).exists()
    assert b"killed" not in (out / "rejects.jsonl").read_bytes()
    build_from(out, index, train=folder / "train.parquet")
    assert files(out) == files(folder / "out")


def test_the_figures_are_those_of_all_parts_and_of_every_split(tmp_path, out):
    rows, index = corpus(tmp_path, tars=2, members=60)
    for row in rows[:12]:
        row["duration_s"] = 31.5
    dev, test = rows[5:25], rows[20:50]
    ledgers = build_from(out, index, BucketChoices(parts=8), train=rows, dev=dev, test=test)
    # What dev and test share is of test.
    dev = rows[5:20]
    assert ledgers["train"].rejected == {"also_in_dev": 15, "also_in_test": 30}
    assert ledgers["train"].warnings == {"longer_than_last_edge": 5}
    assert ledgers["dev"].rejected == {"also_in_test": 5}
    assert ledgers["dev"].warnings == {"longer_than_last_edge": 7}
    assert not ledgers["test"].rejected + ledgers["test"].warnings
    config = config_of(out)
    for name, expected in (("dev", dev), ("test", test)):
        check_facts(config["splits"][name], [row["duration_s"] for row in expected])
    choices = BucketChoices(over_max="drop", seed=7)
    build_from(out, index, choices, train=rows)
    config = config_of(out)
    assert (config["over_max"], config["seed"]) == ("drop", 7)
    assert config["total_samples"] == len(rows) - 12 and config["splits"] == {}


def test_rejects_name_their_file_and_row_in_an_order_that_no_thread_changes(tmp_path, out):
    rows, index = corpus(tmp_path, tars=2, members=40)
    for number in (3, 17, 44, 45, 70):
        rows[number]["transcript"] = ""
    rows[60]["tar_member_name"] = "absent.flac"
    files_ = [
        write_manifest(tmp_path / f"train-{n}.parquet", rows[40 * n :][:40], row_group_size=16)
        for n in range(2)
    ]
    outputs = []
    for threads, piece in ((1, 7), (4, 3), (2, 1000)):
        manifest = manifest_of("train", files_)
        manifest.piece_rows = piece
        choices = BucketChoices(threads=threads)
        build([manifest.scan()], TarIndices([index]), out, choices)
        outputs.append(
            [(files_.index(Path(row["file"])), row["row"], row["reason"]) for row in rejects(out)]
        )
    empty = [(0, 3), (0, 17), (1, 4), (1, 5), (1, 30)]
    expected = [(*place, "empty_transcript") for place in empty]
    assert outputs == [[*expected, (1, 20, "not_in_tar")]] * 3
    # Rows of one file may be many.
    assert place_of(files_, (1 << 40) + (1 << 32)) == (files_[1], 1 << 32)


def test_errors_above_the_limit_take_the_config_away_and_choices_are_no_errors(
    tmp_path,
    out,
):
    rows, index = corpus(tmp_path, tars=1, members=20)
    rows[0]["duration_s"], choices = 99.0, BucketChoices(over_max="drop")
    ledger = build_train(out, index, rows + rows[5:], choices)
    assert ledger.rejected == {"duplicate_row": 15, "longer_than_last_edge": 1}
    buckets.check_errors([ledger], 0.0, out)
    assert (tmp_path / "out/bucket_config.json").exists()
    ledger = build_train(out, index, [{**rows[1], "transcript": ""}, *rows[2:]])
    buckets.check_errors([ledger], 1 / 19, out)
    with refused(r"1 of 19 rows are in error \(1 empty_transcript\)"):
        buckets.check_errors([ledger], 0.05, out)
    assert not (tmp_path / "out/bucket_config.json").exists() and len(rejects(out)) == 1


def test_what_cannot_be_built_is_said(tmp_path, out):
    rows, index = corpus(tmp_path, tars=1, members=3)
    torn = write_manifest(tmp_path / "torn.parquet", rows)
    torn.write_bytes(torn.read_bytes()[:-20])
    for train, message in (
        (pa.Table.from_pylist(rows).slice(0, 0), "no train row is left of 0"),
        ([{"tar_path": "a", "member": "b", "duration": 1}], "no column for transcript"),
        (torn, "cannot be read"),
        (
            [{**row, "transcript": ""} for row in rows],
            r"no train row is left of 3.*empty_transcript",
        ),
    ):
        with refused(message):
            build_from(out, index, train=train)
    assert len(rejects(out)) == 3 and not (out / "bucket_config.json").exists()


def test_row_groups_are_bounded(built, out, monkeypatch):
    folder, rows, index = built
    monkeypatch.setattr(parquets, "ROW_GROUP", 16)
    choices, train = BucketChoices(parts=8), folder / "train.parquet"
    build_from(out, index, choices, piece_rows=50, train=train)
    total = 0
    for bucket in bucket_ids(DEFAULT_EDGES):
        meta = pq.ParquetFile(out / "train" / f"{bucket}.parquet").metadata
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        assert all(size == 16 for size in sizes[:-1]) and all(0 < size <= 16 for size in sizes)
        total += sum(sizes)
    assert total == len(rows)


@pytest.mark.parametrize(
    "facts, used",
    [
        ([(2.0, "en"), (3.0, "en")], None),
        ([(2.0, "en"), (2.0, "de")], None),
        ([(2.0, "en"), (2.0, "en"), (3.0, "en")], None),
        ([(2.0, None), (2.0, "be"), (2.0, "de")], None),
        ([(2.0, None), (2.0, "be")], 1),
        ([(2.0, "be"), (2.0, "")], 0),
        ([(2.0, "FR"), (2.0, None), (2.0, "fr")], 0),
        ([(2.0, "en"), (2.0, "en")], 0),
    ],
)
def test_rows_that_contradict_each_other_are_all_rejected(tmp_path, out, facts, used):
    path = tmp_path / "a.tar"
    audio_tars.write_tar(path, {"x.flac": b"no audio", "y.flac": b"another"})
    rows = [
        row_of(path, "x.flac", duration_s=seconds, language=language) for seconds, language in facts
    ]
    rows.append({**rows[0], "tar_member_name": "y.flac"})
    ledger = build_train(out, index_of([path], tmp_path / "i.parquet"), rows)
    good = [row for row in train_rows(out) if row["tar_member_name"] == "x.flac"]
    facts_used = [(row["duration_s"], row["language"]) for row in good]
    if used is not None:
        assert facts_used == [facts[used]]
        assert ledger.rejected == {"duplicate_row": len(facts) - 1}
        return
    assert not facts_used and ledger.rejected == {"contradicting_row": len(facts)}
    with refused("contradicting_row"):
        buckets.check_errors([ledger], 0.0, out)
