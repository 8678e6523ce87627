"""One recording in every lossy container."""

from __future__ import annotations

import re
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
    live = write_av(folder / "live.wav", source, RATE, "libopus", "webm", live="1")
    # The live one states no duration, and no size of its clusters.
    unsized = re.sub(rb"(?s)(?<=\x1f\x43\xb6\x75)..", b"\x7f\xff", live.read_bytes())
    live.write_bytes(unsized)
    return {"video": write_video(folder / "video.mp4", source), "live": live, **files}
