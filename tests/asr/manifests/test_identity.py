"""Names in manifests that differ from those in the tar are matched if they mean one member."""

from __future__ import annotations

from pathlib import Path

from tests.asr.bucket_corpus import build_from, content, index_of, rows_of, write_tar


def test_a_path_and_a_unicode_form_may_be_spelled_in_several_ways(tmp_path: Path) -> None:
    composed, apart = "caf\u00e9.wav", "cafe\u0301.wav"
    pairs = {
        "d//a.wav": "d/a.wav",
        "d/b.wav": "./d/./b.wav",
        f"x/{composed}": f"x/{apart}",
        f"y/{apart}": f"y/{composed}",
    }
    # Both forms are there: each is itself, and a form that could be either is neither.
    pairs |= {f"z/{composed}": f"z/{composed}", f"z/{apart}": f"z/{apart}"}
    path = write_tar(tmp_path / "a.tar", list(pairs))
    base = {"tar_path": str(path), "transcript": "t", "language": "en", "duration_s": 1.0}
    rows = [
        {**base, "tar_member_name": name, "transcript": member} for member, name in pairs.items()
    ]
    other = write_tar(tmp_path / "b.tar", ["v/\u00e9e\u0301.wav", "v/\u00e9\u00e9.wav"])
    rows.append({**base, "tar_path": str(other), "tar_member_name": "v/e\u0301e\u0301.wav"})
    index = index_of([path, other], tmp_path / "i.parquet")
    (ledger,) = build_from(tmp_path / "out", index, train=rows).values()
    assert ledger.rejected == {"not_in_tar": 1}
    good = {
        row["transcript"]: content(row).decode()
        for row in rows_of(tmp_path / "out/train/b_0_3.parquet")
    }
    assert all(f":{member}:" in good[member] for member in pairs)
