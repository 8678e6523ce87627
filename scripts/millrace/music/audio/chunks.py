"""Features of many recordings in HDF5 chunks: which files of a folder are recordings, which chunks
stay as they are, and what the JSONL says of each."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import atomic
from millrace.common.cli import Progress
from millrace.common.errors import MillraceError
from millrace.music.audio.recording import BINS, HOP_SECONDS, features
from millrace.music.features.track import Refused

ENDINGS = [
    ".aac",
    ".aif",
    ".aiff",
    ".flac",
    ".m4a",
    ".mka",
    ".mp3",
    ".mp4",
    ".oga",
    ".ogg",
    ".opus",
    ".wav",
    ".webm",
    ".wma",
]


def add_track(
    h5: Any, number: str, magnitudes: np.ndarray, dtype: str, time_first: bool, **storage: Any
) -> dict:
    """Store (84, T) under /<id>/cqt in an open HDF5 file; return what the JSONL says of it."""
    stored = (magnitudes.T if time_first else magnitudes).astype(dtype)
    dataset = h5.create_dataset(f"{number}/cqt", data=stored, **storage)
    dataset.attrs.update({"hop_s": HOP_SECONDS, "n_bins": BINS})
    key = f"{number}/cqt"
    return {
        "youtube_id": number,
        "h5_key": key,
        "hop_s": HOP_SECONDS,
        "shape": list(stored.shape),
    }


def audio_files(root: Path) -> tuple[list[str], list[dict]]:
    """Recordings below a folder by their endings, sorted, and rejects: equal names, links to
    nothing or to folders."""
    files: dict[str, str] = {}
    rejects = []
    for path in sorted(root.rglob("*")):
        file = path.relative_to(root).as_posix()
        if path.is_symlink() and path.is_dir():
            rejects.append(rejected(file, "linked_folder", "it is not followed: name it itself"))
        elif path.suffix.lower() not in ENDINGS or path.is_dir():
            continue
        elif not path.is_file():
            rejects.append(rejected(file, "missing", "it is a link to nothing, or no file"))
        elif files.setdefault(path.stem, file) != file:
            rejects.append(rejected(file, "duplicate_id", f"{files[path.stem]} has the same name"))
    return list(files.values()), rejects


def sources_of(root: Path, files: Iterable[str]) -> list[list]:
    """Name, size and time of recordings, by which changed ones are known."""
    sources = []
    for file in files:
        status = os.stat(root / file)
        sources.append([file, status.st_size, status.st_mtime_ns])
    return sources


def rejected(file: str, reason: str, problem: str) -> dict:
    """A line of the rejects."""
    return {
        "audio": ascii(file)[1:-1],
        "reason": reason,
        "problem": problem,
    }


def create_chunks(
    root: Path, files: list[str], folder: Path, per_chunk: int, threads: int
) -> Iterator[tuple[list[dict], list[dict]]]:
    """Write `cqt_chunk_00001.h5` and so on; yield the (JSONL records, rejects) of each.

    A chunk whose recordings have the same names, sizes and times as when it was made stays as it
    is. Raises MillraceError if the folder has one that was not made here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    existing = sorted(folder.glob("cqt_chunk_*.h5"))
    for path in existing:
        _check_made_here(path)
    groups = {
        folder / f"cqt_chunk_{number:05}.h5": files[start : start + per_chunk]
        for number, start in enumerate(range(0, len(files), per_chunk), 1)
    }
    for path in {*existing} - {*groups}:
        path.unlink()  # of an earlier run over more recordings
    create = partial(create_chunk, root)
    context = multiprocessing.get_context("spawn")
    with (
        Progress(len(files), "recordings", "CQT") as progress,
        ProcessPoolExecutor(threads, context) as pool,
    ):
        for records, rejects in pool.map(create, groups.values(), groups):
            progress.advance(len(records) + len(rejects), len(rejects))
            yield records, rejects


def _check_made_here(path: Path) -> None:
    """Refuse an HDF5 file of somebody else, which would be replaced or removed."""
    import h5py

    with contextlib.suppress(OSError), h5py.File(path, "r") as h5:
        if "made" not in h5:
            problem = "features that this step has not made would be replaced"
            raise MillraceError(problem, str(path), "Give --h5-root a folder of its own")


def create_chunk(root: Path, files: Iterable[str], path: Path) -> tuple[list[dict], list[dict]]:
    """Write the features of some recordings into one HDF5 file, unless it holds them already."""
    import h5py

    sources = sources_of(root, files)
    try:
        with h5py.File(path, "r") as h5:
            made = json.loads(h5["made"][()])
        if made["sources"] == sources:
            return made["records"], made["rejects"]
    except (OSError, KeyError, ValueError):
        pass  # not there, or cut: it is made again
    records = []
    rejects = []
    with atomic.replacing(path) as unfinished, h5py.File(unfinished, "w") as h5:
        for file in files:
            number = Path(file).stem
            try:
                if not number.isprintable() or not number.strip("."):
                    raise Refused("bad_name", "the file's name cannot be an id")
                record = add_track(h5, number, features(root / file), "<f4", False)
                records.append({**record, "h5_chunk": path.name, "audio": file})
            except Refused as error:
                rejects.append(rejected(file, *error.args))
        h5["made"] = json.dumps({"sources": sources, "records": records, "rejects": rejects})
    return records, rejects
