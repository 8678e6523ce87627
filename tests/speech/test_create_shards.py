"""The step that makes shards: killed, limited, by partition and by country, with good and bad input."""

from __future__ import annotations

import csv
import os
import random
import resource
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from millrace.speech.columns import INDEX_SCHEMA, STATUS_SCHEMA
from millrace.speech.country import tables as country_tables
from millrace.speech.create_shards import main, make_parser
from tests.speech.shard_corpus import corpus, digests, row, tree, write_part, write_recording

ROOT = Path(__file__).parents[2]
SMALL = ["--max-shard-size-gb", "0.0004"]


def flags(part: Path, out: Path, *more: str) -> list[str]:
    outputs = ["--index", str(out / "index.parquet"), "--statuses", str(out / "statuses.parquet")]
    return ["--manifest", str(part), *outputs, "--output-dir", str(out), *SMALL, *more]


def started(argv: list[str], hash_seed: int = 0, file_limit: int | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "millrace.speech.create_shards", *argv],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        stderr=subprocess.PIPE,
        preexec_fn=file_limit
        and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))),
    )


def finished(out: Path) -> dict[str, tuple[str, int]]:
    """Tars that have a sidecar."""
    found = tree(out)
    sidecar = {
        name: os.path.join(os.path.dirname(name), f".{Path(name).stem}.index.parquet") for name in found
    }
    return {name: state for name, state in found.items() if name.endswith(".tar") and sidecar[name] in found}


def test_killed_at_random_moments_it_resumes_to_the_same_bytes(tmp_path):
    part = write_part(tmp_path / "part.parquet", corpus(tmp_path / "src", recordings=48, segments=6))
    whole = started(flags(part, tmp_path / "undisturbed"))
    assert whole.wait() == 0, whole.stderr.read()
    tars = len(list((tmp_path / "undisturbed").rglob("*.tar")))
    assert tars > 12
    out = tmp_path / "out"
    rng = random.Random(4)
    kills = 0
    for number in range(5):
        before = finished(out)
        victim = started(flags(part, out), hash_seed=number + 1)
        # Kill while one of the next tars is written, some milliseconds after one was finished.
        wanted = len(before) + rng.randint(0, 2)
        while victim.poll() is None and len(list(out.rglob("*.tar"))) <= wanted:
            time.sleep(0.004)
        time.sleep(rng.random() * 0.02)
        victim.send_signal(signal.SIGTERM if number == 0 else signal.SIGKILL)
        kills += victim.wait() != 0
        victim.stderr.close()
        after = finished(out)
        assert {name: after[name] for name in before} == before
        for name in (name for name in tree(out) if name.endswith(".tar")):
            with tarfile.open(out / name) as tar:
                assert len(tar.getmembers()) % 2 == 0
    assert kills >= 4 and not (out / "index.parquet").exists()
    before = finished(out)
    last = started(flags(part, out), hash_seed=99)
    said = last.communicate()[1].decode()
    assert last.returncode == 0 and f"{len(before)} kept, {tars - len(before)} built" in said
    assert digests(out) == digests(tmp_path / "undisturbed")
    assert {name: tree(out)[name] for name in before} == before


def test_a_limit_on_file_sizes_ends_clearly_and_resumes(tmp_path):
    rows = corpus(tmp_path / "src", recordings=3, segments=5)
    long = write_recording(tmp_path / "src" / "video_9.wav", 30, seed=9)
    part = write_part(tmp_path / "part.parquet", [*rows, row(long, 0, 25)])
    limited = started(flags(part, tmp_path / "out"), file_limit=500_000)
    said = limited.communicate()[1].decode()
    assert limited.returncode == 1 and "Traceback" not in said
    assert "File too large" in said and "Free some space" in said and "finished shards are kept" in said
    before = tree(tmp_path / "out")
    assert len(finished(tmp_path / "out")) >= 2 and not any("partial" in name for name in before)
    assert main(flags(part, tmp_path / "out")) == 0
    after = tree(tmp_path / "out")
    assert all(after[name] == found for name, found in before.items())


def test_outputs_of_a_partition(tmp_path):
    rows = corpus(tmp_path / "src", recordings=2, partition="testland-train-3-00200")
    rows[2]["cer"] = 0.9
    rows[4] |= {"status": "error_local_tar_missing_source", "error_message": "no audio file"}
    part = write_part(tmp_path / "part.parquet", rows)
    raw = part.read_bytes()
    out = tmp_path / "out"
    assert main(flags(part, out)) == 0
    index, statuses = (pq.read_table(out / f"{name}.parquet") for name in ("index", "statuses"))
    assert index.schema.equals(INDEX_SCHEMA) and statuses.schema.equals(STATUS_SCHEMA)
    assert statuses["key"].to_pylist() == [r["key"] for r in rows]
    done = [
        key
        for key, status in zip(*(statuses[n].to_pylist() for n in ("key", "status")), strict=True)
        if status == "completed_local_tar"
    ]
    assert index["key"].to_pylist() == done and len(done) == len(rows) - 2
    assert set(index["shard"].to_pylist()) == {
        str(path.relative_to(out))
        for path in (out / "testland/train-3").glob("testland-train-3-002[0-9][0-9].tar")
    }
    assert part.read_bytes() == raw


def test_an_empty_part_is_known_by_its_folder_and_sweeps(tmp_path):
    rows = corpus(tmp_path / "src", recordings=1)
    out = tmp_path / "out"
    part = tmp_path / "partitions" / "testland-test-00000" / "manifest.parquet"
    assert main(flags(write_part(part, rows), out)) == 0 and list(out.rglob("*.tar"))
    assert main(flags(write_part(part, []), out)) == 0
    assert not list(out.rglob("*.tar")) and pq.read_table(out / "index.parquet").num_rows == 0
    assert pq.read_table(out / "statuses.parquet").num_rows == 0


def test_bad_parts_are_one_line_each(tmp_path, capsys):
    rows = corpus(tmp_path / "src", recordings=1)
    capsys.readouterr()
    mixed = [rows[0], rows[1] | {"batch_id": "testland-train-1-00000"}]
    noise = tmp_path / "noise.parquet"
    noise.write_bytes(b"no parquet")
    empty = write_part(tmp_path / "nameless.parquet", [])
    short = tmp_path / "short.parquet"
    pq.write_table(
        pq.read_table(write_part(tmp_path / "p.parquet", rows)).drop_columns(["cer", "wer"]), short
    )
    for part, words in (
        (write_part(tmp_path / "mixed.parquet", mixed), "batch_id must be one partition"),
        (
            write_part(tmp_path / "odd.parquet", [rows[0] | {"batch_id": "odd"}]),
            "batch_id must be one partition",
        ),
        (empty, "batch_id must be one partition"),
        (noise, "not a manifest part"),
        (short, "columns cer, wer are missing"),
        (tmp_path / "none.parquet", "no such manifest part"),
    ):
        assert main(flags(part, tmp_path / "out")) == 1
        said = capsys.readouterr().err
        assert words in said and str(part) in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["--output-dir", "x"],
        ["--output-dir", "x", "--manifest", "m", "--index", "i"],
        ["--output-dir", "x", "--country", "a"],
        ["--output-dir", "x", "--country", "a", "--manifest-dir", "b", "--max-cer", "nan"],
        ["--output-dir", "x", "--country", "a", "--manifest-dir", "b", "--max-cer", "-1"],
        ["--output-dir", "x", "--country", "a", "--manifest-dir", "b", "--max-shard-size-gb", "0"],
        ["--output-dir", "x", "--country", "a", "--manifest-dir", "b", "--audio-format", "aac"],
    ],
)
def test_command_lines_that_make_no_sense(argv):
    with pytest.raises(SystemExit, match="2"):
        main(argv)


def test_defaults_are_the_seeds():
    args = make_parser().parse_args(["--output-dir", "x"])
    assert (args.max_cer, args.audio_format, args.max_shard_size_gb, args.sampling_rate) == (
        0.3,
        "flac",
        1.0,
        16000,
    )


TEXTS = ["NA", "null", '=SUM(A1)"', "two\nlines", "a,b;c", "‏rtl", "", " lead", "None", "1.0"]


@pytest.fixture
def country(tmp_path) -> tuple[Path, list[dict]]:
    """A manifest folder of a country with all splits, texts that CSV readers like to spoil, and one CER too
    high."""
    rows = []
    for number, partition in enumerate(
        ("train-2-00000", "train-1-00000", "test-00000", "validation-00000", "train-1-00100")
    ):
        found = corpus(
            tmp_path / "src" / partition, recordings=2, segments=4, partition=f"testland-{partition}"
        )
        for n, r in enumerate(found):
            r |= {
                "video_id": f"{r['video_id']}.{number}",
                "key": f"{number}_{n}",
                "human_transcript": TEXTS[(number + n) % 10],
            }
        rows += found
    rows[5]["cer"] = 0.8
    rows[6] |= {"status": "error_local_tar_missing_source", "error_message": "no audio file for x.wav"}
    country_tables.write_manifest_csv(tmp_path / "manifests" / "testland_manifest.csv", rows)
    return tmp_path / "manifests", rows


def by_hand(manifests: Path, out: Path, *more: str) -> list[str]:
    return [
        "--country",
        "testland",
        "--manifest-dir",
        str(manifests),
        "--output-dir",
        str(out),
        *SMALL,
        *more,
    ]


def read(path: Path) -> list[dict]:
    return pd.read_csv(path, keep_default_na=False, dtype=str).to_dict("records")


def test_a_country_by_hand(country, tmp_path, capsys):
    manifests, rows = country
    raw = (manifests / "testland_manifest.csv").read_bytes()
    out = tmp_path / "out"
    assert main(by_hand(manifests, out)) == 0
    worked_on = [line.split()[2][:-1] for line in capsys.readouterr().err.splitlines() if "kept" in line]
    folders = ["test-00000", "validation-00000", "train-1-00000", "train-1-00100", "train-2-00000"]
    assert worked_on == [f"testland-{folder}" for folder in folders]
    assert (manifests / "testland_manifest.csv").read_bytes() == raw
    before, after = read(manifests / "testland_manifest.csv"), read(out / "testland_manifest.csv")
    assert [r["status"] for r in after] == [
        {5: "error_local_tar_cer", 6: "error_local_tar_missing_source"}.get(n, "completed_local_tar")
        for n in range(len(rows))
    ]
    assert after[6]["error_message"] == "no audio file for x.wav" and "0.8" in after[5]["error_message"]
    changed = ("status", "error_message")
    assert [{k: v for k, v in r.items() if k not in changed} for r in after] == [
        {k: v for k, v in r.items() if k not in changed} for r in before
    ]
    index = pq.read_table(out / "index.parquet").to_pylist()
    assert {entry["key"]: entry["human_transcript"] for entry in index} == {
        r["key"]: r["human_transcript"] for n, r in enumerate(rows) if n not in (5, 6)
    }
    # Fed with what it wrote itself, it finds the shards on disk.
    tars = {name: found for name, found in tree(out).items() if name.endswith(".tar")}
    moved = tmp_path / "again"
    moved.mkdir()
    (out / "testland_manifest.csv").rename(moved / "testland_manifest.csv")
    assert main(by_hand(moved, out)) == 0
    now = tree(out)
    assert sum(now[name] == found for name, found in tars.items()) >= len(tars) - 1
    assert [r["status"] for r in read(out / "testland_manifest.csv")] == [r["status"] for r in after]


def test_workflow_and_hand_make_the_same_tars(country, tmp_path):
    manifests, rows = country
    assert main(by_hand(manifests, tmp_path / "hand")) == 0
    for partition in sorted({r["batch_id"] for r in rows}):
        part = write_part(tmp_path / f"{partition}.parquet", [r for r in rows if r["batch_id"] == partition])
        assert main(flags(part, tmp_path / "flow")) == 0
    tars = [
        {n: d for n, d in digests(tmp_path / way).items() if n.endswith(".tar")} for way in ("hand", "flow")
    ]
    assert tars[0] == tars[1] and len(tars[0]) >= 5


def test_max_videos(country, tmp_path):
    manifests, rows = country
    out = tmp_path / "out"
    assert main(by_hand(manifests, out, "--max-videos", "3")) == 0
    chosen = list(dict.fromkeys(r["video_id"] for r in rows))[:3]
    statuses = {}
    for r in read(out / "testland_manifest.csv"):
        statuses.setdefault(r["video_id"], set()).add(r["status"])
    assert all("pending_local_tar" not in statuses[video] for video in chosen)
    assert all(statuses[video] == {"pending_local_tar"} for video in statuses if video not in chosen)
    assert set(pq.read_table(out / "index.parquet")["video_id"].to_pylist()) == set(chosen)


def test_the_input_is_never_the_output(country, capsys, tmp_path):
    manifests, _ = country
    (tmp_path / "link").symlink_to(manifests)
    raw = (manifests / "testland_manifest.csv").read_bytes()
    for out in (manifests, tmp_path / "link", manifests / ".." / "manifests"):
        assert main(by_hand(manifests, out)) == 1
        assert "--output-dir holds the manifest that is read" in capsys.readouterr().err
    assert (manifests / "testland_manifest.csv").read_bytes() == raw and len(list(manifests.iterdir())) == 1


def test_a_manifest_of_the_seed_without_batches_or_subsets_asks_the_splits(country, tmp_path):
    _, rows = country
    known = (
        "key",
        "video_id",
        "source_audio_path",
        "start_seconds",
        "end_seconds",
        "status",
        "cer",
        "human_transcript",
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    with open(plain / "testland_manifest.csv", "w", newline="", encoding="utf-8-sig") as handle:
        writer = csv.DictWriter(handle, known, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    with open(plain / "testland_splits.csv", "w", newline="") as handle:
        writer = csv.DictWriter(handle, ("video_id", "split", "subset_id"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows({r["video_id"]: r for r in rows}.values())
    out = tmp_path / "out"
    assert main(by_hand(plain, out)) == 0
    index = pq.read_table(out / "index.parquet").to_pylist()
    assert {(e["split"], e["subset_id"]) for e in index} == {(r["split"], r["subset_id"]) for r in rows}
    assert {Path(e["shard"]).name[:-10] for e in index} == {r["batch_id"][:-6] for r in rows}
    assert len(index) == len(rows) - 2


def test_bad_manifests_by_hand_are_one_line_each(country, tmp_path, capsys):
    manifests, _ = country
    path = manifests / "testland_manifest.csv"
    good = path.read_text()
    header, first, rest = good.split("\n", 2)
    for text, words in (
        (good.replace(",test,", ",dev,", 1), "split 'dev' is none of"),
        (good.replace(",0.05,", ",five,", 1), "line 2: cer is 'five', not a number"),
        (header + "\n" + first + ",extra\n" + rest, "line 2: the number of fields differs"),
        (good.replace("source_audio_path", "path"), "columns source_audio_path are missing"),
        ('key,"video\n', "not a CSV in UTF-8"),
        ("", "missing"),
    ):
        path.write_text(text)
        assert main(by_hand(manifests, tmp_path / "out")) == 1, words
        said = capsys.readouterr().err
        assert words in said and str(path) in said and len(said.splitlines()) == 1
    path.write_bytes(good.encode("utf-16"))
    assert main(by_hand(manifests, tmp_path / "out")) == 1 and "not a CSV in UTF-8" in capsys.readouterr().err
    path.unlink()
    assert main(by_hand(manifests, tmp_path / "out")) == 1 and "no such file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
