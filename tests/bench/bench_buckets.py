"""Bench of the bucket build against the original script's pandas way: seconds, ratio, peak RSS.

    python -m tests.bench.bench_buckets --rows 5000000 20000000 --work-dir /tmp/bench_buckets

Every run is a process of its own. Rows are made up: a real corpus's shares of durations,
transcripts of about 60 characters, 5,559 tars. Ours also joins every row with a tar index, which
the pandas way does not do.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.tars.index import write_index as write_tar_index
from millrace.asr.tars.scan import TarScan
from millrace.common import cli
from tests.corpora import WORDS

EDGES = (0.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
SHARES = (12.6, 24.8, 13.7, 35.3, 13.1, 0.5, 0.01)
TARS = 5559
CHUNK = 1 << 20


def seed_durations(rows: int, seed: int = 0) -> np.ndarray:
    """float32 seconds with SHARES per bucket, uniform inside a bucket (the first starts at 1 s)."""
    rng = np.random.default_rng(seed)
    shares = np.array(SHARES) / sum(SHARES)
    bucket = rng.choice(len(shares), rows, p=shares)
    low = np.array((1.0, *EDGES[1:-1]))[bucket]
    high = np.array(EDGES[1:])[bucket]
    return np.minimum(low + (high - low) * rng.random(rows), 29.99).astype(np.float32)


def generate(rows: int, folder: Path) -> None:
    """Write train.parquet, and the members of its tars as index.parquet, in pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    durations = seed_durations(rows)
    sentences = pa.array([" ".join(rng.choice(WORDS, 15)) for _ in range(50_000)])
    tars = pa.array([f"/alloc/finalsftdata/shard_{i:05d}/audio_16k.tar" for i in range(TARS)])
    names = ("tar_path", "tar_member_name", "transcript", "language")
    schema = pa.schema([*((name, pa.string()) for name in names), ("duration_s", pa.float64())])
    with pq.ParquetWriter(folder / "train.parquet", schema) as writer:
        for first in range(0, rows, CHUNK):
            ids = np.arange(first, min(first + CHUNK, rows))
            numbers = pa.array([f"{i:09d}" for i in ids.tolist()])
            pick = rng.integers(0, len(sentences), (2, len(ids)))
            text = pc.binary_join_element_wise(sentences.take(pick[0]), numbers, " ")
            columns = [
                tars.take(pa.array(ids % TARS)),
                pc.binary_join_element_wise(
                    pa.scalar("clips/utt_"), numbers, pa.scalar(".flac"), ""
                ),
                text,
                pa.array(["en", "de", "fr"]).take(pa.array(pick[1] % 3)),
                pa.array(durations[ids].astype(np.float64)),
            ]
            writer.write_table(pa.table(columns, schema=schema))
    write_index(rows, folder, tars)


def pandas_way(folder: Path, target: Path) -> None:
    """The original script as it stands, with its paths as arguments."""
    import pandas as pd

    target.mkdir(parents=True, exist_ok=True)
    df = pd.read_parquet(folder / "train.parquet")
    df["tar_index_path"] = df["tar_path"] + ".index.json"
    non_empty = df["transcript"].str.strip().ne("") & df["transcript"].notna()
    df = df[non_empty].copy()
    rng = np.random.RandomState(42)
    for low, high in pairwise(EDGES):
        mask = (df["duration_s"] >= low) & (df["duration_s"] < high)
        bdf = df[mask].copy()
        bdf = bdf.sample(frac=1.0, random_state=rng).reset_index(drop=True)
        bdf["bucket_id"] = f"b_{low:g}_{high:g}"
        bdf["bucket_max_duration"] = high
        bdf.to_parquet(target / f"b_{low:g}_{high:g}.parquet", index=False)


def write_index(rows: int, folder: Path, tars: pa.Array) -> None:
    """The tar index of members of 139,264 bytes each."""

    def scans() -> Iterator[TarScan]:
        for tar, path in enumerate(tars.to_pylist()):
            ids = range(tar, rows, len(tars))
            names = [f"clips/utt_{i:09d}.flac".encode() for i in ids]
            scan = TarScan(path, size=1 << 31, mtime_ns=1, names=names)
            scan.offsets = np.arange(len(ids), dtype=np.int64) * 140_288 + 512
            scan.sizes = np.full(len(ids), 139_264, np.int64)
            scan.kinds, scan.recovered = np.zeros(len(ids), np.uint8), np.zeros(len(ids), bool)
            yield scan

    write_tar_index(folder / "tars.index.parquet", scans())


def ours(folder: Path, target: Path) -> None:
    """The bucket build, joined with the index."""
    from millrace.asr.buckets import build as buckets
    from millrace.asr.buckets.addresses import TarIndices
    from millrace.asr.manifests.manifest import manifest_of

    manifest = manifest_of("train", [folder / "train.parquet"]).scan()
    index = TarIndices([folder / "tars.index.parquet"])
    (ledger,) = buckets.build([manifest], index, target, buckets.BucketChoices())
    assert ledger.rows_out == ledger.rows_in == manifest.rows, ledger


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work-dir", type=Path, default=Path("/tmp/bench_buckets"))
    parser.add_argument(
        "--side", choices=["generate", "ours", "pandas"], help="(what a process of its own runs)"
    )
    args = parser.parse_args()
    if args.side:
        _one_side(args.side, args.rows[0], args.work_dir)
        return
    for rows in args.rows:
        _run("generate", rows, args.work_dir)
        results = {}
        for _ in range(args.rounds):
            for side in ("ours", "pandas"):
                results.setdefault(side, []).append(_run(side, rows, args.work_dir))
        line = {"rows": rows}
        for side, runs in results.items():
            line[f"{side}_seconds"] = sorted(round(run["seconds"], 2) for run in runs)
            line[f"{side}_peak_gb"] = max(run["peak_gb"] for run in runs)
        line["ratio"] = round(min(line["pandas_seconds"]) / min(line["ours_seconds"]), 2)
        print(json.dumps(line), flush=True)
        shutil.rmtree(args.work_dir / str(rows))


def _one_side(side: str, rows: int, work_dir: Path) -> None:
    folder, target = work_dir / str(rows), work_dir / str(rows) / side
    started = time.perf_counter()
    if side == "generate":
        generate(rows, folder)
    else:
        {"ours": ours, "pandas": pandas_way}[side](folder, target)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({"seconds": time.perf_counter() - started, "peak_gb": round(peak, 3)}))


def _run(side: str, rows: int, work_dir: Path) -> dict:
    shutil.rmtree(work_dir / str(rows) / side, ignore_errors=True)
    command = [sys.executable, "-m", "tests.bench.bench_buckets", f"--side={side}"]
    command += [f"--rows={rows}", f"--work-dir={work_dir}"]
    out = subprocess.check_output(command, text=True, cwd=Path(__file__).parents[2])
    return json.loads(out.splitlines()[-1])


if __name__ == "__main__":
    main()
