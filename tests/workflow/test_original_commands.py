"""The commands as their authors typed them: each parses with the step it has become; those of
speech run."""

from __future__ import annotations

import csv
import importlib
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import corpora
from tests.workflow.workflow import ROOT

TRAIN = """--model_path /data/qwen3_asr_weights --bucket_dir /data/buckets
    --bucket_config /data/buckets/calibrated_bs.json --output_dir /data/out"""
SHORT = """--max_steps 50 --gradient_checkpointing 1 --log_steps 5 --save_steps 999999 --lr 2e-5
    --warmup_ratio 0.02 --num_workers 16 --prefetch_factor 4 --max_open_tars 64
    --language_tag_mode auto"""
LONG = """--eval_file /data/dev.parquet --epochs 1 --gradient_checkpointing 1 --lr 2e-5
    --warmup_ratio 0.02 --lr_scheduler_type cosine --log_steps 50 --save_steps 5000
    --save_total_limit 10 --eval_steps 20000
    --num_workers 16 --prefetch_factor 4 --max_open_tars 64 --language_tag_mode auto --seed 42"""
CALIBRATE = "--bucket b_7_10 --start_bs 128 --min_bs 8 --max_memory_gb 130 --steps 5"
SHARDS = """--manifest-dir ./manifests --output-dir ./local_webdataset_output --country germany
    --audio-format flac --max-shard-size-gb 0.5 --max-cer 0.3 --max-videos 10"""


@pytest.mark.parametrize(
    "step, typed, expected",
    [
        ("asr.build_tar_indices", "", {"partition": None}),
        ("asr.build_bucket_manifests", "", {"edges": ["default"]}),
        (
            "asr.calibrate_bucket_bs",
            CALIBRATE,
            {"bucket": "b_7_10", "start_bs": 128, "max_memory_gb": 130.0},
        ),
        ("asr.calibrate_bucket_bs", "--mode verify_all", {"mode": "verify_all"}),
        (
            "asr.train_model",
            f"{TRAIN} {SHORT}",
            {"language_tag_mode": "auto", "save_steps": 999_999},
        ),
        (
            "asr.train_model",
            f"{TRAIN} {LONG}",
            {"eval_file": "/data/dev.parquet", "eval_steps": 20_000},
        ),
        ("asr.train_model", f"{TRAIN} {SHORT} --profile 1 --profile_steps 20", {"profile": 1}),
        (
            "speech.generate_manifest",
            "--country italy",
            {"country": "italy", "manifest_dir": "manifests"},
        ),
        ("speech.create_shards", SHARDS, {"max_videos": 10, "country": "germany", "max_cer": 0.3}),
    ],
)
def test_the_original_command_parses_as_typed(step, typed, expected):
    parser = importlib.import_module(f"millrace.{step}").make_parser()
    options = vars(parser.parse_args(shlex.split(typed)))
    assert options.items() >= expected.items()


def typed(folder: Path, step: str, flags: str) -> str:
    """Run a step in `folder`; what it printed."""
    command = [sys.executable, "-m", f"millrace.{step}", *shlex.split(flags)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_two_commands_of_speech_run_beside_the_countries(tmp_path):
    corpora.make_corpus(tmp_path / "countries", {"germany": 12}, seconds=10)
    typed(tmp_path, "speech.generate_manifest", "--country germany")
    assert {path.name for path in (tmp_path / "manifests").iterdir()} >= {
        "germany_manifest.csv",
        "germany_splits.csv",
    }
    log = typed(tmp_path, "speech.create_shards", SHARDS)
    with open(tmp_path / "manifests/germany_manifest.csv", newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    counts = Counter(row["status"] for row in rows)
    assert set(counts) == {"completed_local_tar", "pending_local_tar"}
    assert len({row["video_id"] for row in rows if row["status"] == "completed_local_tar"}) == 10
    assert log.rstrip().endswith(
        ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    )
    tars = {path.name for path in (tmp_path / "local_webdataset_output/germany").glob("*/*.tar")}
    assert tars == {f"germany-{group}-00000.tar" for group in ("test", "validation", "train-1")}
