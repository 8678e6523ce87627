"""RowTable: the rows of the parquets, a table per build, tars found from any folder and after a
move."""

from __future__ import annotations

import errno
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.asr.buckets.build import BucketChoices
from millrace.asr.buckets.config import BucketConfig
from millrace.asr.buckets.parquets import write_tars
from millrace.asr.loading import row_table_writer
from millrace.asr.loading.dataset import BucketedDataset
from millrace.asr.loading.reader import IndexedTarReader, ReadError, TarState
from millrace.asr.loading.row_table import RowTable
from millrace.asr.tars.stamp import Stamp
from millrace.asr.throughput.loaders import BaselineLoader, BaselinePlan
from millrace.common.errors import MillraceError
from millrace.common.loading.loader import BatchLoader
from tests.asr import bucket_corpus
from tests.asr.audio_tars import ListedPlan, change_config, corpus, write_buckets
from tests.asr.bucket_corpus import (
    build_from,
    build_train,
    write_jsonl,
    write_manifest,
)
from tests.refusals import refused


def rows_of(buckets: Path) -> list[dict]:
    return pa.concat_tables(map(pq.read_table, BucketConfig.read(buckets).parquets())).to_pylist()


STAMP = Stamp(4096, 1, "f" * 64)
SAID = {"duration_s": 1.0, "language": "en", "transcript": "ab", "tar_path": "a.tar", "size": 90}
ROWS = [
    {**SAID, "tar_member_name": f"{at}.flac", "offset": 512 + 1024 * at, "sample_id": at}
    for at in range(3)
]


def digest_of(folder: Path, *changes: dict, stamp: Stamp = STAMP) -> str:
    """The digest of a table of ROWS, of which the first ones say something else."""
    rows = [{**row, **change} for row, change in zip_longest(ROWS, changes, fillvalue={})]
    buckets = write_buckets(folder, {"b_0_3": rows}, [])
    write_tars(buckets / "tars.parquet", ["a.tar"], {"a.tar": stamp})
    return RowTable.open(buckets).digest


def test_the_digest_of_a_table_is_that_of_its_samples_wherever_they_lie(tmp_path):
    plain = digest_of(tmp_path / "plain")
    moved = {"offset": 9, "tar_member_name": "c"}
    later = STAMP._replace(mtime_ns=2)
    assert digest_of(tmp_path / "moved", moved, stamp=later) == plain

    others = [
        [{"size": 91}],
        [{"sample_id": 9}],
        [{"duration_s": 1.5}],
        [{"transcript": "ba"}],
        [{"transcript": "a"}, {"transcript": "bab"}],  # the same letters, parted elsewhere
        [{"language": "fi"}] * len(ROWS),
        [{}, {"language": "fi"}],
        [{}, {"language": "fi"}, {"language": "fi"}],
    ]
    digests = [digest_of(tmp_path / str(at), *changes) for at, changes in enumerate(others)]
    digests.append(digest_of(tmp_path / "content", stamp=STAMP._replace(digest="e" * 64)))
    assert len({plain, *digests}) == 1 + len(digests)


def test_rows_are_those_of_the_parquets(tmp_path):
    buckets = corpus(tmp_path)
    table, rows = RowTable.open(buckets), rows_of(buckets)
    assert len(table) == len(rows) == 24
    order = np.random.default_rng(0).permutation(len(rows))
    for number, row in zip(order, table.rows(order), strict=True):
        expected = rows[number]
        assert row.number == number
        names = ("offset", "size", "sample_id", "transcript")
        assert all(getattr(row, name) == expected[name] for name in names)
        assert row.language == (expected["language"] or "")
        assert row.duration_s == np.float32(expected["duration_s"])
        stamp, path = Stamp.of(expected["tar_path"]), expected["tar_path"]
        assert table.tar_state(row.tar) == TarState(path, *stamp[:2], digest=stamp.digest)
        assert table.member(number) == expected["tar_member_name"]
    assert [len(lengths) for lengths in table.durations()] == [12, 12]
    copy = pickle.loads(pickle.dumps(table))
    assert copy.rows(order) == table.rows(order) and copy.files == table.files
    for beyond in (-1, 24):
        with refused("there is no row"):
            table.rows([beyond])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder whose buckets, built there as results/asr/buckets, name their tars
    results/t0.tar."""
    folder = tmp_path / "project"
    built = rows_of(corpus(folder / "results"))
    rows = [{name: row[name] for name in bucket_corpus.COLUMNS} for row in built]
    monkeypatch.chdir(folder)
    for row in rows:
        row["tar_path"] = os.path.relpath(row["tar_path"])
    index = bucket_corpus.index_of_rows(rows, Path("index.parquet"))
    build_train(Path("results/asr/buckets"), index, rows)
    return folder


def check_readable(buckets: Path, **options) -> None:
    table = RowTable.open(buckets, **options)
    batches = list(BatchLoader(BucketedDataset(table, ListedPlan([[list(range(24))]]))))
    assert len(batches[0]) == 24 and not batches[0].bad
    plan = BaselinePlan(table, 24, 0, epoch=0, world_size=1)
    assert [len(batch) for batch in BaselineLoader(table, plan)] == [24]


def test_a_moved_results_folder_reads_from_any_working_folder(project, tmp_path, monkeypatch):
    buckets = project / "results/asr/buckets"
    assert bucket_corpus.config_of(buckets)["tar_root"] == "../../.."
    assert BucketConfig.read(buckets).tar_root == project
    check_readable(buckets)
    (tmp_path / "moved").mkdir()
    (project / "results").rename(tmp_path / "moved/results")
    for folder in (tmp_path / "moved/results/asr", "/"):
        monkeypatch.chdir(folder)
        check_readable(Path(os.path.relpath(tmp_path / "moved/results/asr/buckets")))
    tables = list((tmp_path / "moved/results/asr/buckets").glob("*.table"))
    assert len(tables) == 1 and str(tmp_path).encode() not in tables[0].read_bytes()


def test_a_tar_root_that_is_given_comes_before_that_of_the_buckets(project, tmp_path, monkeypatch):
    (tmp_path / "audio").mkdir()
    (project / "results").rename(tmp_path / "audio/results")
    (tmp_path / "audio/results/asr").rename(tmp_path / "asr")  # buckets alone, the tars elsewhere
    monkeypatch.chdir("/")
    check_readable(tmp_path / "asr/buckets", tar_root=tmp_path / "audio")
    table = RowTable.open(tmp_path / "asr/buckets")
    row = table.rows([0])[0]
    for copy in (table, pickle.loads(pickle.dumps(table))):
        with pytest.raises(ReadError) as error:
            IndexedTarReader(tars=copy.tars).read(row.tar, row.offset, row.size)
        root = tmp_path.parent
        assert error.value.reason == "tar_missing"
        assert str(error.value).startswith(f"{root}/results/t")
        assert str(error.value).endswith(
            f" does not exist (paths are resolved from {root}; see tar_root)"
        )


@pytest.mark.parametrize("start", ["", ".."])
def test_tars_whose_paths_lead_out_are_found_where_tar_root_says(start, tmp_path, monkeypatch):
    """In place of the folder that they share; in folders of their own below it they stay."""
    rows = rows_of(corpus(tmp_path / "old"))
    for row in rows:
        folder = tmp_path / "old/tars" / Path(row["tar_path"]).stem
        if not folder.exists():
            folder.mkdir(parents=True)
            Path(row["tar_path"]).rename(folder / "audio.tar")
        row["tar_path"] = os.path.join(start or tmp_path, folder.relative_to(tmp_path), "audio.tar")
    buckets = write_buckets(
        tmp_path / "buckets", {"b_0_5": rows}, sorted({Path(row["tar_path"]) for row in rows})
    )
    check_readable(buckets)
    (tmp_path / "old/tars").rename(tmp_path / "new")
    check_readable(buckets, tar_root=tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    check_readable(buckets, tar_root="new")
    table = RowTable.open(buckets)
    row = table.rows([0])[0]
    with pytest.raises(
        ReadError, match="does not exist; if the tars were moved, name the new folder"
    ):
        IndexedTarReader(tars=table.tars).read(row.tar, row.offset, row.size)


def test_an_absolute_path_may_lead_through_a_link(tmp_path):
    rows = rows_of(corpus(tmp_path / "old"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "old/link").symlink_to(tmp_path / "elsewhere")
    for row in rows:
        name = os.path.basename(row["tar_path"])
        row["tar_path"] = str(tmp_path / f"old/link/../old/{name}")
    tars = sorted({Path(row["tar_path"]) for row in rows})
    check_readable(write_buckets(tmp_path / "buckets", {"b_0_5": rows}, tars))


def test_without_a_tar_root_paths_count_from_the_folder_of_the_buckets(tmp_path, monkeypatch):
    rows = rows_of(corpus(tmp_path))
    named = [{**row, "tar_path": os.path.basename(row["tar_path"])} for row in rows]
    buckets = write_buckets(tmp_path / "by_hand", {"b_0_5": named}, [])
    for tar in tmp_path.glob("*.tar"):
        tar.rename(buckets / tar.name)
    monkeypatch.chdir("/")
    check_readable(buckets)
    change_config(buckets, tar_root=["no text"])
    with refused("not a bucket configuration"):
        RowTable.open(buckets)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("millrace.asr.loading.row_table.write", refuse)
    with refused(r"/buckets: the row table cannot be written here"):
        RowTable.open(corpus(tmp_path))


def test_the_table_follows_the_buckets_and_each_split_has_its_own(tmp_path):
    buckets = corpus(tmp_path)
    assert RowTable.open(buckets).path == RowTable.open(buckets).path
    rows = pq.read_table(buckets / "train" / "b_0_3.parquet").to_pylist()
    write_buckets(buckets, {"b_0_3": rows[:5]}, [])
    table = RowTable.open(buckets)
    assert len(table) == 5 and table.tar_state(0).size is None
    change_config(buckets, splits={"dev": {"path": "train/b_0_3.parquet"}})
    dev = RowTable.open(buckets, split="dev")
    assert set(buckets.glob("*.table")) == {table.path, dev.path} and table.path != dev.path


def test_the_table_follows_the_tars_that_were_indexed_anew(tmp_path):
    buckets = corpus(tmp_path)
    tar = Path(RowTable.open(buckets).tar_state(0).path)
    os.utime(tar, ns=(5, 5))
    # The same rows from the same bytes: only the record of the tars is another.
    stamps = {str(path): Stamp.of(path) for path in sorted(tmp_path.glob("*.tar"))}
    write_tars(buckets / "tars.parquet", list(stamps), stamps)
    assert RowTable.open(buckets).tar_state(0).mtime_ns == 5


def test_a_table_that_is_cut_and_rows_and_tars_beyond_it_are_errors(tmp_path):
    table = RowTable.open(corpus(tmp_path))
    with pytest.raises(KeyError):
        table.tar_state(3)
    os.truncate(table.path, 200)
    with refused("the row table is cut"):
        table.rows([20])


def test_ranks_that_open_at_once_share_one_table(tmp_path, monkeypatch):
    buckets, calls, write = corpus(tmp_path), [], row_table_writer.write
    monkeypatch.setattr(
        "millrace.asr.loading.row_table.write", lambda *args: (calls.append(1), write(*args))
    )
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: RowTable.open(buckets), range(8)))
    assert len(calls) == 1 and len({table.path for table in tables}) == 1


def test_a_table_that_exists_needs_nothing_to_be_written_and_is_named_when_removed(tmp_path):
    buckets = corpus(tmp_path)
    table = RowTable.open(buckets)
    (buckets / ".rows.lock").unlink()
    (buckets / ".rows.lock").mkdir()  # as on a read-only mount: the lock cannot be opened
    assert RowTable.open(buckets).rows([3]) == table.rows([3])
    table.path.unlink()
    with refused("built again"):
        pickle.loads(pickle.dumps(table)).rows([0])


@pytest.mark.parametrize("content", [b"not a table at all", b"millrace-rows-1\n" + bytes(40), b""])
def test_other_files_and_tables_of_other_versions_are_refused(tmp_path, content):
    (tmp_path / "x.table").write_bytes(content)
    with refused("not a row table"):
        RowTable(tmp_path / "x.table")


def test_buckets_are_read_from_their_folder_or_their_file(tmp_path):
    folder = corpus(tmp_path)
    config = BucketConfig.read(folder)
    assert config == BucketConfig.read(str(folder / "bucket_config.json"))
    assert config.ids == ["b_0_3", "b_3_5"] and config.splits == {}
    assert config.parquets() == [folder / "train" / f"{name}.parquet" for name in config.ids]
    assert RowTable.open(folder).path == RowTable.open(folder / "bucket_config.json").path


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"buckets": []}', '{"buckets": [{"bucket_id": "b_0_3"}]}']
)
def test_folders_that_are_no_buckets(tmp_path, content):
    if content:
        (tmp_path / "bucket_config.json").write_text(content)
    with pytest.raises(MillraceError) as error:
        RowTable.open(tmp_path)
    assert "bucket_config.json" in str(error.value) and "snakemake asr_data" in str(error.value)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_prompts_of_a_manifest_come_with_its_rows_and_leave_the_other_buckets_alone(tmp_path, kind):
    rows, index = bucket_corpus.corpus(tmp_path, tars=1, members=9)
    prompts = ["names: Ж, Müller", "", None]
    asked = [{**row, "prompt": prompts[number % 3]} for number, row in enumerate(rows)]
    manifest = tmp_path / f"train.{kind}"
    write = write_manifest if kind == "parquet" else write_jsonl
    write(manifest, asked)
    choices = BucketChoices(on_leak="keep")
    dev = write_manifest(tmp_path / "dev.parquet", rows)
    build_from(tmp_path / "with", index, choices, train=manifest, dev=dev)
    expected = {row["tar_member_name"].removeprefix("./"): row["prompt"] or "" for row in asked}
    table = RowTable.open(tmp_path / "with")
    for number, row in enumerate(table.rows(range(len(table)))):
        name = table.member(number)
        assert row.prompt == expected[name] and row.transcript == f'text of {name} ü\n"quoted"'
    dev = RowTable.open(tmp_path / "with", split="dev")
    assert {row.prompt for row in dev.rows(range(9))} == {""}
    for name, has_prompt in (("dev", False), ("train/b_0_3", True)):
        schema = pq.read_schema(tmp_path / f"with/{name}.parquet")
        assert ("prompt" in schema.names) == has_prompt
