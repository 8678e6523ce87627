"""A finished run as the page of the runs shows it, and the clips that all runs transcribe worst."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import soundfile

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.evaluation import hypotheses
from millrace.asr.evaluation.hypotheses import Hypothesis
from millrace.asr.loading.decode import SAMPLING_RATE, decode
from millrace.asr.loading.reader import IndexedTarReader, SampleError
from millrace.asr.loading.row_table import RowTable
from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError, own_file

# First bytes of what browsers play as it is; all else becomes FLAC.
_PLAYED = {b"fLaC": "audio/flac", b"RIFF": "audio/wav", b"OggS": "audio/ogg", b"ID3": "audio/mpeg"}


class Run:
    """`metrics.json` of a finished run, with the curves, settings and hypotheses beside it."""

    def __init__(self, metrics: str | Path) -> None:
        self.folder = Path(metrics).parent
        self.name = self.folder.name
        self.metrics: dict[str, Any] = jsonl.read(metrics)
        # Runs that an earlier version made have none.
        self.rates: dict[str, Any] = self.metrics.get("error_rates", {})
        self.settings: dict[str, Any] = jsonl.read_or({}, self.folder / "run.json").get("run", {})
        self.machine: dict[str, Any] = (
            jsonl.read_or({}, self.folder / "throughput.json").get("machine") or {}
        )
        self.hypotheses = hypotheses.read(self.folder)
        path = self.folder / "metrics.jsonl"
        self._log = (
            [row for _, row, _ in jsonl.lines(path) if isinstance(row, dict)]
            if path.exists()
            else []
        )

    def curve(self, event: str, name: str) -> list[tuple[int, float]]:
        """(step, value) of the log: of event `train` a figure, of `eval` a metric of dev."""
        lines = [
            (line, line.get("metrics", line)) for line in self._log if line.get("event") == event
        ]
        return [(line["step"], of[name]) for line, of in lines if of.get(name) is not None]


class Clip(NamedTuple):
    """A clip with what each run has written (run, text, rate), and the mean of the rates; `audio`
    is a data URI, or ""."""

    line: Hypothesis
    rate: float
    texts: list[tuple[str, str, float]]
    audio: str = ""


def worst_clips(runs: Sequence[Run], config: BucketConfig, count: int = 20) -> list[Clip]:
    """The clips with the highest character error rates, as means over the runs; of dev if there is
    no test.

    Equal ones: the longest reference first.
    """
    lines = [(run.name, line) for run in runs for line in run.hypotheses]
    split = "test" if any(line["split"] == "test" for _, line in lines) else "dev"
    by_clip: dict[int, list[tuple[str, Hypothesis]]] = {}
    for name, line in lines:
        if line["split"] == split:
            by_clip.setdefault(line["sample_id"], []).append((name, line))
    clips = []
    for of_runs in by_clip.values():
        texts = [
            (name, of["hypothesis"], of["edits"] / max(of["characters"], 1)) for name, of in of_runs
        ]
        clips.append(Clip(of_runs[0][1], sum(rate for *_, rate in texts) / len(texts), texts))
    clips.sort(key=lambda clip: (-clip.rate, -clip.line["characters"], clip.line["key"]))
    ids = [clip.line["sample_id"] for clip in clips[:count]]
    audio = _audio(config, split, ids) if split in config.splits else {}
    return [clip._replace(audio=audio.get(at, "")) for clip, at in zip(clips, ids, strict=False)]


def _audio(config: BucketConfig, split: str, sample_ids: Sequence[int]) -> dict[int, str]:
    """Data URIs of samples; those that are no longer in the buckets or in their tars are
    missing."""
    uris: dict[int, str] = {}
    with own_file(path := config.parquets(split)[0]):
        column = pq.read_table(path, columns=["sample_id"], partitioning=None)[
            "sample_id"
        ].to_numpy()
    table = RowTable.open(config.file.parent, split=split)
    reader = IndexedTarReader(tars=table.tars)
    for row in table.rows(np.flatnonzero(np.isin(column, np.array(sample_ids, dtype=np.uint64)))):
        try:
            uris[row.sample_id] = data_uri(reader.read(row.tar, row.offset, row.size))
        except (SampleError, MillraceError) as error:
            log.warning(
                "%s has no player on the page: %s", table.place(row.number, str(error)), error
            )
    return uris


def data_uri(raw: bytes) -> str:
    """The sound of a member for an <audio> element; raises DecodeError."""
    kind = next((kind for head, kind in _PLAYED.items() if raw.startswith(head)), "")
    if not kind:
        sink = io.BytesIO()
        soundfile.write(sink, decode(raw), SAMPLING_RATE, format="FLAC")
        raw, kind = sink.getvalue(), "audio/flac"
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"
