"""Small tars of the tests of open_tars."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.asr.tars.test_scan import tar_of


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar of these members in this order, whatever their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(*members))
    return path


def write_samples(folder: Path, tars: int = 3, samples: int = 40) -> Path:
    """Tars of samples, each a `txt` of its own length that repeats its key, and a `cls`; returns
    their pattern."""
    for number in range(tars):
        members = []
        for sample in range(samples):
            key = f"{number}-{sample:03d}"
            members.append((f"{key}.txt", key.encode() * (1 + sample % 7)))
            members.append((f"{key}.cls", b"%d" % (sample % 10)))
        write_tar(folder / f"part-{number}.tar", members)
    return folder / "part-*.tar"
