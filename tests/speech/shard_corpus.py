"""What the tests of the shards share: a small corpus of WAV recordings, its manifest part, digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from millrace.speech.columns import SCHEMA

RATE = 16_000


def write_recording(path: Path, seconds: float, seed: int, rate: int = RATE) -> Path:
    """Noise below tones: every place of it is unlike every other, so a segment cut elsewhere is found out."""
    rng = np.random.default_rng(seed)
    n = int(seconds * rate)
    tone = 6000 * np.sin(2 * np.pi * (200 + 40 * seed) * np.arange(n) / rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = (tone + rng.integers(-4000, 4000, n)).astype(np.int16)
    soundfile.write(path, samples, rate, format="WAV", subtype="PCM_16")
    return path


def row(
    source: Path | str, start: float, end: float, partition: str = "testland-test-00000", **fields: object
) -> dict:
    """A pending manifest row; `fields` replace what is made up here."""
    folder = partition.removeprefix("testland-")[:-6]
    split, _, subset = folder.partition("-")
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
        **{"split": split, "subset_id": int(subset) if subset else None},
    }
    assert not set(fields) - set(made)
    return made | fields


def write_part(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    return path


def corpus(
    folder: Path, recordings: int = 4, segments: int = 6, partition: str = "testland-test-00000"
) -> list[dict]:
    """`recordings` files of `segments` x 1.5 s each, and a row for every segment."""
    rows = []
    for number in range(recordings):
        source = write_recording(folder / f"video_{number}.wav", 1.5 * segments + 0.5, seed=number)
        rows += [row(source, 1.5 * n, 1.5 * n + 1.25, partition) for n in range(segments)]
    return rows


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """SHA-256 and mtime of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {str(path.relative_to(folder)): (digest[path], path.stat().st_mtime_ns) for path in files}


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    return {name: sha256 for name, (sha256, _) in tree(folder).items()}
