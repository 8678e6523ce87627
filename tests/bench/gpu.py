"""What only a GPU can show, on generated audio: `make gpu`; on a CPU, with a tiny model, that all
of it runs.

    PYTHONPATH=scripts:. python -m tests.bench.gpu --folder /tmp/gpu --page docs/measured-gpu.md

Runs the tests that need a device, then calibrates buckets, verifies on all ranks, runs check,
bench, baseline and profile by the workflow's own rules, and writes the page. Beside it lies
the JSON of all figures, written anew with each one that is known, as a lent machine may end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from millrace.asr.buckets.edges import DEFAULT_EDGES
from millrace.asr.models import registry
from millrace.common import atomic, jsonl
from tests.asr import audio_tars
from tests.asr.bucket_corpus import row_of, write_manifest
from tests.corpora import WORDS

ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 2.0


def write_corpus(folder: Path, clips: int, longest: float, filled: int) -> None:
    """Tars of noise in buckets up to `longest` seconds, as many clips in each, and their manifests.

    Only `filled` of the buckets hold any, the longest and others evenly below it: each takes up to
    twelve trials, and each of these loads the model.
    """
    rng = np.random.default_rng(7)
    edges = [edge for edge in DEFAULT_EDGES if edge < longest] + [longest]
    buckets = len(edges) - 1
    places = [buckets - 1 - place * buckets // filled for place in range(filled)]
    few = max(clips // 20, 4)
    for split, count in {"train": clips, "dev": few, "test": few}.items():
        tar, rows, members = folder / f"{split}.tar", [], {}
        for number in range(count):
            bucket = int(rng.choice(places))
            seconds = float(rng.uniform(max(edges[bucket], 0.5), edges[bucket + 1]))
            name, samples = f"{split}_{number}.flac", int(seconds * audio_tars.RATE)
            members[name] = audio_tars.encoded(audio_tars.noise(samples, number))
            text = " ".join(rng.choice(WORDS, max(int(2.5 * seconds), 1)))
            seconds = samples / audio_tars.RATE
            rows.append(row_of(tar, name, transcript=text, language="en", duration_s=seconds))
        write_manifest(folder / f"{split}.parquet", rows)
        audio_tars.write_tar(tar, members)


def write_model(name: str, folder: Path) -> None:
    """A model with random weights, as a folder: drawn once, and not in each of the trials."""
    texts = [" ".join(WORDS)]
    registry.build(name, {}, texts).save_pretrained(folder)


def config(args: argparse.Namespace) -> dict[str, Any]:
    """The workflow's config: the example's choices, on one device."""
    example = yaml.safe_load((ROOT / "docs/examples/qwen3-asr-1.7b.yaml").read_text())["asr"]
    on_cpu = args.device == "cpu"
    training = example["training"] | {"device": args.device, "eval_steps": 0}
    training["num_workers"] = 1 if on_cpu else 14
    training["gradient_checkpointing"] = args.gradient_checkpointing
    training |= {"precision": "32-true", "gradient_checkpointing": 0} if on_cpu else {}
    calibration = {"enabled": True, "device": args.device, "max_bs": args.max_bs}
    calibration |= {"soak_steps": args.soak} | ({"max_memory_gb": 3.0} if on_cpu else {})
    steps = {"check_steps": args.check, "bench_steps": args.bench, "profile_steps": args.profile}
    section = {"source": "manifests", "manifest_dir": "data", "model_path": "model"}
    section |= {"ranks": 1, "runs": {}, "training": training}
    section |= {"calibration": calibration, "throughput": steps}
    return {"lanes": ["asr"], "asr": section}


def page(facts: dict[str, Any]) -> str:
    """docs/measured-gpu.md from the figures."""
    result, calibration = facts["throughput"], facts["calibration"]
    lines = [f"# Measured on {facts['device']}", "", "Written by `make gpu`; do not edit.", ""]
    lines += [
        f"Model {facts['model']}, random weights, generated audio; {facts['minutes']:.0f} minutes.",
        "",
    ]
    lines += ["| Bucket | Batch | Peak memory (GB) | Trials |", "| --- | ---: | ---: | ---: |"]
    for name, bucket in sorted(calibration["buckets"].items()):
        if not bucket.get("empty"):
            trials = len(facts["buckets"][name]["trials"])
            row = f"| {name} | {bucket['batch_size']} | {bucket['peak_memory_gb']:.2f} | {trials} |"
            lines.append(row)
    roles = ["baseline", "bench"]
    lines += [
        "",
        "| | " + " | ".join(roles) + " | bench / baseline |",
        "| --- | ---: | ---: | ---: |",
    ]
    for measure in result["comparison"].values():
        values = [measure[role] and f"{measure[role]:.4g}" for role in roles]
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
    peak, limit = verified["peak_memory_gb"], verified["limit_gb"]
    return "\n".join([*lines, "", f"Verified: a peak of {peak:.2f} GB of {limit:.2f} GB.", ""])


# What is asked first comes first, should the machine end before all of it.
TARGETS = [
    ["results/asr/runs/bench/metrics.json", "results/asr/runs/baseline/metrics.json"],
    ["asr_calibrate", "asr_throughput"],
]
PARTS = {
    "calibration": "calibration/calibrated_bs.json",
    "verification": "calibration/verification.json",
    "throughput": "report/throughput.json",
}


def known(results: Path) -> dict[str, Any]:
    """The figures there are so far: of buckets, of runs, and of the parts."""
    facts = {"buckets": {}, "runs": {}}
    for path in sorted(results.glob("calibration/buckets/*.json")):
        facts["buckets"][path.stem] = jsonl.read(path)
    for path in sorted(results.glob("runs/*/metrics.json")):
        facts["runs"][path.parent.name] = jsonl.read(path)
    for name, path in PARTS.items():
        if (results / path).exists():
            facts[name] = jsonl.read(results / path)
    return facts


def names(facts: dict[str, Any]) -> list[str]:
    """What is known, in words."""
    return [*facts["buckets"], *facts["runs"], *(part for part in PARTS if part in facts)]


def follow(
    command: list[str], folder: Path, output: Path, about: dict[str, Any], begin: float
) -> int:
    """The exit code of the workflow; meanwhile the figures go to `output` as they come.

    `begin`: the monotonic time at which all began.
    """
    told = names(known(folder / "results/asr"))
    with subprocess.Popen(command, cwd=folder) as running:
        while True:
            code = running.poll()
            facts = known(folder / "results/asr")
            for name in names(facts):
                if name not in told:
                    told.append(name)
                    print(f"{time.monotonic() - begin:.0f} s: {name} is known", flush=True)
            minutes = (time.monotonic() - begin) / 60
            atomic.write_json(output, {**about, "minutes": minutes, **facts})
            if code is not None:
                return code
            time.sleep(_LOOK_SECONDS)


def run_tests() -> int:
    """The tests that need a device, each named as it ends."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "tests/asr/models", "tests/bench"]
    return subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT).returncode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="scratch: tars and results")
    add("--page", type=Path, required=True, help="output: Markdown; the JSON lies beside it")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--model", default="qwen3-asr-0.6b")
    add("--clips", type=int, default=3000)
    add("--buckets", type=int, default=2, help="buckets that hold clips")
    add("--tests", type=int, default=1, help="0: without the tests before")
    add("--gradient-checkpointing", type=int, default=1, help="0: more memory, less work")
    add("--longest", type=float, default=30.0, help="seconds of the longest clip")
    numbers = {"check": 50, "bench": 200, "profile": 20, "soak": 20, "max-bs": 1024}
    for name, default in numbers.items():
        add(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("make gpu needs one CUDA device, and this machine has none", file=sys.stderr)
        return 1

    # What is measured is worth having, also where a test has failed.
    tested = run_tests() if args.tests and args.device == "cuda" else 0
    write_corpus(args.folder / "data", args.clips, args.longest, args.buckets)
    write_model(args.model, args.folder / "model")
    (args.folder / "config.yaml").write_text(yaml.safe_dump(config(args)))
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile")]
    command += ["--configfile", "config.yaml", "--cores", "all"]
    device = torch.cuda.get_device_name() if args.device == "cuda" else "a CPU"
    output = args.page.with_suffix(".json")
    about = {"device": device, "torch": str(torch.__version__), "model": args.model}
    begin = time.monotonic()
    for targets in TARGETS:
        if code := follow([*command, *targets], args.folder, output, about, begin):
            return code
    atomic.write_text(args.page, page(jsonl.read(output)))
    print(args.page.read_text())
    return tested


if __name__ == "__main__":
    raise SystemExit(main())
