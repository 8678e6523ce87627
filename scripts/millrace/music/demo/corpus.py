"""The demo corpus on disk: tunes rendered with several soundfonts, tempi and keys, their splits and
how each is stored, an index written last."""

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
from collections.abc import Iterator, Sequence
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
VERSIONS = 5  # of a tune
SECONDS = 75  # the longest of a version
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
    archives = root.parent / "debian"
    remedy = f"Put .deb files of {', '.join((TUNES, *FONTS))} into {archives} yourself"
    folders = debian.fetch([TUNES, *FONTS], archives, remedy)
    fonts = [min(folders[name].rglob("*.sf[23]")) for name in FONTS]
    tunes = sorted(folders[TUNES].rglob("*.mid"))
    titles = configparser.ConfigParser(strict=False, interpolation=None)
    titles.read(folders[TUNES].rglob("*.obm"), encoding="utf-8")

    packages = {name: debian.version(folder) for name, folder in folders.items()}
    renders = root.parent / f".rendered-{_digest(packages, seed)}"
    jobs = [tunes, *map(itertools.repeat, (fonts, seed, renders))]
    corpus = _Corpus(root, _splits_of(tunes, seed))
    context = multiprocessing.get_context("spawn")
    with (
        _files(root / "h5") as files,
        ProcessPoolExecutor(threads, context) as pool,
        Progress(len(tunes), "tunes", "demo corpus") as progress,
    ):
        rendering = zip(tunes, pool.map(rendered, *jobs), strict=True)
        for row, (tune, versions) in enumerate(rendering):
            title = titles.get("names", tune.name, fallback=tune.stem)
            corpus.add_tune(row, tune, title, versions, files)
            progress.advance(1)
    counts = corpus.write_metadata()
    content = {
        "packages": packages,
        "seed": seed,
        "cliques": counts,
        "tracks": len(corpus.records),
    }
    atomic.write_json(index, content)
    shutil.rmtree(renders, ignore_errors=True)
    log.info("%s: %d tracks of %d tunes (%s)", root, len(corpus.records), len(tunes), counts)


def _splits_of(tunes: Sequence[Path], seed: int) -> dict[Path, str]:
    """The split of each tune that is held out."""
    shuffled = random.Random(seed).sample(tunes, len(tunes))
    return dict(zip(shuffled, HELD_OUT, strict=False))


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[dict[str, Any]]:
    """The HDF5 files of CHUNKS, open, by name; each appears when it is whole."""
    import h5py

    with contextlib.ExitStack() as stack:
        files = {}
        for name, *_ in CHUNKS:
            partial = stack.enter_context(atomic.replacing(folder / name))
            files[name] = stack.enter_context(h5py.File(partial, "w"))
        yield files


class _Corpus:
    """The tracks that are written below a root, their records and their cliques by split."""

    def __init__(self, root: Path, split_of: dict[Path, str]) -> None:
        self.root = root
        self.records: list[dict[str, Any]] = []
        names = ("train", *dict.fromkeys(HELD_OUT))
        self.splits: dict[str, dict] = {split: {} for split in names}
        self._split_of = split_of
        self._turns = itertools.cycle(TURNS)

    def add_tune(
        self,
        row: int,
        tune: Path,
        title: str,
        versions: Sequence[tuple[str, np.ndarray]],
        files: dict[str, Any],
    ) -> None:
        """Make a tune a clique, and write the features of its versions."""
        clique: list[dict[str, str]] = []
        split = self._split_of.get(tune, "train")
        self.splits[split][f"C-{row}"] = clique
        entries: list[tuple[str, np.ndarray | None]] = [*versions]
        if row % 8 == 0:
            entries.append(("dead link", None))
        for words, magnitudes in entries:
            place = len(clique)
            video = _video_id(f"{tune.stem}:{place}")
            clique.append(
                {
                    "version_id": f"V-{VERSIONS * 2 * row + place}",
                    "youtube_id": video,
                    "track_title": f"{title} ({words})",
                }
            )
            if magnitudes is not None:
                self._add_track(video, magnitudes, files)

    def _add_track(self, video: str, magnitudes: np.ndarray, files: dict[str, Any]) -> None:
        """Write features where it is their turn to lie."""
        if len(self.records) % MM_EVERY == MM_EVERY - 1:
            self.records.append(_write_mm(self.root / "mm", video, magnitudes))
            return
        chunk, dtype, time_first, storage = next(self._turns)
        record = chunks.add_track(files[chunk], video, magnitudes, dtype, time_first, **storage)
        self.records.append({**record, "h5_chunk": chunk})

    def write_metadata(self) -> dict[str, int]:
        """Write the JSONL and the splits; how many cliques each split has."""
        jsonl.write_lines(self.root / "metadata/demo.jsonl", self.records)
        for split, cliques in self.splits.items():
            atomic.write_json(self.root / f"metadata/{split}.json", cliques)
        return {split: len(cliques) for split, cliques in self.splits.items()}


def _video_id(name: str) -> str:
    """Eleven letters, as YouTube's."""
    digest = hashlib.sha256(name.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode()[:11]


def _write_mm(folder: Path, video: str, magnitudes: np.ndarray) -> dict[str, Any]:
    """Write features as published, float16 (T, C), the shape beside it; returns their record."""
    path = folder / video[:2] / f"{video}.mm"
    frames_first = magnitudes.T
    with atomic.replacing(path) as partial:
        frames_first.astype("<f2").tofile(partial)
    with (
        atomic.replacing(path.with_suffix(".npy")) as partial,
        open(partial, "wb") as handle,
    ):
        np.save(handle, np.array(frames_first.shape))
    return {
        "youtube_id": video,
        "mm_path": f"{video[:2]}/{path.name}",
        "hop_s": HOP_SECONDS,
        "shape": frames_first.shape,
    }


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
    draws = random.Random(f"{seed}:{tune.stem}")
    versions = []
    for number in range(VERSIONS):
        font = fonts[number % len(fonts)]
        pace = 1.0
        key = 0
        if number:
            pace = draws.uniform(0.84, 1.19)
            key = draws.randint(-5, 6)
        samples = _synthesiser(font).play(tune, pace, key, SECONDS)
        name = font.stem.split("_")[0]
        words = f"{name}, tempo ×{pace:.2f}, key {key:+d}"
        versions.append((words, cqt(samples)))
    return versions


_synthesiser = functools.cache(Synthesiser)  # one of each soundfont in a process
