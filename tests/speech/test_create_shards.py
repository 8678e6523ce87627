"""The step that makes shards: killed, limited, with good and bad input."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millrace.speech.columns import INDEX_SCHEMA, STATUS_SCHEMA
from millrace.speech.create_shards import main, make_parser
from tests.speech.shard_corpus import corpus, digests, row, tree, write_part, write_recording

ROOT = Path(__file__).parents[2]
SMALL = ["--max-shard-size-gb", "0.0004"]


def flags(part: Path, out: Path, *more: str) -> list[str]:
    outputs = ["--index", str(out / "index.parquet"), "--statuses", str(out / "statuses.parquet")]
    return ["--manifest", str(part), *outputs, "--output-dir", str(out), *SMALL, *more]


def started(argv: list[str], hash_seed: int = 0, file_limit: int | None = None) -> subprocess.Popen:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    command = [sys.executable, "-m", "millrace.speech.create_shards", *argv]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    before = limit_files if file_limit else None
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, preexec_fn=before)


def finished(out: Path) -> dict[str, tuple[str, int]]:
    """Tars that have a sidecar."""
    files = tree(out)
    tars = {name: Path(name) for name in files if name.endswith(".tar")}
    sidecars = {name: str(tar.with_name(f".{tar.stem}.index.parquet")) for name, tar in tars.items()}
    return {name: files[name] for name in tars if sidecars[name] in files}


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
    completed = pc.equal(statuses["status"], "completed_local_tar")
    done = statuses.filter(completed)["key"].to_pylist()
    assert index["key"].to_pylist() == done and len(done) == len(rows) - 2
    tars = (out / "testland/train-3").glob("testland-train-3-002[0-9][0-9].tar")
    assert set(index["shard"].to_pylist()) == {str(path.relative_to(out)) for path in tars}
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
    noise, short = tmp_path / "noise.parquet", tmp_path / "short.parquet"
    noise.write_bytes(b"no parquet")
    table = pq.read_table(write_part(tmp_path / "p.parquet", rows))
    pq.write_table(table.drop_columns(["cer", "wer"]), short)
    other = rows[1] | {"batch_id": "testland-train-1-00000"}
    mixed = write_part(tmp_path / "mixed.parquet", [rows[0], other])
    odd = write_part(tmp_path / "odd.parquet", [rows[0] | {"batch_id": "odd"}])
    for part, words in (
        (mixed, "batch_id must be one partition"),
        (odd, "batch_id must be one partition"),
        (write_part(tmp_path / "nameless.parquet", []), "batch_id must be one partition"),
        (noise, "not a manifest part"),
        (short, "columns cer, wer are missing"),
        (tmp_path / "none.parquet", "no such manifest part"),
    ):
        assert main(flags(part, tmp_path / "out")) == 1
        said = capsys.readouterr().err
        assert words in said and str(part) in said and len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


NEEDED = ["--output-dir", "x", "--manifest", "m", "--index", "i", "--statuses", "s"]


@pytest.mark.parametrize("argv", [NEEDED[:2], NEEDED[:-2]])
def test_all_files_are_to_be_named(argv):
    with pytest.raises(SystemExit, match="2"):
        main(argv)


@pytest.mark.parametrize(
    "flag", ["--country a", "--max-cer nan", "--max-cer -1", "--max-shard-size-gb 0", "--audio-format aac"]
)
def test_flags_that_make_no_sense(flag):
    with pytest.raises(SystemExit, match="2"):
        main([*NEEDED, *flag.split()])


def test_defaults_are_those_of_the_original_script():
    args = make_parser().parse_args(NEEDED)
    defaults = (args.max_cer, args.audio_format, args.max_shard_size_gb, args.sampling_rate)
    assert defaults == (0.3, "flac", 1.0, 16000)
