"""Small tars of the tests of open_tars."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar of these members in this order, whatever their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
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
