"""Measure readers of tars against each other: interleaved runs, each in a process of its own,
medians."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from millrace.asr.throughput import loaders
from millrace.common.errors import MillraceError
from tests.bench.readers import peers
from tests.bench.readers.corpus import Corpus

OURS, ORIGINAL = "millrace", "original script"
FLOOR = "floor: storage alone"
RAW = (OURS, ORIGINAL, "tarfile", "webdataset", "lhotse", FLOOR)
BATCHES = (OURS, ORIGINAL, "webdataset", "webdataset, batched in workers", "lhotse")
STREAMING = {"webdataset", "webdataset, batched in workers", "lhotse"}
KINDS = ("raw warm", "raw cold", "batches")


@dataclass
class Setting:
    """What is measured: `batch_seconds` of padded audio a batch, DataLoader `workers`, `runs` per
    reader."""

    bucket_dir: Path
    corpus: Corpus
    scratch: Path
    workers: int = 2
    batch_seconds: float = 240.0
    runs: int = 5
    raw_members: int = 4000
    seed: int = 0
    kinds: tuple[str, ...] = KINDS

    @property
    def total_runs(self) -> int:
        return self.runs * sum(len(BATCHES if kind == "batches" else RAW) for kind in self.kinds)

    def raw(self) -> list[peers.Member]:
        """The members of a run of raw reads, in random order."""
        order = np.random.default_rng(self.seed).permutation(len(self.corpus.members))[
            : self.raw_members
        ]
        return [self.corpus.members[position] for position in order.tolist()]


@dataclass
class Result:
    """Members per second of one reader in one kind of run. `failed` says why there are none."""

    kind: str
    reader: str
    order: str
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def rate(self) -> float:
        """Median members a second of wall clock."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def cpu_ms(self) -> float:
        """Median CPU milliseconds a member, of all processes: what counts when the machine is
        shared."""
        return statistics.median(self.cpu) if self.cpu else 0.0


def measure(
    setting: Setting, advance: Callable[[int], None] = lambda runs: None
) -> tuple[list[Result], int]:
    """Run everything; return the results, and the number of samples whose audio was compared bit by
    bit.

    Raises MillraceError if it differs from the original script's; if a reader fails, its result
    says so.
    """
    failures = prepare(setting)
    equal = _in_process(check_equal, setting)
    results = []
    for kind in setting.kinds:
        names = BATCHES if kind == "batches" else RAW
        row = [Result(kind, name, "stream" if name in STREAMING else "random") for name in names]
        for _ in range(setting.runs):
            for result in row:
                result.failed = result.failed or failures.get(result.reader, "")
                if not result.failed:
                    _run(setting, result)
                advance(1)
        results += row
    return results, equal


def _run(setting: Setting, result: Result) -> None:
    for path in (*setting.corpus.tars, *sorted((setting.scratch / "shar").glob("*.tar"))):
        with open(path, "rb", buffering=0) as tar:
            # Ask the kernel to forget the pages (no privileges needed), or read them all.
            if result.kind != "raw warm":
                os.posix_fadvise(tar.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while result.kind != "raw cold" and tar.read(1 << 22):
                pass
    try:
        members, seconds, cpu = _in_process(_timed, setting, result.kind, result.reader)
        result.rates.append(members / seconds)
        result.cpu.append(1000 * cpu / members)
    except Exception as error:  # a peer's failure is a line of the report, whatever it is
        result.failed = _first_line(error)


def prepare(setting: Setting) -> dict[str, str]:
    """Write what the peers need beside the tars; return why a peer cannot take part."""
    failures = {}
    peers.OriginalTarReader.prepare(setting.corpus.members, setting.scratch)
    names = {name.rsplit(".", 1)[-1] for _, name, *_ in setting.corpus.members}
    if names != {"flac"}:
        failures = dict.fromkeys(
            STREAMING, f"needs tars of .flac members; these hold {sorted(names)}"
        )
    for name in STREAMING:
        if importlib.util.find_spec(name.partition(",")[0]) is None:
            failures[name] = "it is not installed (pip install -r requirements-bench.txt)"
    if "lhotse" not in failures:
        shard = max(
            1, len(setting.corpus.members) // max(len(setting.corpus.tars), 2 * setting.workers)
        )
        try:
            _in_process(
                peers.lhotse_prepare, setting.corpus.members, setting.scratch / "shar", shard
            )
        except Exception as error:
            failures["lhotse"] = _first_line(error)
    os.sync()  # pages still to be written cannot be dropped for the cold runs
    return failures


def _timed(setting: Setting, kind: str, name: str) -> tuple[int, float, float]:
    """(members, seconds, CPU seconds of this process and its workers) of one run, worker start
    included."""
    stream = batch_stream(setting, name) if kind == "batches" else raw_stream(setting, kind, name)
    started, cpu = time.perf_counter(), sum(os.times()[:4])
    members = (
        sum(len(lengths) for _, lengths in stream) if kind == "batches" else sum(1 for _ in stream)
    )
    seconds = time.perf_counter() - started
    del stream
    gc.collect()  # a loader's workers count once they have ended
    expected = len(setting.corpus.members) if kind == "batches" else len(setting.raw())
    if name not in STREAMING and members != expected:
        raise MillraceError(f"{name} gave {members} of {expected} members")
    return members, seconds, sum(os.times()[:4]) - cpu


def raw_stream(setting: Setting, kind: str, name: str) -> Iterator[bytes | int]:
    members, cores = setting.raw(), len(os.sched_getaffinity(0))
    if name == OURS:
        from millrace.asr.loading.reader import IndexedTarReader

        reader = IndexedTarReader()
        return reader.read_many([(member.tar, member.offset, member.size) for member in members])
    if name == FLOOR:
        from tests.bench.readers import storage

        return storage.reads(members, kind == "raw cold", cores)
    if name == "webdataset":
        return peers.webdataset_raw(setting.corpus.tars)
    if name == "lhotse":
        return peers.lhotse_raw(setting.scratch / "shar")
    reader = (
        peers.OriginalTarReader(str(setting.scratch))
        if name == ORIGINAL
        else loaders.TarfileReader()
    )
    return (reader.read(member.tar, member.name) for member in members)


def batch_stream(setting: Setting, name: str) -> Iterator[tuple]:
    corpus = setting.corpus
    batches = corpus.batches(setting.batch_seconds, setting.seed)
    if name == OURS:
        from millrace.asr.loading.dataset import BucketedDataset
        from millrace.asr.loading.row_table import RowTable
        from millrace.common.loading.loader import BatchLoader
        from tests.asr.audio_tars import ListedPlan

        table = RowTable.open(setting.bucket_dir)
        plan = ListedPlan([[corpus.rows[batch]] for batch in batches])
        dataset = BucketedDataset(table, plan)
        return ((batch.audio, batch.lengths) for batch in BatchLoader(dataset, setting.workers))
    if name == ORIGINAL:
        reader = peers.OriginalTarReader(str(setting.scratch))
        plan = [[corpus.members[position] for position in batch.tolist()] for batch in batches]
        return peers.waveform_batches(plan, reader, setting.workers)
    if name == "lhotse":
        return peers.lhotse_batches(
            setting.scratch / "shar", setting.batch_seconds, setting.workers
        )
    size = max(1, round(len(corpus.members) / len(batches)))
    return peers.webdataset_batches(corpus.tars, size, setting.workers, batched="batched" in name)


def check_equal(setting: Setting) -> int:
    """Compare the first batches of the original script with ours, bit by bit; return how many
    samples."""
    digests = []
    for name in (OURS, ORIGINAL):
        stream, digest = batch_stream(setting, name), []
        for _, batch in zip(range(20), stream, strict=False):
            waves = (line[:length].numpy() for line, length in zip(*batch, strict=True))
            digest += [hashlib.sha256(wave.tobytes()).digest() for wave in waves]
        digests.append(digest)
    if digests[0] != digests[1]:
        raise MillraceError("the audio of the two readers differs", where=str(setting.bucket_dir))
    return len(digests[0])


def _in_process(work: Callable, *arguments: object) -> Any:
    """Call `work` in a fresh process: imports, malloc and open files of one reader do not touch
    another's."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_start_process) as pool:
        return pool.submit(work, *arguments).result()


def _start_process() -> None:
    warnings.simplefilter("ignore")
    # Spawned for a clean start; the readers' own workers fork, the default on this platform.
    multiprocessing.set_start_method("fork", force=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
