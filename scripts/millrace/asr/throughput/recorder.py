"""What each step of a run took, by bucket: time, batch, padding, memory; and how busy the machine was
meanwhile.

    recorder = StepRecorder(folder, bucket_dir, device, facts={"loader": "bucketed"}, rank=rank)
    with recorder:  # writes throughput.json at the end, also of a run that fails
        loop.train(task, settings, folder, on_step=recorder.on_step)
    # and where the task makes its batches:  for batch in recorder.watch(loader): ...

Writes steps.jsonl (one line a step; of rank 0, which speaks for the others) and throughput.json into the
run's folder.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import torch

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.loading.decode import SAMPLING_RATE
from millrace.asr.throughput.run import FACTS, STEPS
from millrace.common import atomic
from millrace.common.machine import memory as memory_meter
from millrace.common.machine.use import Sampler, cores
from millrace.common.training import run_log

_WAITING = 256  # steps whose end a GPU has not reached yet


class StepRecorder:
    """A context around a run; `watch` its batches and call `on_step` after every optimiser step (loop.train
    does).

    A step's time is from when its first batch is asked for to its end: evaluations and checkpoints are left
    out. On a GPU it is the device's, and memory is what PyTorch's allocator held at most during the step; on
    the CPU it is the process's largest resident set. `facts` are kept in throughput.json: what the report
    compares runs by.
    """

    def __init__(
        self,
        folder: str | Path,
        bucket_dir: str | Path,
        device: torch.device | str | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        rank: int = 0,
        local_world_size: int = 1,
        interval: float = 0.5,
    ) -> None:
        self.folder, self.rank = Path(folder), rank
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.facts = orjson.loads(
            orjson.dumps(dict(facts or {}), default=str)
        )  # fails now and not after the run
        self.local_world_size = max(local_world_size, 1)
        self.buckets = Buckets(bucket_dir)
        number = self.device.index if self.device.index is not None else 0
        self.sampler = Sampler(number if self.device.type == "cuda" and not rank else None, interval)
        self.steps = 0
        self.spent: dict[str, float] = {}
        self._begin: Any = None
        self._begin_host = 0.0
        self._seen: list[dict[str, Any]] = []
        self._pending: deque[tuple[dict, Any, Any]] = deque()
        self._spans: list[tuple[float, float]] = []
        self._peak = 0
        self._handle: Any = None

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.close(_failure(error))

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches (millrace.asr.loading.collate.Batch), noted. A loader's `spent` seconds are noted
        too."""
        if self.rank:
            yield from batches
            return
        stream = iter(batches)
        try:
            while True:
                self._enter()
                before = dict(getattr(batches, "spent", {}))
                begin = time.perf_counter()
                try:
                    batch = next(stream)
                except StopIteration:
                    self._leave()
                    return
                waited = time.perf_counter() - begin
                spent = {
                    name: value - before.get(name, 0.0)
                    for name, value in getattr(batches, "spent", {}).items()
                }
                self._note(batch, waited, spent)
                yield batch
        finally:
            if hasattr(stream, "close"):
                stream.close()

    def on_step(self, step: int) -> None:
        """End optimiser step `step`."""
        if self.rank or self._begin is None:
            return
        line = self._line(step)
        self._spans.append((self._begin_host, time.monotonic()))
        self._pending.append((line, self._begin, self._mark()))
        self._begin, self._seen = None, []
        self.steps += 1
        if self._handle is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            run_log.truncate(self.folder / STEPS, step - 1)  # a resumed run writes them again
            self._handle = open(self.folder / STEPS, "ab")  # noqa: SIM115 - closed with the run
        self._write(wait=len(self._pending) > _WAITING)

    def close(self, failed: str | None = None) -> None:
        """Write what is left, and throughput.json; `failed` says why the run ended early."""
        self.sampler.stop()
        if self.rank:
            return
        if self._handle is not None:
            self._write(wait=failed is None)
            self._handle.close()
            self._handle = None
        count = cores() / self.local_world_size
        found = {
            **self.facts,
            "completed": failed is None,
            "failed": failed,
            "steps_recorded": self.steps,
            "machine": machine(self.device),
            "use": self.sampler.use(self._spans[1:], count),
            "spent_seconds": dict(sorted(self.spent.items())),
            "peak_memory_bytes": self._peak or None,
            "memory_is": "allocated on the GPU"
            if self.device.type == "cuda"
            else "resident set of the trainer",
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.write_json(self.folder / FACTS, found)

    def _enter(self) -> None:
        if self._begin is None:
            if self.steps == 1:
                self.sampler.start()  # the first step is a warm-up
            reset_peak(self.device)
            self._begin, self._begin_host = self._mark(), time.monotonic()

    def _leave(self) -> None:
        if not self._seen:
            self._begin = None

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note(self, batch: Any, waited: float, spent: dict[str, float]) -> None:
        seconds = np.asarray(batch["lengths"].cpu(), dtype=np.float64) / SAMPLING_RATE
        audio = batch["audio"]
        padded = audio.shape[0] * audio.shape[1] / SAMPLING_RATE if audio.ndim == 2 else 0.0
        self._seen.append(
            {
                "samples": len(batch),
                "planned": int(getattr(batch, "planned", len(batch))),
                "audio_seconds": float(seconds.sum()),
                "padded_audio_seconds": float(padded),
                "wait_seconds": waited,
                "spent": spent,
                "buckets": self.buckets.sums(batch.rows, seconds) if not batch.filler else {},
            }
        )

    def _line(self, step: int) -> dict[str, Any]:
        line: dict[str, Any] = {"step": step, "bucket": None, "batches": len(self._seen)}
        for name in ("samples", "planned", "audio_seconds", "padded_audio_seconds", "wait_seconds"):
            line[name] = sum(seen[name] for seen in self._seen)
        by_bucket: dict[str, list[float]] = {}
        for seen in self._seen:
            for name, value in seen["spent"].items():
                line[f"{name}_seconds"] = line.get(f"{name}_seconds", 0.0) + value
                self.spent[name] = self.spent.get(name, 0.0) + value
            for bucket, (samples, seconds) in seen["buckets"].items():
                total = by_bucket.setdefault(bucket, [0, 0.0])
                total[0], total[1] = total[0] + samples, total[1] + seconds
        line["buckets"] = by_bucket
        if len(by_bucket) == 1:
            line["bucket"] = next(iter(by_bucket))
        line["peak_memory_bytes"] = peak = peak_memory(self.device)
        self._peak = max(self._peak, peak)
        return line

    def _write(self, wait: bool) -> None:
        if wait and self.device.type == "cuda" and self._pending:
            self._pending[-1][2].synchronize()
        while self._pending:
            line, begin, end = self._pending[0]
            if self.device.type == "cuda" and not end.query():
                break
            seconds = begin.elapsed_time(end) / 1000 if self.device.type == "cuda" else end - begin
            self._handle.write(orjson.dumps({**line, "seconds": seconds}, option=orjson.OPT_APPEND_NEWLINE))
            self._pending.popleft()
        self._handle.flush()


class Buckets:
    """Which bucket a row is in, by its number in the concatenation of the bucket parquets."""

    def __init__(self, bucket_dir: str | Path) -> None:
        config = BucketConfig.read(bucket_dir)
        self.names = config.ids
        self.stops = np.cumsum([pq.ParquetFile(path).metadata.num_rows for path in config.parquets()])

    def sums(self, rows: np.ndarray, seconds: np.ndarray) -> dict[str, tuple[int, float]]:
        """(samples, seconds) by bucket."""
        numbers = np.searchsorted(self.stops, np.asarray(rows), side="right")
        found = {}
        for number in np.unique(numbers).tolist():
            inside = numbers == number
            found[self.names[number]] = int(inside.sum()), float(seconds[inside].sum())
        return found


def machine(device: torch.device) -> dict[str, Any]:
    """What a measurement was made on."""
    facts: dict[str, Any] = {"cores": cores(), "cpu": _cpu_name(), "torch": str(torch.__version__)}
    facts |= {"device": "cpu", "device_memory_bytes": None}
    if (
        device.type == "cuda" and torch.cuda.is_available()
    ):  # a run without one has failed, and says so itself
        properties = torch.cuda.get_device_properties(device)
        facts |= {"device": properties.name, "device_memory_bytes": properties.total_memory}
    return facts


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def reset_peak(device: torch.device) -> None:
    """Begin a new peak of memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        memory_meter.forget_highest_resident()


def peak_memory(device: torch.device) -> int:
    """Bytes at most since `reset_peak` (without the right to reset it: since the process began)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return memory_meter.highest_resident()


def _failure(error: BaseException | None) -> str | None:
    if error is None:
        return None
    if memory_meter.is_out_of_memory(error):
        return "out of memory"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return "stopped"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
