"""The demo corpus on disk: tunes rendered with several soundfonts, tempi and keys, an index written
last."""

from __future__ import annotations

import base64
import configparser
import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import random
import shutil
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import atomic, debian, jsonl
from millrace.common.cli import Progress, log
from millrace.music.audio import chunks
from millrace.music.audio.recording import BINS, HOP_SECONDS, cqt
from millrace.music.demo.synthesis import Synthesiser

TUNES = "openttd-openmsx"
FONTS = ("timgm6mb-soundfont", "fluidr3mono-gm-soundfont", "musescore-general-soundfont-small")
VERSIONS, SECONDS = 5, 75  # of a tune; the longest of a version
HELD_OUT = ["valid"] * 7 + ["verify"] * 7  # splits of so many tunes; the others are for training
# Where tracks lie, in turn: HDF5 file, type, time first, storage. Every MM_EVERY-th one is a .mm
# file.
MM_EVERY = 40
CHUNKS: tuple[tuple[str, str, bool, dict[str, Any]], ...] = (
    ("demo_chunk_00001.h5", "<f4", False, {}),
    ("demo_chunk_00002.h5", "<f2", True, {}),
    ("demo_chunk_00003.h5", "<f2", True, {"compression": "gzip", "chunks": (256, BINS)}),
)
TURNS = (*CHUNKS[:2], *CHUNKS)


def fetch(root: Path, index: Path, seed: int, threads: int) -> None:
    """Make the corpus below `root` (h5/, mm/, metadata/) and describe it in `index`.

    Packages are stored in debian/ beside `root`, so that a second run needs no network. Equal
    packages and seeds give equal bytes. Every eighth tune has one version more in the splits,
    without features, as public data has dead links.
    """
    import h5py

    archives = root.parent / "debian"
    remedy = f"Put .deb files of {', '.join((TUNES, *FONTS))} into {archives} yourself"
    folders = debian.fetch([TUNES, *FONTS], archives, remedy)
    fonts = [min(folders[name].rglob("*.sf[23]")) for name in FONTS]
    tunes = sorted(folders[TUNES].rglob("*.mid"))
    titles = configparser.ConfigParser(strict=False, interpolation=None)
    titles.read(folders[TUNES].rglob("*.obm"), encoding="utf-8")

    split_of = dict(zip(random.Random(seed).sample(tunes, len(tunes)), HELD_OUT, strict=False))
    splits: dict[str, dict] = {split: {} for split in ("train", *dict.fromkeys(HELD_OUT))}
    records: list[dict[str, Any]] = []
    turns, context = itertools.cycle(TURNS), multiprocessing.get_context("spawn")
    packages = {name: debian.version(folder) for name, folder in folders.items()}
    renders = root.parent / f".rendered-{_digest(packages, seed)}"
    jobs = [tunes, *map(itertools.repeat, (fonts, seed, renders))]
    with (
        contextlib.ExitStack() as files,
        ProcessPoolExecutor(threads, context) as pool,
        Progress(len(tunes), "tunes", "demo corpus") as progress,
    ):
        h5 = {}
        for name, *_ in CHUNKS:
            partial = files.enter_context(atomic.replacing(root / "h5" / name))
            h5[name] = files.enter_context(h5py.File(partial, "w"))
        for row, (tune, versions) in enumerate(zip(tunes, pool.map(rendered, *jobs), strict=True)):
            title = titles.get("names", tune.name, fallback=tune.stem)
            clique = splits[split_of.get(tune, "train")].setdefault(f"C-{row}", [])
            for words, magnitudes in versions if row % 8 else [*versions, ("dead link", None)]:
                name = f"{tune.stem}:{len(clique)}"
                video = base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()).decode()[
                    :11
                ]
                version = {
                    "version_id": f"V-{VERSIONS * 2 * row + len(clique)}",
                    "youtube_id": video,
                }
                clique.append({**version, "track_title": f"{title} ({words})"})
                if magnitudes is None:
                    continue
                if len(records) % MM_EVERY < MM_EVERY - 1:
                    chunk, dtype, time_first, storage = next(turns)
                    record = chunks.add_track(
                        h5[chunk], video, magnitudes, dtype, time_first, **storage
                    )
                    records.append({**record, "h5_chunk": chunk})
                    continue
                # As published: float16 (T, C), the shape beside it.
                path, shape = root / "mm" / video[:2] / f"{video}.mm", magnitudes.T.shape
                with atomic.replacing(path) as partial:
                    magnitudes.T.astype("<f2").tofile(partial)
                with (
                    atomic.replacing(path.with_suffix(".npy")) as partial,
                    open(partial, "wb") as handle,
                ):
                    np.save(handle, np.array(shape))
                pointer = {"youtube_id": video, "mm_path": f"{video[:2]}/{path.name}"}
                records.append({**pointer, "hop_s": HOP_SECONDS, "shape": shape})
            progress.advance(1)
    jsonl.write_lines(root / "metadata/demo.jsonl", records)
    for split, cliques in splits.items():
        atomic.write_json(root / f"metadata/{split}.json", cliques)
    counts = {split: len(cliques) for split, cliques in splits.items()}
    atomic.write_json(
        index, {"packages": packages, "seed": seed, "cliques": counts, "tracks": len(records)}
    )
    shutil.rmtree(renders, ignore_errors=True)
    log.info("%s: %d tracks of %d tunes (%s)", root, len(records), len(tunes), counts)


def _digest(packages: dict[str, str], seed: int) -> str:
    """Names what rendering depends on."""
    return hashlib.sha256(f"{packages} {seed}".encode()).hexdigest()[:12]


def rendered(
    tune: Path, fonts: Sequence[Path], seed: int, folder: Path
) -> list[tuple[str, np.ndarray]]:
    """What `render` returns; kept in `folder`, so that a fetch that is killed goes on from
    there."""
    kept = folder / f"{tune.stem}.npz"
    try:
        with np.load(kept) as arrays:
            words = arrays["words"].tolist()
            return [(text, arrays[f"arr_{number}"]) for number, text in enumerate(words)]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # not there, or damaged
        versions = render(tune, fonts, seed)
    with atomic.replacing(kept) as partial, open(partial, "wb") as handle:
        magnitudes = [array for _, array in versions]
        np.savez(handle, *magnitudes, words=np.array([text for text, _ in versions]))
    return versions


def render(tune: Path, fonts: Sequence[Path], seed: int) -> list[tuple[str, np.ndarray]]:
    """What was changed, in words, and the CQT of each version of a tune; the first one is as
    written."""
    draws, versions = random.Random(f"{seed}:{tune.stem}"), []
    for number in range(VERSIONS):
        font = fonts[number % len(fonts)]
        pace, key = (draws.uniform(0.84, 1.19), draws.randint(-5, 6)) if number else (1.0, 0)
        samples = _synthesiser(font).play(tune, pace, key, SECONDS)
        words = f"{font.stem.split('_')[0]}, tempo ×{pace:.2f}, key {key:+d}"
        versions.append((words, cqt(samples)))
    return versions


_synthesiser = functools.cache(Synthesiser)  # one of each soundfont in a process
