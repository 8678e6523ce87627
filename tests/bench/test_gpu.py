"""`make gpu` says at once if there is no GPU, and keeps each figure as it comes; what it measures
is run by hand, not here."""

from __future__ import annotations

import sys
import time

import pyarrow.parquet as pq
import pytest
import torch

from millrace.common import jsonl
from tests.bench import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_device_nothing_is_made(tmp_path, capsys):
    assert gpu.main(["--folder", str(tmp_path / "gpu"), "--page", str(tmp_path / "page.md")]) == 1
    assert "needs one CUDA device" in capsys.readouterr().err and not list(tmp_path.iterdir())


# Stands for the workflow: writes what it makes, one after the other.
WRITES = """
import json, pathlib, sys, time
for name in sys.argv[1:]:
    path = pathlib.Path("results/asr", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"of": name}))
    time.sleep(0.2)
    if name == "runs/bench/metrics.json":
        sys.exit(7)
"""


def test_figures_are_in_their_file_when_the_machine_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "_LOOK_SECONDS", 0.02)
    output = tmp_path / "page.json"
    names = ("calibration/buckets/b_0_3.json", "calibration/calibrated_bs.json")
    names += ("runs/bench/metrics.json", "report/throughput.json")
    command = [sys.executable, "-c", WRITES, *names]
    assert gpu.follow(command, tmp_path, output, {"model": "ctc"}, time.monotonic()) == 7
    facts = jsonl.read(output)
    assert facts["model"] == "ctc" and facts["minutes"] > 0 and "throughput" not in facts
    assert facts["buckets"] == {"b_0_3": {"of": names[0]}}
    assert facts["runs"] == {"bench": {"of": names[2]}}
    told = capsys.readouterr().out.splitlines()
    assert [line.split(" s: ")[1] for line in told] == [
        "b_0_3 is known",
        "calibration is known",
        "bench is known",
    ]


@pytest.mark.parametrize(
    "filled, buckets",
    [(1, {(20, 30)}), (2, {(20, 30), (7, 10)}), (7, None)],
)
def test_clips_are_in_as_many_buckets_as_asked_for(tmp_path, monkeypatch, filled, buckets):
    monkeypatch.setattr(gpu.audio_tars, "noise", lambda samples, number: samples)
    monkeypatch.setattr(gpu.audio_tars, "encoded", lambda samples: b"audio")
    gpu.write_corpus(tmp_path, 200, 30.0, filled)
    seconds = pq.read_table(tmp_path / "train.parquet")["duration_s"].to_pylist()
    edges = list(zip(gpu.DEFAULT_EDGES, gpu.DEFAULT_EDGES[1:], strict=False))
    held = {pair for pair in edges if any(pair[0] < each <= pair[1] for each in seconds)}
    assert held == (buckets or set(edges))
