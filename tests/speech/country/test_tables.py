"""A country's tables: row groups, and files that were damaged since they were made."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.common import atomic, jsonl
from millrace.common.errors import Damaged
from millrace.common.ledger import Ledger
from millrace.speech.columns import INDEX_SCHEMA, OVER_CER, SIDECAR_SCHEMA
from millrace.speech.country import tables
from millrace.speech.country.ledger import Balance
from millrace.speech.shards.index import write_table
from tests.refusals import refused
from tests.speech.shard_corpus import PARTITION, row, write_part


def index_table(keys: range) -> pa.Table:
    return pa.Table.from_pylist([{"key": str(key)} for key in keys], schema=INDEX_SCHEMA)


@pytest.mark.parametrize("sizes", [(2, 2, 5, 1), (7,), (3, 3), (0,), ()])
def test_an_index_of_several_row_groups_holds_every_row_once(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(tables, "ROW_GROUP", 3)
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    pieces = [
        index_table(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)
    ]
    tables.write_index(tmp_path / "index.parquet", pieces)
    with pq.ParquetFile(tmp_path / "index.parquet") as file:
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        assert file.read()["key"].to_pylist() == [str(number) for number in range(sum(sizes))]
    assert max(groups, default=0) <= 3 and sum(groups) == sum(sizes)


def write_outcomes(part: tables.PartitionFiles, statuses: list[tuple[str, str, str]]) -> None:
    """Write key, status and message of the rows of a partition."""
    names = ("key", "status", "error_message")
    rows = [dict(zip(names, row, strict=True)) for row in statuses]
    write_table(part.index, pa.Table.from_pylist(rows, schema=SIDECAR_SCHEMA))


@pytest.fixture
def part(tmp_path) -> tables.PartitionFiles:
    """A partition of five segments, in row groups of two; the last one is in error."""
    files = tables.PartitionFiles(PARTITION, str(tmp_path / "manifest"), str(tmp_path / "shards"))
    rows = [row("a.wav", number, number + 1) for number in range(5)]
    write_part(files.manifest, rows)
    pq.write_table(
        pq.read_table(files.manifest, partitioning=None), files.manifest, row_group_size=2
    )
    outcomes = [(each["key"], "completed_local_tar", "") for each in rows[:4]]
    write_outcomes(files, [*outcomes, (rows[4]["key"], "error_local_tar_audio_load", "broken")])
    jsonl.write_lines(files.rejects, [])
    atomic.write_json(files.ledger, Ledger("s", PARTITION, rows_in=5, rows_out=5).as_dict())
    return files


def test_a_manifest_of_several_row_groups_is_read_whole(part):
    assert [each["start_seconds"] for each in part.rows()] == [0, 1, 2, 3, 4]
    assert [each["status"][:5] for each in part.final_rows()] == ["compl"] * 4 + ["error"]


def test_a_row_without_a_status_is_damage_that_names_the_file(part):
    known = pq.read_table(part.index, partitioning=None)
    pq.write_table(known.slice(1), part.index)
    with pytest.raises(
        Damaged, match=rf"{part.index}: .*testland_a_0_1000 of the manifest is missing"
    ):
        list(part.final_rows())
    part.manifest.write_bytes(b"PAR1")
    with pytest.raises(Damaged, match=str(part.manifest)):
        list(part.rows())


@pytest.mark.parametrize("line", ["5", '{"segment": 1}', '{"reason": "too_short"}', "[]"])
def test_a_reject_that_is_none_is_damage_that_names_file_and_line(part, line):
    part.rejects.write_text(f'{{"segment": 0, "reason": "too_short"}}\n{line}\n')
    with pytest.raises(Damaged, match=rf"{part.rejects}: .*line 2"):
        list(part.left_out())


COUNTRY = {"country": "testland", "language": "tl", "recordings": 1, "notes": []}


def balance(
    part: tables.PartitionFiles, files: int, transcripts: int, rejected: Sequence[dict] = ()
) -> Balance:
    """Of a country of one partition, whose rejects have passed by."""
    facts = {"files": files, "transcripts": transcripts, "rejected": rejected}
    made = Balance(COUNTRY | facts, [part])
    list(made.rejects())
    return made


def test_the_balance_of_a_country_counts_segments_and_files(part):
    made = balance(part, files=1, transcripts=1)
    made.check(4)
    assert made.as_dict()["segments"]["rejected"] == {"audio_load": 1}
    with refused(r"5 segments in, 3 out, 1 rejected \(1 audio_load\)"):
        made.check(3)
    with refused(r"2 files in, 1 out, 0 rejected"):
        balance(part, files=2, transcripts=1).check(4)


def test_an_alignment_that_broke_since_the_parse_is_a_file_less(part):
    broken = {"file": "b_aligned.json", "segment": None, "reason": "json_damaged", "detail": ""}
    jsonl.write_lines(part.rejects, [broken])
    made = balance(part, files=2, transcripts=2)
    made.check(4)
    files = made.as_dict()["files"]
    assert files["rows_out"] == 1 and files["rejected"] == {"json_damaged": 1}


@pytest.mark.parametrize(
    "reason, is_error", [("json_damaged", True), ("not_an_alignment_name", False)]
)
def test_files_in_error_count_too_but_for_those_that_are_no_alignments(part, reason, is_error):
    rejected = [{"file": f"{n}.json", "reason": reason, "detail": ""} for n in range(2)]
    made = balance(part, files=3, transcripts=1, rejected=rejected)
    made.check(4)
    if not is_error:
        made.check_errors(0.5, "x.csv")
        return
    with refused(r"2 of 3 files are in error \(2 json_damaged\)"):
        made.check_errors(0.5, "x.csv")


def test_the_worst_files_are_those_with_most_errors_of_all_reasons(part):
    loads, cuts = "error_local_tar_audio_load", "error_local_tar_processing"
    rows = [
        row(name, number, number + 1) for number, name in enumerate(["b.wav"] * 3 + ["a.wav"] * 2)
    ]
    write_part(part.manifest, rows)
    # What is left out by choice is no error of its file.
    statuses = (OVER_CER, OVER_CER, loads, loads, cuts)
    write_outcomes(part, [(r["key"], s, "why") for r, s in zip(rows, statuses, strict=True)])
    made = balance(part, files=1, transcripts=1)
    made.check(0)
    worst = r"\nMost are in:\n  a.wav: 2\n  b.wav: 1"
    with refused(rf"3 of 5 segments are in error[\s\S]*{worst}"):
        made.check_errors(0.5, "x.csv")
    made.check_errors(1.0, "x.csv")
