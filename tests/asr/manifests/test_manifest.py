"""Manifests of every kind become the same rows: parquet of odd types, NeMo-style JSONL, the speech index."""

from __future__ import annotations

import decimal
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.asr.buckets import build as buckets
from millrace.asr.buckets.build import BucketChoices
from millrace.asr.buckets.edges import SEED_EDGES, bucket_ids
from millrace.asr.buckets.join import TarIndices
from millrace.asr.manifests.manifest import manifests_of, speech_manifests
from millrace.common.errors import MillraceError
from tests.asr.bucket_corpus import (
    build_from,
    built_corpus,
    content,
    corpus,
    files,
    index_of,
    rejects,
    rows_of,
    speech_index,
    write_manifest,
    write_tar,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict], Path]:
    return built_corpus(tmp_path_factory.mktemp("corpus"))


COLUMN_TYPES = {
    "large": lambda t: t.cast(
        pa.schema([(f.name, pa.large_string() if pa.types.is_string(f.type) else f.type) for f in t.schema])
    ),
    "dictionary": lambda t: pa.table(
        {n: t[n].dictionary_encode() if n != "duration_s" else t[n] for n in t.column_names}
    ),
    "binary": lambda t: t.cast(
        pa.schema([(f.name, pa.binary() if pa.types.is_string(f.type) else f.type) for f in t.schema])
    ),
    "float32": lambda t: t.set_column(4, "duration_s", t["duration_s"].cast(pa.float32())),
    "decimal": lambda t: t.set_column(
        4, "duration_s", pa.array([decimal.Decimal(str(v)) for v in t["duration_s"].to_pylist()])
    ),
    "text": lambda t: t.set_column(4, "duration_s", pa.array([str(v) for v in t["duration_s"].to_pylist()])),
    "int": lambda t: t.set_column(
        4, "duration_s", pa.array([math.ceil(v) for v in t["duration_s"].to_pylist()])
    ),
    "duration": lambda t: t.set_column(
        4, "duration_s", pa.array([int(v * 1000) for v in t["duration_s"].to_pylist()], pa.duration("ms"))
    ),
    "other names": lambda t: t.rename_columns(["tar", "member", "text", "lang", "duration"]).append_column(
        "extra", t["language"]
    ),
    "no language": lambda t: t.drop_columns(["language"]),
    "null language": lambda t: t.set_column(3, "language", pa.nulls(len(t))),
}


@pytest.mark.parametrize("kind", COLUMN_TYPES)
def test_columns_of_other_types_give_the_same_rows(built, tmp_path: Path, kind: str) -> None:
    folder, rows, index = built
    pq.write_table(COLUMN_TYPES[kind](pa.Table.from_pylist(rows)), tmp_path / "train.parquet")
    (ledger,) = build_from(tmp_path / "out", index, train=tmp_path / "train.parquet").values()
    assert ledger.rows_out == len(rows), ledger
    if kind in ("large", "dictionary", "binary", "decimal", "text", "other names"):
        assert files(tmp_path / "out") == files(folder / "out")
    elif "language" in kind:
        assert all(row["language"] is None for row in rows_of(tmp_path / "out/train/b_3_5.parquet"))


@pytest.mark.parametrize("values", [["4.5", "abc", " 6 ", "nan", None], [True, False, True, True, None]])
def test_durations_that_are_no_numbers(tmp_path: Path, values: list) -> None:
    rows, index = corpus(tmp_path, tars=1, members=6)
    for row, value in zip(rows, [*values, values[0]], strict=True):
        row["duration_s"] = value
    if values[0] is True:
        with pytest.raises(MillraceError, match="no train row is left"):
            build_from(tmp_path / "out", index, train=write_manifest(tmp_path / "train.parquet", rows))
    else:
        (ledger,) = build_from(
            tmp_path / "out", index, train=write_manifest(tmp_path / "train.parquet", rows)
        ).values()
        assert ledger.rejected == {"duration_not_numeric": 1, "duration_nan": 1, "duration_missing": 1}
        assert ledger.rows_out == 3


def test_bytes_that_are_not_utf8_are_rejected(tmp_path: Path) -> None:
    rows, index = corpus(tmp_path, tars=1, members=5)
    table = pa.Table.from_pylist(rows)
    texts = [b"caf\xe9", *[text.encode() for text in table["transcript"].to_pylist()[1:]]]
    bad = pa.array(texts, pa.binary())
    pq.write_table(table.set_column(2, "transcript", bad), tmp_path / "bytes.parquet")
    # The same column, declared as text by a writer that does not look.
    declared = pa.Array.from_buffers(pa.string(), len(bad), bad.buffers())
    pq.write_table(table.set_column(2, "transcript", declared), tmp_path / "text.parquet")
    for name in ("bytes", "text"):
        (ledger,) = build_from(tmp_path / name, index, train=tmp_path / f"{name}.parquet").values()
        assert ledger.rejected == {"text_not_utf8": 1} and ledger.rows_out == 4


def test_nemo_jsonl(tmp_path: Path) -> None:
    tars = [
        write_tar(tmp_path / f"audio_{shard}.tar", [f"a{shard}_{n}.wav" for n in range(5)])
        for shard in range(2)
    ]
    index = index_of(tars, tmp_path / "index.parquet")
    lines = [
        json.dumps(
            {
                "audio_filepath": f"a{shard}_{n}.wav",
                "duration": 1 + n,
                "text": f"t{n}",
                "shard_id": shard,
                "lang": "en",
            }
        )
        for shard in range(2)
        for n in range(5)
    ]
    lines[3] = json.dumps(
        {"audio_filepath": "./a0_3.wav", "duration": 4, "text": "t", "tar": "audio_0.tar", "offset": 2.5}
    )
    lines += [
        "{broken",
        "[1, 2]",
        "",
        json.dumps({"audio_filepath": "a0_3.wav", "duration": "4.0", "text": "\ud800", "shard_id": 0}),
    ]
    lines += [
        json.dumps({"audio_filepath": "a0_3.wav", "duration": {"s": 4}, "text": "t", "shard_id": 0}),
        json.dumps({"text": "no tar"}),
    ]
    (tmp_path / "train.jsonl").write_text("\ufeff" + "\n".join(lines))
    (ledger,) = build_from(tmp_path / "out", index, train=tmp_path / "train.jsonl").values()
    expected = ("segment_of_member", "json_damaged", "not_an_object", "duration_not_numeric", "no_tar_path")
    assert ledger.rejected == dict.fromkeys(expected, 1)
    assert ledger.rows_out == 10
    assert ledger.repaired == {"json_bom": 1, "json_surrogate": 1}
    # One manifest per shard, without shard_id: the number is in the name.
    (tmp_path / "manifest_1.json").write_text(
        json.dumps({"audio_filepath": "a1_0.wav", "duration": 2, "text": "t"})
    )
    (ledger,) = build_from(tmp_path / "out2", index, train=tmp_path / "manifest_1.json").values()
    assert ledger.rows_out == 1


def test_lists_and_structs_are_no_texts(tmp_path: Path) -> None:
    rows, index = corpus(tmp_path, tars=1, members=6)
    table = pa.Table.from_pylist(rows)
    words = [["two", "words"], None, *[None] * 4]
    pq.write_table(table.set_column(2, "transcript", pa.array(words)), tmp_path / "lists.parquet")
    with pytest.raises(MillraceError, match="'empty_transcript': 5, 'text_is_nested': 1"):
        build_from(tmp_path / "out", index, train=tmp_path / "lists.parquet")
    lists = pa.array([[row["tar_path"]] for row in rows])
    pq.write_table(table.set_column(0, "tar_path", lists), tmp_path / "tars.parquet")
    with pytest.raises(MillraceError, match="'text_is_nested': 6"):
        build_from(tmp_path / "out", index, train=tmp_path / "tars.parquet")
    rows[0]["transcript"], rows[1]["tar_member_name"], rows[2]["transcript"] = {"text": "x"}, ["a.flac"], 7
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (ledger,) = build_from(tmp_path / "out", index, train=tmp_path / "train.jsonl").values()
    assert ledger.rejected == {"text_is_nested": 2} and ledger.rows_out == 4


def test_no_flipped_byte_of_a_parquet_raises_or_loses_rows(tmp_path: Path) -> None:
    rows = [
        {
            "tar_path": f"/a/{n % 9}.tar",
            "tar_member_name": f"m{n}",
            "transcript": f"t {n}",
            "duration_s": 1.0 + n,
        }
        for n in range(600)
    ]
    path = write_manifest(tmp_path / "train.parquet", rows, compression="none", row_group_size=200)
    whole, rng = path.read_bytes(), np.random.default_rng(5)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(0, len(whole))] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            (manifest,) = (found.scan() for found in manifests_of("train", [path], "", ""))
            assert sum(len(table) for task in manifest.tasks for table in manifest.read(task)) == 600
        except MillraceError as error:
            assert str(path) in str(error)
            refused += 1
    assert 0 < refused < 150


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    rows, index = corpus(tmp_path, tars=1, members=3)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.append_column("tar_path", table["tar_path"]), tmp_path / "train.parquet")
    with pytest.raises(MillraceError, match="several columns named tar_path"):
        build_from(tmp_path / "out", index, train=tmp_path / "train.parquet")


@pytest.mark.parametrize(
    ("shard", "template", "rows_out"),
    [(1.0, "audio_{shard_id}.tar", 1), ("1", "audio_{shard_id:d}.tar", 1), ("1", "audio_{shard_id}.tar", 1),
     (1, "audio__OP_0..3_CL_.tar", 1), ("1", "audio_{0..1023}.tar", 1), (1, "audio_{000..123}.tar", 0),
     ([1], "audio_{shard_id}.tar", 0), (True, "audio_{shard_id}.tar", 0)],
)  # fmt: skip
def test_shard_ids_of_other_types(tmp_path: Path, shard: object, template: str, rows_out: int) -> None:
    index = index_of([write_tar(tmp_path / "audio_1.tar", ["a.wav"])], tmp_path / "index.parquet")
    good = {"audio_filepath": "a.wav", "duration": 2, "text": "t", "tar": str(tmp_path / "audio_1.tar")}
    line = {"audio_filepath": "./a.wav", "duration": 3, "text": "t", "shard_id": shard}
    (tmp_path / "train.jsonl").write_text(json.dumps(good))
    (tmp_path / "dev.jsonl").write_text(json.dumps(line))
    found = [
        manifest.scan()
        for split in ("train", "dev")
        for manifest in manifests_of(split, [tmp_path / f"{split}.jsonl"], "", template)
    ]
    ledgers = buckets.build(found, TarIndices([index]), tmp_path / "out", BucketChoices())
    reason = "tar_not_indexed" if "000" in template else "no_tar_path"
    assert ledgers[0].rows_out == rows_out and ledgers[0].rejected == ({} if rows_out else {reason: 1})


def test_a_jsonl_manifest_in_utf_16_says_so(tmp_path: Path) -> None:
    rows, index = corpus(tmp_path, tars=1, members=3)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-16")
    with pytest.raises(MillraceError, match="json_encoding"):
        build_from(tmp_path / "out", index, train=tmp_path / "train.jsonl")


def test_the_speech_lanes_index_needs_no_tar_index(tmp_path: Path) -> None:
    index = speech_index(tmp_path)
    manifests = speech_manifests(index, "", "human_transcript")
    ledgers = {
        ledger.scope: ledger for ledger in buckets.build(manifests, None, tmp_path / "out", BucketChoices())
    }
    assert {name: ledger.rows_in for name, ledger in ledgers.items()} == {"train": 7, "dev": 3, "test": 3}
    assert ledgers["train"].rejected == {"empty_transcript": 1, "tar_not_indexed": 1}
    rows = [
        row
        for bucket in bucket_ids(SEED_EDGES)
        for row in rows_of(tmp_path / "out" / "train" / f"{bucket}.parquet")
    ]
    rows += rows_of(tmp_path / "out" / "dev.parquet") + rows_of(tmp_path / "out" / "test.parquet")
    assert len(rows) == 11
    for row in rows:
        assert f":{row['tar_member_name']}:" in content(row).decode()
        assert row["transcript"] == f"human {int(row['tar_member_name'][1:-5])}"
    assert rejects(tmp_path / "out")[-1]["detail"] == "No such file or directory"
