"""What the tests of the shards share: a small corpus of WAV recordings, its manifest part,
digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from millrace.speech.columns import SCHEMA
from tests.corpora import RATE, noise

PARTITION = "testland-test-00000"


def write_recording(path: Path, seconds: float, seed: int, rate: int = RATE) -> Path:
    """A WAV of noise: every place of it is unlike every other, so a segment cut elsewhere shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, noise(seconds * rate / RATE, seed), rate, format="WAV")
    return path


def row(
    source: Path | str, start: float, end: float, partition: str = PARTITION, **fields: object
) -> dict:
    """A pending manifest row; `fields` replace what is made up here."""
    _, split, *subset, _ = partition.split("-")
    video = Path(source).stem
    made = {
        "key": f"testland_{video}_{int(start * 1000)}_{int(end * 1000)}",
        **{"country": "testland", "language": "tl", "video_id": video, "transcript_id": "t1"},
        "source_audio_path": str(source),
        **{"start_seconds": start, "end_seconds": end, "duration_seconds": round(end - start, 6)},
        **{"asr_transcript": f"heard {start:g}", "human_transcript": f"said {start:g}"},
        **{"cer": 0.05, "wer": 0.1},
        **{"original_transcript_start_idx": 3.0, "original_transcript_end_idx": None},
        **{"status": "pending_local_tar", "error_message": "", "batch_id": partition},
        **{"split": split, "subset_id": int(subset[0]) if subset else None},
    }
    return made | fields


def write_part(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    return path


def corpus(
    folder: Path, recordings: int = 4, segments: int = 6, partition: str = PARTITION
) -> list[dict]:
    """`recordings` files of `segments` x 1.5 s each, and a row for every segment."""
    rows = []
    for number in range(recordings):
        source = write_recording(folder / f"video_{number}.wav", 1.5 * segments + 0.5, seed=number)
        rows += [row(source, 1.5 * n, 1.5 * n + 1.25, partition) for n in range(segments)]
    return rows


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """SHA-256 and mtime of every file."""
    files = {
        str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    digest = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return {name: (digest[name], path.stat().st_mtime_ns) for name, path in files.items()}


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    return {name: sha256 for name, (sha256, _) in tree(folder).items()}
