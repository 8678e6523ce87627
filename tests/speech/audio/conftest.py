"""One recording in every lossy container."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.speech.audio.recordings import RATE, signal, write_av, write_video

LOSSY = {
    "opus": ("libopus", "ogg"),
    "webm": ("libopus", "webm"),
    "m4a": ("aac", "ipod"),
    "mkv": ("aac", "matroska"),
    "mp3": ("libmp3lame", "mp3"),
    "ts": ("aac", "mpegts"),
    "aac": ("aac", "adts"),
    "live": ("libopus", "webm", "mono", "", {"live": "1"}),  # states no duration
}


@pytest.fixture(scope="session")
def source() -> np.ndarray:
    """What went in."""
    return signal()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, source) -> dict[str, Path]:
    """Container -> its file. Its extension lies: content decides."""
    folder = tmp_path_factory.mktemp("lossy")
    files = {
        name: write_av(folder / f"{name}.wav", source, RATE, *how) for name, how in LOSSY.items()
    }
    return {"video": write_video(folder / "video.mp4", source), **files}
