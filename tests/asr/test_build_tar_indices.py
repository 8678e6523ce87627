"""The step build_tar_indices and its file: addresses that give the bytes, small, the same every
time."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.asr import build_tar_indices
from millrace.asr.tars.index import TarIndex, write_index
from millrace.asr.tars.scan import scan
from millrace.asr.tars.stamp import Stamp
from millrace.common.errors import MillraceError
from tests.asr.bucket_corpus import write_tar
from tests.asr.tars.test_scan import info_of, tar_of, write_holes
from tests.refusals import refused

KEYS = ["a.flac", "a.json", ".a.flac", "./b.flac", "b.flac", "naïve/日.wav", "x\udcff"]


@pytest.fixture
def corpus(tmp_path) -> dict[str, Path]:
    """Tars that are right and tars that are not."""
    tars = {
        "good": write_tar(tmp_path / "in/good.tar", [f"./clip_{i:04d}.flac" for i in range(300)]),
        "keys": write_tar(tmp_path / "in/keys.tar", KEYS),
        "damaged": write_tar(tmp_path / "in/damaged.tar", [f"d{i}" for i in range(20)]),
        "cut": write_tar(tmp_path / "in/cut.tar", [f"c{i}" for i in range(20)]),
        "empty": write_tar(tmp_path / "in/empty.tar", []),
        "missing": tmp_path / "in/missing.tar",
        "text": tmp_path / "in/text.tar",
        "zero": tmp_path / "in/zero.tar",
    }
    tars["damaged"].write_bytes(tars["damaged"].read_bytes().replace(b"d7\0", b"d4\0", 1))
    content = tars["cut"].read_bytes()
    tars["cut"].write_bytes(content[: content.index(b"c15\0") + 520])
    tars["text"].write_text("no tar\n" * 1000)
    tars["zero"].touch()
    return tars


def run(tmp_path: Path, tars: Iterable[Path], *flags: str, name: str = "p") -> tuple:
    """Index a partition of tars; returns index and report."""
    output, report, partition = (
        tmp_path / f"out/{name}{end}" for end in (".parquet", ".json", ".in")
    )
    entries = [{"path": str(tar)} for tar in tars]
    partition.parent.mkdir(exist_ok=True, parents=True)
    partition.write_text(json.dumps({"id": name, "tars": entries}))
    files = ["--partition", str(partition), "--output", str(output), "--report", str(report)]
    assert build_tar_indices.main([*files, *flags]) == 0
    return output, json.loads(report.read_text())


def text(members: pa.Table) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in members["name"].to_pylist()]


def test_every_address_gives_the_bytes_and_every_tar_is_accounted_for(tmp_path, corpus, capsys):
    output, report = run(tmp_path, corpus.values())
    assert {Path(tar["path"]).stem: tar["status"] for tar in report["tars"]} == {
        "good": "ok",
        "keys": "ok",
        "damaged": "damaged",
        "cut": "truncated",
        "empty": "empty",
        "missing": "missing",
        "text": "not_a_tar",
        "zero": "zero_length",
    }
    tars, ledger = report["ledgers"]
    assert (tars["rows_in"], tars["rows_out"]) == (8, 5)
    assert tars["rejected"] == {"missing": 1, "not_a_tar": 1, "zero_length": 1}
    assert ledger["rejected"] == {} and ledger["rows_out"] == 300 + 7 + 19 + 15
    log = capsys.readouterr().err
    assert all(str(corpus[name]) in log for name in ("damaged", "cut", "missing", "text", "zero"))
    index, checked = TarIndex.open(output), 0
    for tar in corpus.values():
        members = index.members(str(tar))
        addresses = (members[column].to_pylist() for column in ("offset", "size"))
        content = tar.read_bytes() if len(members) else b""
        for name, offset, size in zip(text(members), *addresses, strict=True):
            if offset >= 0:
                body = content[offset : offset + size].decode("utf-8", "surrogateescape")
                assert body.startswith((f"in/{tar.name}:{name}:", f"in/{tar.name}:./{name}:"))
                checked += 1
    assert checked == ledger["rows_out"]
    assert index.tars[str(corpus["damaged"])].recovered == 12
    assert sum(index.members(str(corpus["damaged"]))["recovered"].to_pylist()) == 12


def test_the_index_is_small_and_the_same_bytes_every_time(tmp_path, corpus):
    sizes = np.random.default_rng(3).integers(50_000, 250_000, 20_000)
    path = write_holes(tmp_path / "big.tar", sizes.tolist())
    tars = {**corpus, "big": path}
    first, report = run(tmp_path / "first", tars.values(), "--threads=1")
    second, _ = run(tmp_path / "second", tars.values(), "--threads=3")
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".json").read_bytes() == second.with_suffix(".json").read_bytes()
    meta = pq.ParquetFile(first).metadata
    names = sum(
        meta.row_group(g).column(1).total_compressed_size for g in range(meta.num_row_groups)
    )
    assert meta.schema.column(1).name == "name"
    assert (first.stat().st_size - names) / report["ledgers"][1]["rows_in"] <= 8
    assert TarIndex.open(first).members(str(path))["size"].to_pylist() == sizes.tolist()


def test_a_tar_that_was_replaced_is_read_again(tmp_path):
    path = write_tar(tmp_path / "a.tar", ["old"])
    run(tmp_path, [path])
    write_tar(path, ["new"])
    output, _ = run(tmp_path, [path])
    assert text(TarIndex.open(output).members(str(path))) == ["new"]


def test_an_index_as_json_lies_beside_each_tar(tmp_path, corpus):
    run(tmp_path, corpus.values(), "--json")
    beside = {name: tar.with_name(f"{tar.name}.index.json") for name, tar in corpus.items()}
    there = {name for name, path in beside.items() if path.exists()}
    assert there == {"good", "keys", "damaged", "cut", "empty"}
    of_cut = json.loads(beside["cut"].read_text())
    assert len(of_cut) == 15
    for name, place in of_cut.items():
        member = corpus["cut"].read_bytes()[place["offset"] :]
        assert member.startswith(f"in/cut.tar:{name}:".encode())
    assert len(json.loads(beside["damaged"].read_text())) == 19
    for name in ("good", "keys", "empty"):
        expected = {}
        with tarfile.open(corpus[name], ignore_zeros=True) as tar:
            for member in tar:
                place = {"offset": member.offset_data, "size": member.size}
                expected |= {member.name: place, member.name.removeprefix("./"): place}
        assert json.loads(beside[name].read_text()) == expected
    assert {"./clip_0001.flac", "clip_0001.flac"} <= json.loads(beside["good"].read_text()).keys()
    assert "x\udcff" in json.loads(beside["keys"].read_text())


def test_a_directory_is_counted_and_has_no_address(tmp_path):
    path = tmp_path / "in.tar"
    link = info_of("d/link", kind=tarfile.SYMTYPE, linkname="a")
    path.write_bytes(tar_of(info_of("d", kind=tarfile.DIRTYPE), link, ("d/a", b"abc")))
    _, report = run(tmp_path, [path], "--json")
    (record,) = report["tars"]
    members = report["ledgers"][1]
    assert (record["members"], record["readable"]) == (3, 2)
    assert (members["rows_out"], members["rejected"]) == (2, {"directory": 1})
    beside = json.loads(path.with_name("in.tar.index.json").read_text())
    address = {"offset": 3 * 512, "size": 3}
    assert beside == {"d/link": address, "d/a": address}


def test_json_beside_a_tar_in_a_folder_that_cannot_be_written_is_refused(tmp_path, capsys):
    path = write_tar(tmp_path / "in/a.tar", ["a"])
    (tmp_path / "in/a.tar.index.json").mkdir()
    partition = tmp_path / "p.json"
    partition.write_text(json.dumps({"id": "p", "tars": [{"path": str(path)}]}))
    output = str(tmp_path / "p.parquet")
    flags = ["--partition", str(partition), "--output", output, "--json"]
    assert build_tar_indices.main(flags) == 1
    words = f"{path}.index.json: cannot be written (Is a directory). Leave out --json"
    assert words in capsys.readouterr().err


def test_many_small_tars_share_row_groups(tmp_path):
    tars = [write_tar(tmp_path / f"{n}.tar", [f"{n}-{i}" for i in range(n % 5)]) for n in range(60)]
    output, _ = run(tmp_path, tars)
    assert pq.ParquetFile(output).num_row_groups == 1
    index = TarIndex.open(output)
    for n in (59, 0, 31, 7):
        assert text(index.members(str(tars[n]))) == [f"{n}-{i}" for i in range(n % 5)]


def test_tars_larger_than_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.asr.tars.index.ROW_GROUP", 10)
    counts = (4, 25, 0, 3, 12, 1)
    tars = [write_tar(tmp_path / f"{n}.tar", [f"{n}-{i}" for i in range(n)]) for n in counts]
    records = write_index(tmp_path / "i.parquet", [scan(tar) for tar in tars])
    assert [record.first_row for record in records] == [0, 4, 29, 29, 32, 44]
    index = TarIndex.open(tmp_path / "i.parquet")
    for tar in tars:
        assert text(index.members(str(tar))) == [f"{tar.stem}-{i}" for i in range(int(tar.stem))]


def test_an_index_that_is_none_says_so(tmp_path):
    (tmp_path / "text.parquet").write_text("text")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name, words in (
        ("none", "no tar index"),
        ("text", "not a tar index .* snakemake asr_data -R"),
        ("other", "not a tar index"),
    ):
        with refused(words):
            TarIndex.open(tmp_path / f"{name}.parquet")


def test_a_flipped_bit_gives_no_other_address(tmp_path, corpus):
    """One bit of each third byte: pages and the table of tars have checksums."""
    output, _ = run(tmp_path, [corpus["good"], corpus["cut"]])
    whole = output.read_bytes()

    def content() -> list[object]:
        index = TarIndex.open(output)
        return [(tar, index.members(path).to_pylist()) for path, tar in index.tars.items()]

    right = content()
    # Those of version 0.4 have no checksums.
    table = pq.read_table(output)
    metadata = {b"millrace.tars": pq.ParquetFile(output).metadata.metadata[b"millrace.tars"]}
    pq.write_table(table.replace_schema_metadata(metadata), output)
    assert content() == right
    errors = 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        output.write_bytes(damaged)
        try:
            assert content() == right, place
        except MillraceError:
            errors += 1
    assert errors > len(whole) // 6


def test_a_partition_names_each_tar_once(tmp_path, corpus):
    tars = [corpus["good"], corpus["keys"], corpus["empty"], corpus["good"]]
    _, report = run(tmp_path, tars, name="p1")
    assert report["partition"] == "p1"
    assert [Path(tar["path"]).stem for tar in report["tars"]] == ["good", "keys", "empty"]
    assert report["ledgers"][0]["warnings"] == {"empty": 1}
    # Built again, it is of the tars that are there now.
    output, report = run(tmp_path, [], name="p1")
    assert TarIndex.open(output).tars == {} and report["tars"] == []


def test_the_ledger_sums_over_tars(tmp_path, corpus):
    twins = [
        write_tar(tmp_path / "in/twins0.tar", ["a", "./a", "b", "./b"]),
        write_tar(tmp_path / "in/twins1.tar", ["a", "./a", "././a"]),
    ]
    other = write_tar(tmp_path / "in/other.tar", [f"o{number}" for number in range(6)])
    other.write_bytes(other.read_bytes().replace(b"o2\0", b"o9\0", 1))
    tars = [*twins, other, corpus["damaged"], corpus["cut"], corpus["missing"]]
    _, report = run(tmp_path, tars)
    ledgers = {ledger["unit"]: ledger for ledger in report["ledgers"]}
    assert ledgers["tar"]["warnings"] == {"damaged": 2, "truncated": 1}
    assert ledgers["member"]["warnings"] == {"duplicates": 2 + 2, "recovered": 3 + 12}
    assert ledgers["member"]["rows_in"] == 4 + 3 + 5 + 19 + 15
    assert report["statuses"] == {"damaged": 2, "missing": 1, "ok": 2, "truncated": 1}


@pytest.mark.parametrize("written", [b"", b"more"])
def test_a_tar_that_is_written_while_it_is_read_has_no_index(tmp_path, monkeypatch, written):
    path = write_tar(tmp_path / "a.tar", ["a", "b"])
    before = path.stat().st_mtime_ns

    def write_meanwhile(descriptor: int, size: int) -> str:
        path.write_bytes(path.read_bytes() + written)
        # Storage with coarse times shows what was written by the size alone.
        time = before if written else 5
        os.utime(path, ns=(time, time))
        return ""

    monkeypatch.setattr("millrace.asr.tars.scan.digest", write_meanwhile)
    _, report = run(tmp_path, [path])
    (tar,) = report["tars"]
    assert (tar["status"], tar["reason"], tar["members"]) == (
        "changed",
        "it changed while it was read",
        0,
    )
    assert (tar["size"], tar["mtime_ns"]) == Stamp.of(path)[:2]
    assert report["ledgers"][0]["rejected"] == {"changed": 1}


def test_the_help_says_how_a_partition_file_looks():
    shown = build_tar_indices.make_parser().format_help()
    assert '{"id": "a-name", "tars": [{"path": "a.tar"}' in shown
    assert "results/asr/partitions" in shown


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"tars": []}', '{"id": "x", "tars": [{"size": 1}]}', '{"id": "x", "tars": 3}'],
)
def test_a_broken_partition_file_is_one_clear_line(tmp_path, content, capsys):
    (tmp_path / "p.json").write_text(content)
    flags = ["--output", str(tmp_path / "i.parquet"), "--report", str(tmp_path / "r.json")]
    assert build_tar_indices.main(["--partition", str(tmp_path / "p.json"), *flags]) == 1
    assert "not a partition of tars" in capsys.readouterr().err
    assert build_tar_indices.main(["--partition", str(tmp_path / "none.json"), *flags]) == 1
    assert build_tar_indices.main(flags) == 1
    assert "are of one partition" in capsys.readouterr().err


def test_read_only_folders_and_names_that_are_not_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"t\xe4r")
    path = write_tar(folder / "a.tar", ["a"])
    before = sorted(os.listdir(folder))
    folder.chmod(0o555)
    output, report = run(tmp_path, [path])
    folder.chmod(0o755)
    assert sorted(os.listdir(folder)) == before
    assert text(TarIndex.open(output).members(str(path))) == ["a"] and report["tars"][0][
        "path"
    ] == str(path)
