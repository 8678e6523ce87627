"""Small buckets of real audio for the tests of the calibration, and simulated trials."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from millrace.asr.calibration import worst_case
from tests.asr import audio_tars

# Much memory for its compute: hardly a recurrence.
MODEL_OPTIONS = {"channels": 16, "hidden": 16, "layers": 1}


def write(
    folder: Path,
    buckets: dict[str, tuple[int, float, float]],
    broken: set[int] = frozenset(),
    more: int = 1,
) -> Path:
    """Buckets {id: (rows, shortest, longest seconds)} over one tar; returns bucket_config.json.
    Members whose number is in `broken` hold no audio. The last row of a bucket is its longest; the
    first has the longest transcript, by `more` times two words."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    tar = folder / "clips.tar"
    members, rows = {}, {}
    for bucket, (count, low, high) in buckets.items():
        rows[bucket] = []
        for place, seconds in enumerate(np.sort(rng.uniform(low, high, count)).round(3).tolist()):
            number = len(members)
            name = f"clip_{number}.flac"
            raw = audio_tars.encoded(audio_tars.noise(int(seconds * audio_tars.RATE), number))
            members[name] = b"no audio" if number in broken else raw
            text = f"number {number} said" + " and more" * (more if place == 0 else 0)
            row = {"tar_path": str(tar), "tar_member_name": name, "duration_s": seconds}
            row |= {"sample_id": number, "transcript": text, "language": "English"}
            rows[bucket].append(row)
    places = audio_tars.write_tar(tar, members)
    for row in itertools.chain(*rows.values()):
        row["offset"], row["size"] = places[row["tar_member_name"]]
    return audio_tars.write_buckets(folder / "buckets", rows, [tar]) / "bucket_config.json"


def request(
    config: Path, bucket: str, kind: str, limit_gb: float, rows: int, steps: int
) -> dict[str, Any]:
    """What a trial is asked."""
    case = worst_case.find(config, bucket, 4096)
    return {
        "kind": kind,
        "options": {
            "bucket_dir": str(config.parent),
            "model_options": MODEL_OPTIONS,
            "num_workers": 0,
        },
        "settings": {"device": "cpu"},
        "limit_gb": limit_gb,
        "world_size": 1,
        "rows": rows,
        "steps": steps,
        "audio_rows": case.audio_rows,
        "text_rows": case.text_rows,
        "bucket": case.number,
    }
