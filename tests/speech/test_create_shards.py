"""The step that makes shards: its outputs, a limit on file sizes, bad input."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.speech.columns import SIDECAR_SCHEMA
from millrace.speech.create_shards import main, make_parser
from tests.speech.shard_corpus import corpus, row, tree, write_part, write_recording


def flags(part: Path, out: Path) -> list[str]:
    files = ["--manifest", str(part), "--index", str(out / "index.parquet")]
    return [*files, "--output-dir", str(out), "--max-shard-size-gb", "0.0004"]


def test_a_limit_on_file_sizes_ends_clearly_and_resumes(tmp_path):
    rows = corpus(tmp_path / "src", recordings=3, segments=5)
    long = write_recording(tmp_path / "src" / "video_9.wav", 30, seed=9)
    part = write_part(tmp_path / "part.parquet", [*rows, row(long, 0, 25)])
    out = tmp_path / "out"
    limited = subprocess.run(
        [sys.executable, "-m", "millrace.speech.create_shards", *flags(part, out)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)),
        stderr=subprocess.PIPE,
    )
    log = limited.stderr.decode()
    assert limited.returncode == 1 and "Traceback" not in log
    assert (
        "File too large" in log and "Free some space" in log and "finished shards are kept" in log
    )
    before = tree(out)
    assert sum(name.endswith(".index.parquet") for name in before) >= 2
    assert not any("partial" in name for name in before)
    assert main(flags(part, out)) == 0 and tree(out).items() >= before.items()


def test_outputs_of_a_partition(tmp_path):
    rows = corpus(tmp_path / "src", recordings=2, partition="testland-train-3-00200")
    rows[2]["cer"] = 0.9
    rows[4] |= {"status": "error_local_tar_missing_source", "error_message": "no audio file"}
    part = write_part(tmp_path / "part.parquet", rows)
    raw = part.read_bytes()
    out = tmp_path / "out"
    assert main(flags(part, out)) == 0
    index = pq.read_table(out / "index.parquet")
    assert index.schema.equals(SIDECAR_SCHEMA)
    done = [r["key"] for n, r in enumerate(rows) if n not in (2, 4)]
    assert index["key"].to_pylist() == [*done, rows[2]["key"], rows[4]["key"]]
    tars = (out / "testland/train-3").glob("testland-train-3-002[0-9][0-9].tar")
    shards = {str(path.relative_to(out)) for path in tars}
    assert set(index["shard"].to_pylist()) == {*shards, None}
    assert part.read_bytes() == raw


def test_an_empty_part_is_known_by_its_folder_and_sweeps(tmp_path):
    rows = corpus(tmp_path / "src", recordings=1)
    out = tmp_path / "out"
    part = tmp_path / "partitions" / "testland-test-00000" / "manifest.parquet"
    assert main(flags(write_part(part, rows), out)) == 0 and list(out.rglob("*.tar"))
    assert main(flags(write_part(part, []), out)) == 0
    assert not list(out.rglob("*.tar")) and pq.read_table(out / "index.parquet").num_rows == 0


def test_bad_parts_are_one_line_each(tmp_path, capsys):
    rows = corpus(tmp_path / "src", recordings=1)
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
        log = capsys.readouterr().err
        assert words in log and str(part) in log and len(log.splitlines()) == 1
    assert not (tmp_path / "out").exists()


FILES = "--output-dir x --manifest m --index i"
BAD = (
    "--country a",
    "--max-videos 3",
    "--max-cer nan",
    "--max-cer -1",
    "--max-shard-size-gb 0",
    "--audio-format aac",
)
BY_HAND = "--output-dir x --manifest-dir m --country a --index i"


@pytest.mark.parametrize("flags", ["--output-dir x", BY_HAND, *(f"{FILES} {bad}" for bad in BAD)])
def test_flags_that_are_missing_or_make_no_sense(flags):
    with pytest.raises(SystemExit, match="2"):
        main(flags.split())


def test_defaults_are_those_of_the_original_script():
    args = make_parser().parse_args(FILES.split())
    defaults = (args.max_cer, args.audio_format, args.max_shard_size_gb, args.sampling_rate)
    assert defaults == (0.3, "flac", 1.0, 16000)
