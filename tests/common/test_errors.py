"""Files that Millrace made itself and that were damaged since: one line with the file and a way to
have it again."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.common import jsonl
from millrace.common.errors import Damaged, MillraceError, own_file
from tests.refusals import refused


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": \x00}', b"\xff"])
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "ledger.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged since it was made") as caught:
        jsonl.read(path)
    assert isinstance(caught.value, MillraceError) and str(caught.value).endswith(
        f"snakemake --forcerun {path}"
    )


def test_every_place_a_parquet_may_be_cut_or_flipped_is_named_or_read(tmp_path):
    path = tmp_path / "part.parquet"
    pq.write_table(
        pa.table({"key": [f"key {number}" for number in range(500)]}), path, compression="zstd"
    )
    good, seen = path.read_bytes(), 0
    flipped = [
        good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :] for at in range(0, len(good), 7)
    ]
    for content in [b"", good[: len(good) // 2], good[:-1], *flipped]:
        path.write_bytes(content)
        try:
            with own_file(path):
                pq.read_table(path).to_pylist()
        except Damaged as error:
            assert error.where == str(path) and "\n" not in str(error)
            seen += 1
    assert seen > 20


def test_errors_of_the_system_and_clear_ones_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), own_file(tmp_path / "none"):
        (tmp_path / "none").read_bytes()
    with refused("told already"), own_file(tmp_path):
        raise MillraceError("told already")


def test_it_passes_between_processes():
    error = Damaged("a.json", "cut")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
