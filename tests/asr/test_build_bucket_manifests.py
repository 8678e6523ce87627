"""The step itself: command lines as a person types them, and errors as a person reads them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from millrace.asr import build_bucket_manifests
from millrace.asr.buckets.edges import DEFAULT_EDGES, bucket_ids
from millrace.common import atomic
from tests.asr.bucket_corpus import (
    corpus,
    files,
    rows_of,
    speech_index,
    write_manifest,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capfd) -> Callable[..., tuple[int, str]]:
    """Build into out/bucket_config.json of a folder; returns the exit code and what a person
    sees."""

    def build(out: Path, *arguments: object) -> tuple[int, str]:
        output = ["--output", out / "bucket_config.json"]
        code = build_bucket_manifests.main([str(argument) for argument in (*arguments, *output)])
        return code, capfd.readouterr().err

    return build


def test_the_output_is_a_folder_or_the_config_in_it(tmp_path, run, capfd):
    rows, index = corpus(tmp_path, tars=1, members=10)
    common = ["--train", write_manifest(tmp_path / "train.parquet", rows), "--tar-index", index]
    common = [str(argument) for argument in [*common, "--output"]]
    assert build_bucket_manifests.main([*common, str(tmp_path / "folder")]) == 0
    assert (tmp_path / "folder/bucket_config.json").is_file() and not (
        tmp_path / "tars.parquet"
    ).exists()
    assert build_bucket_manifests.main([*common, str(tmp_path / "other.json")]) == 1
    assert "always bucket_config.json" in capfd.readouterr().err


def test_a_foreign_corpus_from_the_command_line(tmp_path, out, run):
    rows, index = corpus(tmp_path, tars=3, members=40)
    (tmp_path / "indices").mkdir()
    index.rename(tmp_path / "indices" / "part-00000.parquet")
    parts = [write_manifest(tmp_path / f"train-{n}.parquet", rows[n::2][:50]) for n in range(2)]
    dev = write_manifest(tmp_path / "dev.parquet", [{**rows[-1], "transcript": " "}, rows[-2]])
    common = ["--train", *parts, "--dev", dev, "--tar-index", tmp_path / "indices"]
    common += ["--max-error-fraction", "0.5"]
    code, seen = run(out, *common)
    assert code == 0, seen
    assert "train: 100 rows in, 100 out, 0 rejected" in seen
    assert "dev: 2 rows in, 1 out, 1 rejected; rejected: 1 empty_transcript" in seen
    for bucket in bucket_ids(DEFAULT_EDGES):
        rows_in = rows_of(tmp_path / f"out/train/{bucket}.parquet")
        seconds = [row["duration_s"] for row in rows_in]
        facts = f"{sum(seconds) / 3600:.2f} hours, mean {np.mean(seconds or 0):.1f} s"
        facts += f", longest {max(seconds, default=0):.1f} s"
        assert f"INFO {bucket}: {len(seconds)} sample{'s' * (len(seconds) != 1)}, {facts}\n" in seen
    first = files(out)
    command = [*common, "--output", out / "bucket_config.json"]
    command = [sys.executable, "-m", "millrace.asr.build_bucket_manifests", *map(str, command)]
    subprocess.check_call(command, cwd=ROOT)
    assert files(out) == first
    assert run(tmp_path / "own", *common, "--edges", 0, 8, 20, "--over-max", "drop")[0] == 0
    own = sorted(path.name for path in (tmp_path / "own" / "train").iterdir())
    assert own == ["b_0_8.parquet", "b_8_20.parquet"]


def test_relative_tars_start_at_the_root(tmp_path, run):
    rows, index = corpus(tmp_path, tars=2, members=10)
    relative = [
        {**row, "tar_path": str(Path(row["tar_path"]).relative_to(tmp_path))} for row in rows
    ]
    manifest = write_manifest(tmp_path / "train.parquet", relative)
    common = [tmp_path / "out", "--train", manifest, "--tar-index", index]
    assert run(*common, "--tar-root", tmp_path)[0] == 0
    code, seen = run(*common)
    assert code == 1
    assert "no train row is left of 20: 20 tar_not_indexed" in seen and "Traceback" not in seen


def test_indices_of_partitions_that_are_no_more_are_removed(tmp_path, run):
    rows, index = corpus(tmp_path, tars=2, members=10)
    folder = tmp_path / "tar_index"
    folder.mkdir()
    index = index.rename(folder / "tars-00001.parquet")
    stay = ["tars-00001.json", "tars-by-hand.parquet", "other.json"]
    litter = f".tars-00000.parquet.{atomic._HOST}-99999999.partial"  # of a killed process
    for name in ["tars-00000.parquet", "tars-00000.json", litter, *stay]:
        (folder / name).touch()
    train = write_manifest(tmp_path / "train.parquet", rows)
    code, seen = run(tmp_path / "out", "--train", train, "--tar-index", index, "--sweep", folder)
    assert code == 0 and "tars-00000.parquet, of a partition that is no more" in seen
    assert sorted(path.name for path in folder.iterdir()) == sorted([index.name, *stay])


def test_the_speech_lanes_shards(tmp_path, run):
    index = speech_index(tmp_path)
    arguments = ["--manifests", index, "--tar-root", index.parent, "--speech-transcript", "asr"]
    assert run(tmp_path / "out", *arguments, "--max-error-fraction", "0.5")[0] == 0
    transcripts = {row["transcript"] for row in rows_of(tmp_path / "out/dev.parquet")}
    assert transcripts == {"asr 2", "asr 6", "asr 10"}


def test_without_manifests_the_speech_lanes_index_is_read(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    speech_index(Path("results/speech")).rename("results/speech/index.parquet")
    assert run(Path("out"), "--max-error-fraction", "0.5")[0] == 0
    assert len(rows_of(Path("out/dev.parquet"))) == 3
    # Two of the seven rows of train are in error.
    code, seen = run(Path("out"))
    assert code == 1 and "max_error_fraction" in seen
    assert not Path("out/bucket_config.json").exists()
    assert "6 tar_missing" in run(Path("out"), "--tar-root", "elsewhere")[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no manifest was named"),
        (["--train", "absent.parquet"], "absent.parquet: the manifest is not there"),
        (["--manifests", "no/index.parquet"], "no/index.parquet: the manifest is not there"),
        (["--manifests", "a/index.parquet", "b/index.parquet"], "and other manifests are mixed"),
        (["--manifests", "odd.parquet"], "odd.parquet: the name does not say which split this is"),
        (["--train", "a.parquet", "--edges", "3", "x"], "rising"),
        (["--train", "a.parquet", "--tar-index", "no.index"], "no tar index there"),
    ],
)
def test_errors_are_one_line(tmp_path, arguments, message, run, monkeypatch):
    rows, _ = corpus(tmp_path, tars=1, members=2)
    write_manifest(tmp_path / "a.parquet", rows)
    monkeypatch.chdir(tmp_path)
    code, seen = run(tmp_path / "out", *arguments)
    errors = [line for line in seen.splitlines() if " ERROR " in line]
    assert code == 1 and len(errors) == 1 and message in errors[0] and "Traceback" not in seen
