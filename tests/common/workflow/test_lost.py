"""Files that an index lists and that are no longer there: found by listing folders, made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.common.workflow import lost


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Files in two folders, a link among them."""
    for name in ("a/1.tar", "a/2.tar", "b/3.tar", "real.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/4.tar").symlink_to(tmp_path / "real.tar")
    return [f"{tmp_path}/{name}" for name in ("a/1.tar", "b/3.tar", "a/2.tar", "b/4.tar")]


def test_a_file_that_was_moved_away_is_lost_and_one_that_is_back_is_not(paths):
    assert lost.lost_files(paths) == []
    os.rename(paths[2], f"{paths[2]}.aside")
    assert lost.lost_files(paths) == [paths[2]]
    os.rename(f"{paths[2]}.aside", paths[2])
    assert lost.lost_files(paths) == []


def test_files_are_lost_with_their_folder_and_with_what_a_link_leads_to(paths, tmp_path):
    (tmp_path / "real.tar").unlink()
    assert lost.lost_files(paths) == [paths[3]]
    for path in (paths[0], paths[2]):
        os.unlink(path)
    (tmp_path / "a").rmdir()
    assert lost.lost_files(paths) == [paths[0], paths[2], paths[3]]
    (tmp_path / "a").touch()  # a file in the folder's place
    assert lost.lost_files(paths) == [paths[0], paths[2], paths[3]]


def test_each_folder_is_listed_once(paths, monkeypatch):
    scanned, scan = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: scanned.append(folder) or scan(folder))
    assert lost.lost_files(paths * 100) == []
    assert len(scanned) == 2


def test_a_file_whose_job_has_run_since_is_not_lost(paths):
    os.unlink(paths[0])
    os.unlink(paths[1])
    makers = {paths[0]: "index"}
    assert lost.Listed(lambda: paths, makers.get).lost() == makers


def test_an_index_that_was_there_and_is_not_is_half_made(tmp_path, monkeypatch):
    monkeypatch.setattr(lost.snakemake_state, "is_recorded", lambda path: "new" not in path)
    (tmp_path / "whole").touch()
    partitions = {"malta": ["whole", "failed"], "italy": ["new"]}
    found = lost.half_made(partitions, lambda name: f"{tmp_path}/{name}")
    assert found == [f"{tmp_path}/failed"]


def test_a_few_are_named_and_many_counted():
    paths = ["x/b_5_7.parquet", *(f"y/{n}.tar" for n in range(4))]
    assert lost.shown(paths) == "lost: b_5_7.parquet, 0.tar, 1.tar, 2.tar, 3.tar"
    assert lost.shown([f"x/{n}.tar" for n in range(6)]) == "lost: 6 files, such as 0.tar"
