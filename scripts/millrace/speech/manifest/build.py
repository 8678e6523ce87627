"""The manifest of a partition: one row per segment, from alignment files, with rejects and a
ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from millrace.common import jsonl
from millrace.common.error_rates import error_rates, normalised
from millrace.common.ledger import Ledger
from millrace.speech.audio import cut as audio
from millrace.speech.columns import MISSING_SOURCE, PENDING, SCHEMA
from millrace.speech.corpus import alignment
from millrace.speech.manifest import segments


@dataclass
class Manifest:
    """What one partition yields: `rows` as SCHEMA, `recordings` as the splits CSV, `rejects`, the
    ledger."""

    partition: dict
    limits: segments.Limits
    ledger: Ledger
    rows: list[dict] = field(default_factory=list)
    recordings: list[dict] = field(default_factory=list)
    rejects: list[dict] = field(default_factory=list)

    def table(self) -> pa.Table:
        """The rows as an Arrow table, whose schema has a digest of the partition file.

        Snakemake compares contents: where the rows are the same, as of other audio that is as long,
        shards that the same run has not cut would stay as they are.
        """
        schema = SCHEMA.with_metadata({"partition": jsonl.digest(self.partition)})
        return pa.Table.from_pylist(self.rows, schema=schema)


def line(name: object, ledger: Ledger) -> str:
    """What became of the segments that were found."""
    counts = f"{ledger.rows_in} segments found, {ledger.rows_out} in the manifest"
    reasons = f" ({ledger.reasons()})" if ledger.rows_rejected else ""
    return f"{name}: {counts}, {ledger.rows_rejected} rejected{reasons}"


def generate(partition: dict, limits: segments.Limits) -> Manifest:
    """Read the alignment files of a partition (as millrace.speech.sources wrote it) and make its
    manifest.

    Recordings stay in the partition's order (new ones come last, so that the shards of the old ones
    stay as they are), segments in order of time.
    """
    result = Manifest(partition, limits, Ledger("speech_generate_manifest", partition["partition"]))
    for recording in partition["recordings"]:
        _add_recording(result, recording)
    result.ledger.rows_out = len(result.rows)
    # A file that cannot be read is no segment: the country's ledger of files counts it.
    result.ledger.rejected.update(
        reject["reason"] for reject in result.rejects if reject["segment"] is not None
    )
    result.ledger.check()
    return result


def _add_recording(result: Manifest, recording: dict) -> None:
    rows: list[dict] = []
    sources = {t["audio"]["path"]: t["audio"] for t in recording["transcripts"] if t["audio"]}
    probes = {path: _probe(path) for path in sources}
    for transcript in recording["transcripts"]:
        seconds = None
        if transcript["audio"]:
            seconds, _ = probes[transcript["audio"]["path"]]
        rows += _transcript_rows(result, recording, transcript, seconds)
    rows.sort(key=lambda row: (row["start_seconds"], row["end_seconds"], row["transcript_id"]))
    rows, duplicates = segments.resolve_duplicates(rows)
    result.rejects += [
        row["_place"] | {"reason": why, "detail": detail} for row, why, detail in duplicates
    ]
    for row in rows:
        del row["_place"]
    result.rows += rows
    for path, source in sources.items() or [("", None)]:
        seconds, warnings = probes.get(path, (None, ()))
        result.ledger.warnings.update(warning.partition(":")[0] for warning in warnings)
        result.recordings.append(
            {
                "source_audio_path": path or recording["transcripts"][0]["audio_file"],
                "video_id": recording["video_id"],
                "duration_hours": None if seconds is None else seconds / 3600,
                "size_mb": source["size"] / 1e6 if source else None,
                **{name: result.partition[name] for name in ("split", "subset_id")},
                "warnings": list(warnings),
            }
        )


def _probe(path: str) -> tuple[float | None, Sequence[str]]:
    """Length in seconds and warnings; a file that cannot be read fails when it is cut, with its
    reason."""
    try:
        info = audio.probe(path)
    except audio.AudioError as error:
        return None, (f"{error.reason}: {error}",)
    return info.duration_seconds, info.warnings


def _transcript_rows(
    result: Manifest,
    recording: dict,
    transcript: dict,
    audio_seconds: float | None,
) -> list[dict]:
    """The rows of one transcript, with their `_place` for rejects; counts go to the ledger of
    `result`."""
    place = {
        "country": result.partition["country"],
        "video_id": recording["video_id"],
        "transcript_id": transcript["transcript_id"],
        "file": Path(transcript["path"]).name,
    }
    parsed = _parsed(result, transcript, place)
    if parsed is None:
        return []
    valid: list[segments.Segment] = []
    for number, raw in enumerate(parsed.segments):
        try:
            valid.append(segments.validate(raw, number, result.limits, audio_seconds))
        except segments.Unusable as error:
            reject = {"segment": number, "reason": error.reason, "detail": str(error)}
            result.rejects.append(place | reject)

    ledger = result.ledger
    ledger.repaired.update(name for segment in valid for name in segment.repairs)
    if missing := sum(segment.cer is None for segment in valid):
        ledger.repaired["cer_computed"] += missing
    compared = normalised if result.limits.normalise_text else str
    cers, wers = error_rates(
        [compared(segment.human_text) for segment in valid],
        [compared(segment.asr_text) for segment in valid],
    )
    return [
        _row(result.partition, place, transcript, segment, cer, wer)
        for segment, cer, wer in zip(valid, cers, wers, strict=True)
    ]


def _parsed(result: Manifest, transcript: dict, place: dict) -> alignment.Alignment | None:
    """The alignment file of a transcript, whose segments the ledger counts; None if it is
    rejected."""
    path = transcript["path"]
    ledger = result.ledger
    try:
        parsed = alignment.parse(Path(path).read_bytes())
    except (OSError, jsonl.BadJson) as error:
        # It has changed since the parse: the next one leaves it out.
        if isinstance(error, jsonl.BadJson):
            reason, detail = error.reason, str(error)
        else:
            reason, detail = "json_unreadable", error.strerror or str(error)
        result.rejects.append(place | {"segment": None, "reason": reason, "detail": detail})
        return None
    ledger.rows_in += len(parsed.segments)
    ledger.repaired.update(parsed.repairs)
    return parsed


def _row(
    partition: dict,
    place: dict,
    transcript: dict,
    segment: segments.Segment,
    computed_cer: float,
    wer: float,
) -> dict:
    """A row of the manifest, with what `resolve_duplicates` looks at."""
    source = transcript["audio"]
    missing = transcript["audio_file"]
    return {
        "country": place["country"],
        "video_id": place["video_id"],
        "transcript_id": place["transcript_id"],
        "key": segments.key_of(place["country"], place["video_id"], segment),
        "language": partition["language"],
        "source_audio_path": source["path"] if source else missing,
        "start_seconds": segment.start,
        "end_seconds": segment.end,
        "duration_seconds": round(segment.end - segment.start, 6),
        "asr_transcript": segment.asr_text,
        "human_transcript": segment.human_text,
        "cer": computed_cer if segment.cer is None else segment.cer,
        "wer": wer,
        "original_transcript_start_idx": segment.start_idx,
        "original_transcript_end_idx": segment.end_idx,
        "status": PENDING if source else MISSING_SOURCE,
        "error_message": "" if source else f"no audio file for {missing}",
        "batch_id": partition["partition"],
        "split": partition["split"],
        "subset_id": partition["subset_id"],
        "_place": {**place, "segment": segment.number},
    }
