"""Bench of the batch planner: rows per second, padding, useful work over ranks, peak RSS.

python -m tests.bench.bench_planner --rows 5000000
"""

from __future__ import annotations

import json
import resource
import time

import numpy as np

from millrace.asr.buckets.edges import bucket_of
from millrace.asr.planning.cut import BatchBudget
from millrace.asr.planning.planner import plan_epoch, replan
from millrace.common import cli
from tests.bench.bench_buckets import EDGES, seed_durations

RANKS, EPOCHS = 8, 3
SECONDS = 240.0  # padded, of a batch


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    total = parser.parse_args().rows
    durations = seed_durations(total)
    bucket = bucket_of(durations, EDGES)
    buckets = [durations[bucket == number] for number in range(len(EDGES) - 1)]
    del durations, bucket
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    for epoch in range(EPOCHS):
        started, cpu = time.perf_counter(), time.process_time()
        plan = plan_epoch(buckets, BatchBudget(SECONDS), 42, epoch, RANKS)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        names = ("rows", "steps", "padding", "useful_work", "split_batches", "filler_batches")
        line = {name: plan.stats()[name] for name in names}
        line |= {"rows_per_s": round(total / seconds), "rows_per_cpu_s": round(total / cpu)}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(json.dumps({**line, "rss_before_gb": round(before, 2), "peak_gb": round(peak, 2)}))
    started = time.perf_counter()
    rest = replan(plan, len(plan) // 3, RANKS * 2)
    line = {"replan_s": round(time.perf_counter() - started, 2)}
    print(json.dumps({**line, **{name: rest.stats()[name] for name in ("padding", "useful_work")}}))
    started = time.perf_counter()
    for step in range(10_000):
        plan.batch(step % len(plan), 0)
    line = {"batch_us": round((time.perf_counter() - started) * 100, 2)}
    print(json.dumps({**line, "rows": int(np.diff(plan.offsets).mean())}))


if __name__ == "__main__":
    main()
