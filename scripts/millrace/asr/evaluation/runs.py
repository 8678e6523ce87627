"""A finished run as the page of the runs shows it, and the clips that all runs transcribe worst."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import soundfile

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.evaluation import hypotheses
from millrace.asr.evaluation.hypotheses import Hypothesis
from millrace.asr.loading.reader import IndexedTarReader, SampleError
from millrace.asr.loading.row_table import RowTable
from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError, own_file
from millrace.common.loading.decode import SAMPLING_RATE, decode

_SHOWN = 20  # clips to hear


class Run:
    """`metrics.json` of a finished run, with the curves, settings and hypotheses beside it."""

    def __init__(self, metrics: str | Path) -> None:
        folder = Path(metrics).parent
        self.name = folder.name
        self.metrics: dict[str, Any] = jsonl.read(metrics)
        self.rates: dict[str, Any] = self.metrics.get("error_rates", {})
        note = jsonl.read_or({}, folder / "run.json")
        self.settings: dict[str, Any] = note.get("run", {})
        self.hypotheses = hypotheses.read(folder)
        self._log = jsonl.whole_lines(folder / "metrics.jsonl")

    def curve(self, event: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of the log: of event `train` a figure, of `eval` a metric of dev."""
        points = []
        for line in self._log:
            value = line.get("metrics", line).get(name)
            if line["event"] == event and value is not None:
                points.append((line["step"], value))
        return points


class Clip(NamedTuple):
    """A clip with what each run has written (run, text, rate), and the mean of the rates; `audio`
    is a data URI, or ""."""

    line: Hypothesis
    rate: float
    texts: list[tuple[str, str, float]]
    audio: str = ""


def worst_clips(
    runs: Sequence[Run],
    config: BucketConfig,
) -> list[Clip]:
    """The _SHOWN clips with the highest character error rates, as means over the runs; of dev if
    there is no test.

    Equal ones: the longest reference first.
    """
    splits = {line["split"] for run in runs for line in run.hypotheses}
    split = "test" if "test" in splits else "dev"
    by_clip: dict[int, list[tuple[str, Hypothesis]]] = defaultdict(list)
    for run in runs:
        for line in run.hypotheses:
            if line["split"] == split:
                by_clip[line["sample_id"]].append((run.name, line))

    clips = []
    for of_runs in by_clip.values():
        texts = []
        for name, line in of_runs:
            share = line["edits"] / max(line["characters"], 1)
            texts.append((name, line["hypothesis"], share))
        rate = sum(rate for *_, rate in texts) / len(texts)
        _, first = of_runs[0]
        clips.append(Clip(first, rate, texts))
    clips = sorted(clips, key=_worst_first)[:_SHOWN]
    ids = [clip.line["sample_id"] for clip in clips]
    audio = {}
    if split in config.splits:
        audio = _audio(config, split, ids)
    return [clip._replace(audio=audio.get(clip.line["sample_id"], "")) for clip in clips]


def _worst_first(clip: Clip) -> tuple[float, int, str]:
    return (-clip.rate, -clip.line["characters"], clip.line["key"])


def _audio(
    config: BucketConfig,
    split: str,
    sample_ids: Sequence[int],
) -> dict[int, str]:
    """Data URIs of samples; those that are no longer in the buckets or in their tars are
    missing."""
    path = config.parquets(split)[0]
    with own_file(path):
        parquet = pq.read_table(path, columns=["sample_id"], partitioning=None)
    column = parquet["sample_id"].to_numpy()
    is_wanted = np.isin(column, np.array(sample_ids, np.uint64))
    wanted = np.flatnonzero(is_wanted)
    table = RowTable.open(config.file.parent, split=split)
    reader = IndexedTarReader(tars=table.tars)
    uris: dict[int, str] = {}
    for row in table.rows(wanted):
        try:
            raw = reader.read(row.tar, row.offset, row.size)
            uris[row.sample_id] = data_uri(raw)
        except (SampleError, MillraceError) as error:
            place = table.place(row.number, str(error))
            log.warning("%s has no player on the page: %s", place, error)
    return uris


def data_uri(raw: bytes) -> str:
    """The sound of a member as FLAC for an <audio> element; raises DecodeError."""
    if not raw.startswith(b"fLaC"):
        sink = io.BytesIO()
        soundfile.write(sink, decode(raw), SAMPLING_RATE, format="FLAC")
        raw = sink.getvalue()
    encoded = base64.b64encode(raw).decode()
    return f"data:audio/flac;base64,{encoded}"
