"""What only a GPU can show, on generated audio: `make gpu`; on a CPU, with a tiny model, that all
of it runs.

    PYTHONPATH=scripts:. python -m tests.bench.gpu --folder /tmp/gpu --page docs/measured-gpu.md

Calibrates all buckets, verifies on all ranks, runs check, bench, baseline, ideal and profile by the
workflow's own rules, and writes the page and, beside it, the JSON of all figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from millrace.asr.buckets.edges import DEFAULT_EDGES
from millrace.common import atomic, jsonl
from tests.asr import audio_tars

ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "in",
    "seven",
    "boxes",
]


def write_corpus(folder: Path, clips: int, longest: float) -> None:
    """Tars of noise in all buckets up to `longest` seconds, as many hours in each, and their
    manifests."""
    rng = np.random.default_rng(7)
    edges = [edge for edge in DEFAULT_EDGES if edge < longest] + [longest]
    for split, count in (
        ("train", clips),
        ("dev", max(clips // 20, 4)),
        ("test", max(clips // 20, 4)),
    ):
        rows, members = [], {}
        for number in range(count):
            bucket = int(rng.integers(len(edges) - 1))
            seconds = float(rng.uniform(max(edges[bucket], 0.5), edges[bucket + 1]))
            name, samples = f"{split}_{number}.flac", int(seconds * audio_tars.RATE)
            members[name] = audio_tars.encoded(audio_tars.noise(samples, number))
            text = " ".join(rng.choice(WORDS, max(int(2.5 * seconds), 1)))
            rows.append(
                {
                    "tar_path": str(folder / f"{split}.tar"),
                    "tar_member_name": name,
                    "transcript": text,
                }
            )
            rows[-1] |= {"language": "en", "duration_s": samples / audio_tars.RATE}
        folder.mkdir(parents=True, exist_ok=True)
        audio_tars.write_tar(folder / f"{split}.tar", members)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")


def config(args: argparse.Namespace) -> dict[str, Any]:
    """The workflow's config: the example's choices, on one device."""
    example = yaml.safe_load((ROOT / "docs/examples/qwen3-asr-1.7b.yaml").read_text())["asr"]
    on_cpu = args.device == "cpu"
    training = {
        **example["training"],
        "device": args.device,
        "num_workers": 1 if on_cpu else 14,
        "eval_steps": 0,
    }
    training |= {"precision": "32-true", "gradient_checkpointing": 0} if on_cpu else {}
    calibration = {
        "enabled": True,
        "device": args.device,
        "soak_steps": args.soak,
        "max_bs": args.max_bs,
    }
    calibration |= {"max_memory_gb": 3.0} if on_cpu else {}
    steps = {"check_steps": args.check, "bench_steps": args.bench, "profile_steps": args.profile}
    section = {
        "source": "manifests",
        "manifest_dir": "data",
        "model": args.model,
        "ranks": 1,
        "runs": {},
    }
    section |= {"training": training, "calibration": calibration}
    section["throughput"] = {**steps, "reference": example["throughput"]["reference"]}
    return {"lanes": ["asr"], "asr": section}


def page(facts: dict[str, Any]) -> str:
    """docs/measured-gpu.md from the figures."""
    result, calibration = facts["throughput"], facts["calibration"]
    lines = [f"# Measured on {facts['device']}", "", "Written by `make gpu`; do not edit.", ""]
    lines += [
        f"Model {facts['model']}, random weights, generated audio; {facts['minutes']:.0f} minutes.",
        "",
    ]
    lines += ["| Bucket | Batch | Peak memory (GB) |", "| --- | ---: | ---: |"]
    for name, bucket in sorted(calibration["buckets"].items()):
        lines.append(f"| {name} | {bucket['batch_size']} | {bucket['peak_memory_gb']:.2f} |")
    roles = ["baseline", "bench", "ideal"]
    lines += [
        "",
        "| | " + " | ".join(roles) + " | bench / baseline |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for measure in result["comparison"].values():
        values = [measure[role] and f"{measure[role]['value']:.4g}" for role in roles]
        ratio = measure["ratio"] and f"{measure['ratio']:.2f}"
        lines.append(
            f"| {measure['name']} | " + " | ".join(str(v or "–") for v in [*values, ratio]) + " |"
        )
    lines += ["", "| Criterion | Bar | Result | Measured |", "| --- | --- | --- | --- |"]
    for one in result["criteria"]:
        lines.append(f"| {one['name']} | {one['bar']} | {one['status']} | {one['figure']} |")
    profile = result["profile"]
    lines += ["", "| Phase | Host (ms a step) | Device (ms a step) |", "| --- | ---: | ---: |"]
    for row in profile["phases"]:
        times = [
            1000 * row[clock] / profile["steps"] for clock in ("host_seconds", "device_seconds")
        ]
        lines.append(f"| {row['phase']} | " + " | ".join(f"{value:.1f}" for value in times) + " |")
    verified = facts["verification"]
    return "\n".join(
        [
            *lines,
            "",
            f"Verified: a peak of {verified['peak_memory_gb']:.2f} GB of {verified['limit_gb']:.2f} GB.",
            "",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="scratch: tars and results")
    add("--page", type=Path, required=True, help="output: Markdown; the JSON lies beside it")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--model", default="qwen3-asr-1.7b")
    add("--clips", type=int, default=6000)
    add("--longest", type=float, default=30.0, help="seconds of the longest clip")
    for name, default in (
        ("check", 50),
        ("bench", 200),
        ("profile", 20),
        ("soak", 20),
        ("max-bs", 1024),
    ):
        add(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("make gpu needs one CUDA device, and this machine has none", file=sys.stderr)
        return 1

    begin = time.monotonic()
    write_corpus(args.folder / "data", args.clips, args.longest)
    (args.folder / "config.yaml").write_text(yaml.safe_dump(config(args)))
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        str(ROOT / "Snakefile"),
        "--configfile",
        "config.yaml",
    ]
    command += ["--cores", "all", "asr_calibrate", "asr_throughput"]
    if code := subprocess.run(command, cwd=args.folder).returncode:
        return code
    results = args.folder / "results/asr"
    facts = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "a CPU",
        "model": args.model,
        "minutes": (time.monotonic() - begin) / 60,
        "calibration": jsonl.read(results / "calibration/calibrated_bs.json"),
        "verification": jsonl.read(results / "calibration/verification.json"),
        "throughput": jsonl.read(results / "report/throughput.json"),
    }
    atomic.write_json(args.page.with_suffix(".json"), facts)
    atomic.write_text(args.page, page(facts))
    print(args.page.read_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
