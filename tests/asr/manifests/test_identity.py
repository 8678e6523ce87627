"""Names in manifests that differ from those in the tar are matched if they mean one member."""

from __future__ import annotations

from pathlib import Path

from tests.asr.bucket_corpus import (
    build_train,
    content,
    index_of,
    rejects,
    row_of,
    train_rows,
    write_tar,
)


def test_a_path_may_be_spelled_in_several_ways_but_not_in_other_characters(tmp_path, out):
    composed, apart = "z/caf\u00e9.wav", "z/cafe\u0301.wav"
    pairs = {
        "d//a.wav": "d/a.wav",
        "d/b.wav": "./d/./b.wav",
        ".hidden": "./.hidden",
        "hidden": "hidden",
        composed: composed,
    }
    path = write_tar(tmp_path / "a.tar", list(pairs))
    rows = [row_of(path, name, transcript=member) for member, name in pairs.items()]
    rows += [row_of(path, name) for name in (apart, "z/\u00e9.wav", "z/\u732b.wav")]
    rows.append(row_of(path, composed, transcript=""))
    ledger = build_train(out, index_of([path], tmp_path / "i.parquet"), rows)
    assert ledger.rejected == {"not_in_tar": 3, "empty_transcript": 1}
    details = {row["tar_member_name"]: row.get("detail") for row in rejects(out)}
    assert "in NFC or NFD, not as here" in details[apart] and details["z/\u00e9.wav"]
    assert details["z/\u732b.wav"] is details[composed] is None
    good = {row["transcript"]: content(row).decode() for row in train_rows(out)}
    assert all(f":{member}:" in good[member] for member in pairs)


def test_a_tar_elsewhere_is_another_one_though_its_path_ends_alike(tmp_path, monkeypatch):
    elsewhere = tmp_path / "data"
    monkeypatch.chdir(tmp_path)
    paths = [Path("a/x.tar"), elsewhere / "a/x.tar", elsewhere / "b/x.tar"]
    rows = [row_of(write_tar(path, ["0.wav"]), "0.wav", transcript=str(path)) for path in paths]
    ledger = build_train(tmp_path / "out", index_of(paths, tmp_path / "i.parquet"), rows)
    assert ledger.rejected == {}
    good = train_rows(tmp_path / "out")
    assert sorted(row["tar_path"] for row in good) == sorted(map(str, paths))
    assert all(row["transcript"] == row["tar_path"] for row in good)
    assert len({row["sample_id"] for row in good}) == 3
