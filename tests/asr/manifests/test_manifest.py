"""Manifests of every kind become the same rows: parquet of odd types, NeMo-style JSONL, the speech
index."""

from __future__ import annotations

import decimal
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.asr.buckets import build as buckets
from millrace.asr.buckets.addresses import TarIndices
from millrace.asr.buckets.build import BucketChoices
from millrace.asr.manifests.manifest import Manifest, manifest_of, scanned
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from tests.asr.bucket_corpus import (
    build_train,
    content,
    corpus,
    files,
    index_of,
    rejects,
    rows_of,
    speech_index,
    train_rows,
    write_jsonl,
    write_manifest,
    write_tar,
)
from tests.refusals import refused


def nemo(name: object, **changes: object) -> dict:
    """A line as NeMo writes them."""
    return {"audio_filepath": name, "duration": 2, "text": "t", **changes}


def build_all(folder: Path, manifests: list[Manifest], tars: list[Path]) -> list[Ledger]:
    """The ledgers of a build of these manifests in `folder`, train's first."""
    index = TarIndices([index_of(tars, folder / "index.parquet")])
    ledgers = buckets.build(manifests, index, folder / "out", BucketChoices(on_leak="keep"))
    return sorted(ledgers, key=lambda ledger: ledger.scope != "train")


def texts(cast):
    """All text columns of a table, cast."""
    return lambda t: pa.table(
        {n: t[n] if n == "duration_s" else cast(t[n]) for n in t.column_names}
    )


def durations(cast):
    """The durations of a table, made of a list of seconds."""
    return lambda t: t.set_column(4, "duration_s", cast(t["duration_s"].to_pylist()))


SAME, OTHER, NONE = "same files", "other durations", "no language"
OTHER_NAMES = ["tar", "member", "text", "lang", "duration", "extra"]
COLUMN_TYPES = {
    "large": (texts(lambda c: c.cast(pa.large_string())), SAME),
    "view": (texts(lambda c: c.cast(pa.string_view())), SAME),
    "dictionary": (texts(lambda c: c.dictionary_encode()), SAME),
    "float32": (durations(lambda seconds: pa.array(seconds, pa.float32())), OTHER),
    "uint8": (
        durations(lambda seconds: pa.array([math.ceil(v) for v in seconds], pa.uint8())),
        OTHER,
    ),
    "other names": (lambda t: t.append_column("extra", t[3]).rename_columns(OTHER_NAMES), SAME),
    # Of several names in one file the first counts.
    "both names": (lambda t: t.append_column("text", t["language"]), SAME),
    "offsets of 0": (lambda t: t.append_column("offset", pa.array([0.0] * len(t))), SAME),
    "no language": (lambda t: t.drop_columns(["language"]), NONE),
    "null language": (lambda t: t.set_column(3, "language", pa.nulls(len(t))), NONE),
    "blank language": (lambda t: t.set_column(3, "language", pa.array([" "] * len(t))), NONE),
}


@pytest.mark.parametrize("kind", COLUMN_TYPES)
def test_columns_of_other_types_give_the_same_rows(built, tmp_path, out, kind):
    folder, rows, index = built
    change, result = COLUMN_TYPES[kind]
    ledger = build_train(out, index, change(pa.Table.from_pylist(rows)))
    assert ledger.rows_out == len(rows), ledger
    if result == SAME:
        assert files(out) == files(folder / "out")
    elif result != OTHER:
        assert all(row["language"] is None for row in rows_of(tmp_path / "out/train/b_3_5.parquet"))


WORDS = pa.array([["two", "words"], None, *[None] * 4])


@pytest.mark.parametrize(
    "column, values, message",
    [
        ("tar_path", WORDS, "the column tar_path is list<element: string>, which is no text"),
        ("transcript", pa.array([b"t"] * 6), "the column transcript is binary, which is no text"),
        ("transcript", pa.array([7] * 6), "the column transcript is int64, which is no text"),
        ("language", pa.array([math.nan] * 6), "the column language is double, which is no text"),
        ("duration_s", pa.array([True] * 6), "duration_s is bool, which is no number"),
        ("duration_s", pa.array(["4.5"] * 6), "the column duration_s is string"),
        ("duration_s", pa.array([0] * 6, pa.duration("s")), "the column duration_s is duration"),
        ("duration_s", pa.array([decimal.Decimal("4.5")] * 6), "duration_s is decimal128"),
    ],
)
def test_a_column_of_another_type_or_there_twice_is_refused(tmp_path, column, values, message):
    rows, index = corpus(tmp_path, tars=1, members=6)
    table = pa.Table.from_pylist(rows)
    twice = table.append_column(column, table[column]), f"several columns named {column}"
    odd = table.set_column(table.column_names.index(column), column, values), message
    for changed, problem in (odd, twice):
        with pytest.raises(MillraceError) as error:
            build_train(
                tmp_path / "out", index, write_manifest(tmp_path / "train.parquet", changed)
            )
        assert problem in str(error.value) and str(tmp_path / "train.parquet") in str(error.value)


def test_bytes_that_are_not_utf8_are_rejected(tmp_path):
    rows, index = corpus(tmp_path, tars=1, members=5)
    table = pa.Table.from_pylist(rows)
    texts = [b"caf\xe9", *[text.encode() for text in table["transcript"].to_pylist()[1:]]]
    bad = pa.array(texts, pa.binary())
    # Declared as text by a writer that does not look.
    declared = pa.Array.from_buffers(pa.string(), len(bad), bad.buffers())
    changed = table.set_column(2, "transcript", declared)
    ledger = build_train(tmp_path / "out", index, changed)
    assert ledger.rejected == {"text_not_utf8": 1} and ledger.rows_out == 4


ODD_VALUES = [
    {"duration": "4.0", "text": "\ud800"},  # half a character is damage
    {"duration": "4.0"},
    {"duration": {"s": 4}},
    {"duration": True},
    {"text": {"text": "x"}},
    {"text": 7},
]


def test_nemo_jsonl(tmp_path):
    tars = [
        write_tar(tmp_path / f"audio_{s}.tar", [f"a{s}_{n}.wav" for n in range(5)])
        for s in range(2)
    ]
    index = index_of(tars, tmp_path / "index.parquet")
    rows = [nemo(f"a{s}_{n}.wav", shard_id=s) for s in range(2) for n in range(5)]
    rows[3] = nemo("./a0_3.wav", tar="audio_0.tar", offset=2.5)
    rows += [nemo("a0_3.wav", shard_id=0, **change) for change in ODD_VALUES]
    rows += [nemo(["a0_3.wav"], shard_id=0), {"text": "no tar"}, [1, 2]]
    lines = [*map(json.dumps, rows), "{broken", ""]
    (tmp_path / "train.jsonl").write_text("\ufeff" + "\n".join(lines))
    ledger = build_train(tmp_path / "out", index, tmp_path / "train.jsonl")
    assert ledger.rejected == {
        "segment_of_member": 1,
        "json_damaged": 2,
        "not_an_object": 1,
        "no_tar_path": 1,
        "not_a_text": 3,
        "duration_not_numeric": 3,
    }
    assert ledger.rows_out == 9
    assert ledger.repaired == {"json_bom": 1}
    # One manifest per shard, without shard_id: the number is in the name.
    manifest = write_jsonl(tmp_path / "manifest_1.json", [nemo("a1_0.wav")])
    assert build_train(tmp_path / "out2", index, manifest).rows_out == 1


def test_no_flipped_byte_of_a_parquet_raises_or_loses_rows(tmp_path):
    rows = [
        {"tar": f"/a/{n % 9}", "member": f"m{n}", "text": f"t {n}", "duration": n}
        for n in range(600)
    ]
    path = write_manifest(tmp_path / "train.parquet", rows, compression="none", row_group_size=200)
    whole, rng = path.read_bytes(), np.random.default_rng(5)
    errors = 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(0, len(whole))] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            manifest = manifest_of("train", [path]).scan()
            assert (
                sum(len(table) for rows in manifest.ranges for table in manifest.read(rows)) == 600
            )
        except MillraceError as error:
            assert str(path) in str(error)
            errors += 1
    assert 0 < errors < 150


@pytest.mark.parametrize(
    "shard, template, rows_out",
    [
        (1, "audio_{shard_id:d}.tar", 1),
        (1, "audio__OP_0..3_CL_.tar", 1),
        (1, "audio_{0..1023}.tar", 1),
        (1, "audio_{000..123}.tar", 0),
        (None, "audio_1.tar", 1),
        ("1", "audio_{shard_id}.tar", 0),
        (1.0, "audio_{shard_id}.tar", 0),
        (True, "audio_{shard_id}.tar", 0),
    ],
)
def test_a_shard_id_is_a_whole_number(tmp_path, shard, template, rows_out):
    tar = write_tar(tmp_path / "audio_1.tar", ["a.wav"])
    write_jsonl(tmp_path / "train.jsonl", [nemo("a.wav", tar=str(tar))])
    write_jsonl(tmp_path / "dev.jsonl", [nemo("./a.wav", shard_id=shard)])
    _, ledger = build_all(tmp_path, scanned([tmp_path], {}, "", template), [tar])
    reason = "tar_not_indexed" if "000" in template else "no_tar_path"
    assert ledger.rows_out == rows_out
    assert ledger.rejected == ({} if rows_out else {reason: 1})


@pytest.mark.parametrize("template", ["audio_{shard}.tar", "audio_{}.tar", "{shard_id:s}.tar"])
def test_what_is_no_template_is_refused(tmp_path, template):
    with refused("is no template of tars"):
        manifest_of("train", [tmp_path / "train.jsonl"], tar_template=template)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "root, template, prefix, path_map",
    [
        ("", "audio_{shard_id}.tar", "train/", {}),
        ("other", "{split}/audio__OP_0..3_CL_.tar", "other/train/", {}),
        ("", "audio_{shard_id}.tar", "other/train/", {"{folder}": "{folder}/other"}),
    ],
)
def test_nemos_layout_is_read_as_it_is(tmp_path, whole, root, template, prefix, path_map):
    (tmp_path / "train/sharded_manifests").mkdir(parents=True)
    rows = [nemo(f"u{shard}.wav", shard_id=shard) for shard in (0, 1)]
    if whole:
        write_jsonl(tmp_path / "train/tarred_audio_manifest.json", rows)
    else:
        for row in rows:
            name = f"sharded_manifests/manifest_{row['shard_id']}.json"
            write_jsonl(tmp_path / "train" / name, [row])
    tars = [
        write_tar(tmp_path / f"{prefix}audio_{shard}.tar", [f"u{shard}.wav"]) for shard in (0, 1)
    ]
    paths = {
        old.format(folder=tmp_path): new.format(folder=tmp_path) for old, new in path_map.items()
    }
    manifests = scanned([tmp_path], {}, root and str(tmp_path / root), template, path_map=paths)
    assert manifests[0].tars == sorted(map(str, tars))
    (ledger,) = build_all(tmp_path, manifests, tars)
    assert (ledger.rows_in, ledger.rows_out) == (2, 2)


def test_rows_that_are_parts_of_a_member_are_rejected_all_of_them(tmp_path):
    # NeMo, told not to slice, keeps a file once and names its further rows -sub1 and so on. Others
    # name the file again.
    tar = write_tar(tmp_path / "audio_0.tar", ["a.wav", "b-sub1.wav", "c.wav", "d.wav", "e.wav"])
    parts = [
        ("a.wav", 0.0),
        ("a-sub1.wav", 3.0),
        ("a-sub2.wav", 0),
        ("b-sub1.wav", None),
        ("c.wav", 0),
        ("d.wav", 0.0),
        ("d.wav", 3.0),
        ("e.wav", None),
        ("e.wav", 3.0),
    ]
    rows = [nemo(name, offset=offset, tar=str(tar)) for name, offset in parts]
    write_jsonl(tmp_path / "train.json", rows)
    (ledger,) = build_all(tmp_path, scanned([tmp_path], {}), [tar])
    assert ledger.rejected == {"segment_of_member": 7} and ledger.rows_out == 2
    # Another part may be a row of another split.
    write_jsonl(tmp_path / "dev.json", [nemo("c.wav", offset=5.0, tar=str(tar))])
    ledger, _ = build_all(tmp_path, scanned([tmp_path], {}), [tar])
    assert ledger.rejected == {"segment_of_member": 8} and ledger.rows_out == 1
    # A parquet of them is refused, also of whole seconds.
    whole = [nemo(name, offset=int(offset or 0), tar=str(tar)) for name, offset in parts]
    for number, written in enumerate((rows, whole)):
        path = write_manifest(tmp_path / f"{number}.parquet", written)
        with refused("offset has rows that begin within a member"):
            manifest_of("train", [path]).scan()


def test_rows_that_nemo_is_told_to_skip_are_left_out_and_are_no_errors(tmp_path):
    words = [True, 1, "low character-rate", False, 0, "", None]
    tar = write_tar(tmp_path / "audio_0.tar", [f"{number}.wav" for number in range(len(words))])
    rows = [nemo(f"{number}.wav", shard_id=0, _skipme=word) for number, word in enumerate(words)]
    rows.append({**rows[0], "offset": 1.0})
    write_jsonl(tmp_path / "train.json", rows)
    ledgers = build_all(tmp_path, scanned([tmp_path], {}), [tar])
    assert ledgers[0].rejected == {"skipme": 4} and ledgers[0].rows_out == 4
    buckets.check_errors(ledgers, 0.0, tmp_path / "out")


def test_a_jsonl_manifest_in_utf_16_says_so(tmp_path):
    rows, index = corpus(tmp_path, tars=1, members=3)
    manifest = write_jsonl(tmp_path / "train.jsonl", rows)
    manifest.write_text(manifest.read_text(), encoding="utf-16")
    with refused("json_encoding"):
        build_train(tmp_path / "out", index, manifest)


def test_the_speech_lanes_index_needs_no_tar_index(tmp_path, out):
    index = speech_index(tmp_path)
    manifests = scanned([index], {}, transcript="human_transcript")
    built = buckets.build(manifests, None, out, BucketChoices())
    ledgers = {ledger.scope: ledger for ledger in built}
    assert {name: ledger.rows_in for name, ledger in ledgers.items()} == {
        "train": 7,
        "dev": 3,
        "test": 3,
    }
    assert ledgers["train"].rejected == {"empty_transcript": 1, "tar_missing": 1}
    rows = train_rows(out)
    for split in ("dev", "test"):
        rows += rows_of(tmp_path / f"out/{split}.parquet")
    assert len(rows) == 11
    for row in rows:
        assert f":{row['tar_member_name']}:" in content(row).decode()
        assert row["transcript"] == f"human {int(row['tar_member_name'][1:-5])}"
    assert rejects(out)[-1]["detail"] == "No such file or directory"


def test_splits_and_addresses_of_an_index_that_lacks_some(tmp_path, out):
    rows = rows_of(speech_index(tmp_path))
    for row, split in zip(rows, itertools.cycle(["valid", "val", "dev"]), strict=False):
        row["split"] = split
    rows[0]["offset"] = None
    manifests = scanned(
        [write_manifest(tmp_path / "shards/index.parquet", rows)], {}, transcript="asr_transcript"
    )
    assert {manifest.split: manifest.rows for manifest in manifests} == {"train": 0, "dev": 13}
    with refused(r"left of 0\. No segment of that split is"):
        buckets.build(manifests, None, out, BucketChoices())
    assert {row["reason"] for row in rejects(out)} == {"not_a_file", "tar_missing"}


def test_rows_that_stand_twice_are_part_of_a_manifests_content(tmp_path):
    rows, _ = corpus(tmp_path, tars=1, members=2)
    contents = set()
    for name, first in (("a", rows[0]), ("b", rows[1])):
        path = write_jsonl(tmp_path / f"{name}.jsonl", [first, first])
        contents.add(manifest_of("train", [path]).facts(0)["content"])
    assert len(contents) == 2
