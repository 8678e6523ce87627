"""The step build_tar_indices and its file: addresses that give the bytes, small, the same every time,
honest."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.asr import build_tar_indices
from millrace.asr.tars.header import DIRECTORY, FILE, MISSING, SPARSE
from millrace.asr.tars.index import TarIndex, check_unchanged, reason_of, write_index
from millrace.asr.tars.scan import scan
from millrace.common.errors import MillraceError

RNG = np.random.default_rng(3)


def body_of(name: str, size: int) -> bytes:
    return (hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest() * (size // 32 + 1))[:size]


def write_tar(path: Path, names: list[str], size: int = 2000, start: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for number, name in enumerate(names):
            body = body_of(name, size + number % 700)
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


@pytest.fixture
def corpus(tmp_path) -> dict[str, Path]:
    """Tars that are right and tars that are not."""
    tars = {
        "good": write_tar(tmp_path / "in/good.tar", [f"./clip_{i:04d}.flac" for i in range(300)]),
        "keys": write_tar(
            tmp_path / "in/keys.tar",
            ["a.flac", "a.json", ".a.flac", "./b.flac", "b.flac", "naïve/日.wav", "x\udcff"],
        ),
        "damaged": write_tar(tmp_path / "in/damaged.tar", [f"d{i}" for i in range(20)]),
        "cut": write_tar(tmp_path / "in/cut.tar", [f"c{i}" for i in range(20)]),
        "empty": write_tar(tmp_path / "in/empty.tar", []),
        "missing": tmp_path / "in/missing.tar",
        "text": tmp_path / "in/text.tar",
        "zero": tmp_path / "in/zero.tar",
    }
    content = bytearray(tars["damaged"].read_bytes())
    content[content.index(b"d7\0") + 1] ^= 3
    tars["damaged"].write_bytes(content)
    content = tars["cut"].read_bytes()
    tars["cut"].write_bytes(content[: content.index(b"c15\0") + 600])
    tars["text"].write_text("no tar\n" * 1000)
    tars["zero"].touch()
    return tars


def run(
    tmp_path: Path, *source: str, status: int = 0, name: str = "index", **options: str
) -> tuple[Path, dict]:
    output, report = tmp_path / f"out/{name}.parquet", tmp_path / f"out/{name}.json"
    flags = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", value)]
    code = build_tar_indices.main([*source, "--output", str(output), "--report", str(report), *flags])
    assert code == status
    return output, json.loads(report.read_text())


def run_tars(tmp_path: Path, tars: dict[str, Path], **options) -> tuple[Path, dict]:
    return run(tmp_path, "--tars", *[str(path) for path in tars.values()], **options)


def test_every_address_gives_the_bytes_and_every_tar_is_accounted_for(tmp_path, corpus, capsys):
    output, report = run_tars(tmp_path, corpus)
    assert {Path(tar["path"]).stem: tar["status"] for tar in report["tars"]} == {
        "good": "ok", "keys": "ok", "damaged": "damaged", "cut": "truncated", "empty": "empty", "missing": "missing",
        "text": "not_a_tar", "zero": "zero_length",
    }  # fmt: skip
    tars, members = report["ledgers"]
    assert (tars["rows_in"], tars["rows_out"], tars["rejected"]) == (
        8,
        5,
        {"missing": 1, "not_a_tar": 1, "zero_length": 1},
    )
    assert members["rejected"] == {"cut": 1} and members["rows_out"] == 300 + 7 + 19 + 15
    log = capsys.readouterr().err
    assert all(str(corpus[name]) in log for name in ("damaged", "cut", "missing", "text", "zero"))
    with TarIndex.open(output) as index:
        checked = 0
        for tar in corpus.values():
            found = index.members(tar)
            content = tar.read_bytes() if len(found) else b""
            for name, offset, size in zip(found.names, found.offsets, found.sizes, strict=True):
                if offset >= 0:
                    original = f"./{name}" if name.startswith("clip") else name
                    body = content[offset : offset + size]
                    assert body in (body_of(original, size), body_of("./" + name, size))
                    checked += 1
        assert checked == members["rows_out"]
        assert index.record(corpus["damaged"]).recovered == 12
        assert int(index.members(corpus["damaged"]).recovered.sum()) == 12


def test_the_index_is_small_and_the_same_bytes_every_time(tmp_path, corpus):
    sizes = RNG.integers(50_000, 250_000, 20_000)
    path = tmp_path / "big.tar"
    with open(path, "wb") as handle:
        for number, size in enumerate(sizes.tolist()):
            info = tarfile.TarInfo(f"{number:08d}.flac")
            info.size = size
            handle.write(info.tobuf(tarfile.GNU_FORMAT))
            handle.seek((size + 511) // 512 * 512, 1)
        handle.write(bytes(1024))
    tars = {**corpus, "big": path}
    first, report = run_tars(tmp_path, tars, name="first", threads="1", chains="1")
    second, _ = run_tars(tmp_path, tars, name="second", threads="3", chains="16")
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".json").read_bytes() == second.with_suffix(".json").read_bytes()
    columns = pq.ParquetFile(first).metadata
    names = sum(columns.row_group(g).column(1).total_compressed_size for g in range(columns.num_row_groups))
    assert columns.schema.column(1).name == "name"
    members = report["ledgers"][1]["rows_in"]
    assert (first.stat().st_size - names) / members <= 8
    with TarIndex.open(first) as index:
        assert index.members(path).sizes.tolist() == sizes.tolist()


def test_lookup_with_and_without_prefix_last_of_duplicates_and_reasons(tmp_path):
    path = tmp_path / "a.tar"
    sparse = tarfile.TarInfo("sparse")
    sparse.type = tarfile.GNUTYPE_SPARSE
    folder = tarfile.TarInfo("folder")
    folder.type = tarfile.DIRTYPE
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for name, body in [
            ("./a", b"first"),
            ("x\udcff", b"raw"),
            ("a", b"second"),
            (".a", b"hidden"),
            ("./é", b"accent"),
        ]:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        tar.addfile(sparse)
        tar.addfile(folder)
    output, report = run(tmp_path, "--tars", str(path))
    assert report["tars"][0]["duplicates"] == 1
    names = ["a", "./a", ".a", "./.a", "x\udcff", "é", "./é", "sparse", "folder", "none", "./none"]
    with TarIndex.open(output) as index:
        offsets, sizes, kinds = index.lookup(path, names)
        content = path.read_bytes()
        bodies = [
            content[offset : offset + size]
            for offset, size in zip(offsets, sizes, strict=True)
            if offset >= 0
        ]
        assert bodies == [b"second", b"second", b"hidden", b"hidden", b"raw", b"accent", b"accent"]
        assert kinds.tolist() == [FILE] * 7 + [SPARSE, DIRECTORY, MISSING, MISSING]
        assert (
            "sparse" in reason_of(kinds[7])
            and "not in this tar" in reason_of(kinds[9])
            and reason_of(FILE) == ""
        )
        for array in (
            pa.array(["a", "./é", "none", None]),
            pa.chunked_array([["a"], ["é", "none", None]]).dictionary_encode(),
        ):
            offsets, sizes, kinds = index.lookup(path, array)
            assert sizes.tolist() == [6, 6, 0, 0] and offsets[2] == offsets[3] == -1
        assert len(index.lookup(path, [])[0]) == 0
        with pytest.raises(MillraceError, match="does not hold"):
            index.lookup(tmp_path / "other.tar", ["a"])


def test_many_small_tars_share_row_groups(tmp_path):
    tars = {
        str(n): write_tar(tmp_path / f"{n}.tar", [f"{n}-{i}" for i in range(n % 5)], 20) for n in range(60)
    }
    output, _ = run_tars(tmp_path, tars)
    assert pq.ParquetFile(output).num_row_groups == 1
    with TarIndex.open(output) as index:
        for n in (59, 0, 31, 7):
            assert index.members(tars[str(n)]).names == [f"{n}-{i}" for i in range(n % 5)]


def test_tars_larger_than_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.asr.tars.index.ROW_GROUP", 10)
    tars = [
        write_tar(tmp_path / f"{n}.tar", [f"{n}-{i}" for i in range(n)], 20) for n in (4, 25, 0, 3, 12, 1)
    ]
    records = write_index(tmp_path / "i.parquet", [scan(tar) for tar in tars])
    assert [record.first_row for record in records] == [0, 4, 29, 29, 32, 44]
    with TarIndex.open(tmp_path / "i.parquet") as index:
        for tar in tars:
            assert index.members(tar).names == [f"{tar.stem}-{i}" for i in range(int(tar.stem))]


def change_size(path: Path) -> None:
    with open(path, "ab") as handle:
        handle.write(bytes(512))


def change_time(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def change_last_header(path: Path) -> None:
    state, content = path.stat(), bytearray(path.read_bytes())
    content[content.rindex(b"clip_")] = ord("k")
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (change_size, "bytes then"),
        (change_time, "modification time"),
        (change_last_header, "headers differ"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_tar_that_has_changed_is_refused_with_the_command(tmp_path, corpus, change, word):
    output, _ = run_tars(tmp_path, corpus)
    with TarIndex.open(output) as index:
        index.check_unchanged(corpus["good"])
        index.check_unchanged(corpus["damaged"])
        change(corpus["good"])
        with pytest.raises(MillraceError, match=word) as error:
            check_unchanged(corpus["good"], index.tars[str(corpus["good"])])
        assert "snakemake asr_data" in str(error.value) and str(corpus["good"]) in str(error.value)
        with pytest.raises(MillraceError, match="no tar header"):
            index.check_unchanged(corpus["text"])


def test_an_index_that_is_none_says_so(tmp_path):
    with pytest.raises(MillraceError, match="no tar index"):
        TarIndex.open(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("text", "other"):
        with pytest.raises(MillraceError, match="not a tar index"):
            TarIndex.open(tmp_path / f"{name}.parquet")


def test_partition_files(tmp_path, corpus, capsys):
    def entry(path: Path, **changes: int) -> dict:
        state = path.stat()
        return {"path": str(path), "size": state.st_size, "mtime_ns": state.st_mtime_ns, **changes}

    partition = tmp_path / "p1.json"
    tars = [
        entry(corpus["good"]),
        entry(corpus["keys"], mtime_ns=5),
        {"path": str(corpus["empty"])},
        entry(corpus["good"]),
    ]
    partition.write_text(json.dumps({"id": "p1", "tars": tars}))
    output, report = run(tmp_path, "--partition", str(partition))
    assert report["partition"] == "p1" and [Path(tar["path"]).stem for tar in report["tars"]] == [
        "good",
        "keys",
        "empty",
    ]
    assert report["ledgers"][0]["warnings"] == {"changed_since_parsed": 1, "empty": 1}
    assert f"{corpus['keys']}: has changed" in capsys.readouterr().err
    partition.write_text(json.dumps({"id": "p2", "tars": []}))
    output, report = run(tmp_path, "--partition", str(partition))
    assert TarIndex.open(output).tars == {} and report["tars"] == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"tars": []}', '{"id": "x", "tars": [{"size": 1}]}', '{"id": "x", "tars": 3}']
)
def test_a_broken_partition_file_is_one_clear_line(tmp_path, content, capsys):
    (tmp_path / "p.json").write_text(content)
    flags = ["--output", str(tmp_path / "i.parquet"), "--report", str(tmp_path / "r.json")]
    assert build_tar_indices.main(["--partition", str(tmp_path / "p.json"), *flags]) == 1
    assert "not a partition of tars" in capsys.readouterr().err
    assert build_tar_indices.main(["--partition", str(tmp_path / "none.json"), *flags]) == 1


def test_manifest_folders(tmp_path, corpus, capsys):
    for split, names in (("train", ["good", "keys", "good"]), ("test", ["keys", "missing"])):
        pq.write_table(
            pa.table({"tar_path": [str(corpus[name]) for name in names]}), tmp_path / f"{split}.parquet"
        )
    _, report = run(tmp_path, "--manifest-dir", str(tmp_path))
    assert sorted(Path(tar["path"]).stem for tar in report["tars"]) == ["good", "keys", "missing"]
    flags = ["--output", str(tmp_path / "i.parquet"), "--report", str(tmp_path / "r.json")]
    pq.write_table(pa.table({"tar": ["x"]}), tmp_path / "dev.parquet")
    assert build_tar_indices.main(["--manifest-dir", str(tmp_path), *flags]) == 1
    assert build_tar_indices.main(["--manifest-dir", str(tmp_path / "in"), *flags]) == 1
    log = capsys.readouterr().err
    assert "tar_path" in log and "neither train.parquet" in log


def test_too_many_failures_stop_the_step_after_the_report(tmp_path, corpus, capsys):
    bad = {name: corpus[name] for name in ("missing", "text")}
    run_tars(tmp_path, bad, status=0)
    _, report = run_tars(tmp_path, bad, status=1, max_failed="0.9")
    assert report["statuses"] == {"missing": 1, "not_a_tar": 1} and "2 of 2 tars" in capsys.readouterr().err
    run_tars(tmp_path, corpus, status=1, max_failed="0.2")
    run_tars(tmp_path, corpus, status=0, max_failed="0.5")


def test_read_only_folders_and_names_that_are_not_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"t\xe4r")
    path = write_tar(folder / "a.tar", ["a"])
    before = sorted(os.listdir(folder))
    folder.chmod(0o555)
    output, report = run(tmp_path, "--tars", str(path))
    folder.chmod(0o755)
    assert sorted(os.listdir(folder)) == before
    with TarIndex.open(output) as index:
        assert index.members(path).names == ["a"] and report["tars"][0]["path"] == str(path)
