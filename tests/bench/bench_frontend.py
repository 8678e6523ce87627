"""Embeddings of stored features against those of the original's own front end, on tracks of the
demo corpus.

    python -m tests.bench.bench_frontend --packages resources/music/debian [--checkpoint best.ckpt]

The original cuts audio into shingles, each of which goes through nnAudio's CQT1992v2 and
AvgPool(5), padded at its own ends. Ours are windows of librosa's CQT of the whole track out of
HDF5. Inside are the shingles between the first and the last of a track.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from nnAudio.features.cqt import CQT1992v2

from millrace.common import cli
from millrace.music.audio import chunks
from millrace.music.audio.recording import HOP, RATE, cqt
from millrace.music.demo.corpus import FONTS, TUNES, VERSIONS
from millrace.music.demo.synthesis import Synthesiser
from millrace.music.features import h5_files
from millrace.music.features.index import FeatureIndex, merge
from millrace.music.features.reader import WindowReader
from millrace.music.features.track import Contract
from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGS
from millrace.music.models.published import load_published
from millrace.music.sampling.windows import Geometry, ShingleReader
from millrace.music.training.metrics import Tracks, means, retrieve

SECONDS, SHINGLE = 75, 20  # s; a shingle every half of it


def tracks(packages: Path, count: int) -> list[np.ndarray]:
    """Audio of the first tunes, VERSIONS each, with draws of their own."""
    tunes = sorted(packages.glob(f"{TUNES}_*/**/*.mid"))[: count // VERSIONS]
    fonts = [Synthesiser(min(packages.glob(f"{name}_*/**/*.sf[23]"))) for name in FONTS]
    draws, audio = random.Random(0), []
    for tune in tunes:
        for number in range(VERSIONS):
            pace, key = draws.uniform(0.84, 1.19), draws.randint(-5, 6)
            audio.append(fonts[number % len(fonts)].play(tune, pace, key, SECONDS))
    return audio


def of_front_end(audio: np.ndarray, transform: torch.nn.Module, hop: int) -> torch.Tensor:
    """Shingles (S, 84, 200) as the original makes them."""
    shingles = torch.from_numpy(audio).unfold(0, SHINGLE * RATE, hop * RATE)
    return torch.nn.functional.avg_pool1d(transform(shingles), 5)[:, :, : SHINGLE * 10]


def of_features(
    folder: Path, magnitudes: list[np.ndarray], dtype: str, time_first: bool, hop: int
) -> list:
    """The same shingles out of an HDF5 file."""
    with h5py.File(folder / "a.h5", "w") as h5:
        for number, values in enumerate(magnitudes):
            chunks.add_track(h5, f"{number:011}", values, dtype, time_first)
    contract = Contract()
    merge(
        folder / "index",
        h5_files.read_file(folder, "a.h5", [], contract),
        {"h5": str(folder)},
        contract,
    )
    index = FeatureIndex(folder / "index")
    reader = ShingleReader(WindowReader(index), contract)
    geometry = [Geometry(values.shape[1] // 5, SHINGLE * 10, hop * 10) for values in magnitudes]
    frames = index.frames()
    return [
        torch.from_numpy(reader.read(at, int(frames[at]), 0.02, 0, geometry[at]))
        for at in range(len(frames))
    ]


def cosines_of(original: Tracks, stored: Tracks) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines of shingles inside of the tracks, and of their first and last ones."""
    cosine = torch.cosine_similarity(original.embeddings, stored.embeddings, dim=-1)
    counts = (~original.filled).sum(1).tolist()
    rows = list(zip(cosine, counts, strict=True))
    inside = torch.cat([row[1 : count - 1] for row, count in rows])
    edges = torch.cat([row[[0, count - 1]] for row, count in rows])
    return inside, edges


def arguments() -> argparse.Namespace:
    parser = cli.parser(__doc__, "tests.bench.bench_frontend")
    parser.add_argument(
        "--packages", type=Path, required=True, help="unpacked packages of the demo"
    )
    parser.add_argument("--checkpoint", default="", help="without: an untrained clews-tiny")
    parser.add_argument("--tracks", type=int, default=20)
    parser.add_argument("--hop", type=int, default=10, help="seconds from shingle to shingle")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    model = (
        load_published(args.checkpoint) if args.checkpoint else Clews(CONFIGS["clews-tiny"]).eval()
    )
    transform = CQT1992v2(sr=RATE, hop_length=HOP, n_bins=84, bins_per_octave=12, verbose=False)
    audio = tracks(args.packages, args.tracks)
    magnitudes = [cqt(samples) for samples in audio]

    def embed(shingles: list[torch.Tensor]) -> Tracks:
        noise = [torch.Generator().manual_seed(number) for number in range(len(shingles))]
        embedded = [
            model(each[None], seeded)[0] for each, seeded in zip(shingles, noise, strict=True)
        ]
        return Tracks.of(
            [at // VERSIONS for at in range(len(shingles))], list(range(len(shingles))), embedded
        )

    def scores(tracks: Tracks) -> dict[str, float]:
        return means(retrieve(tracks, tracks, model.config.loss_redux_pos))

    theirs = [of_front_end(samples, transform, args.hop) for samples in audio]
    original = embed(theirs)
    first = scores(original)
    print(f"{len(audio)} tracks; front end: MAP {first['m_MAP']:.4f}, ARP {first['m_ARP']:.3f}")
    for name, dtype, time_first in (("f32 (C, T)", "<f4", False), ("f16 (T, F)", "<f2", True)):
        with tempfile.TemporaryDirectory() as folder:
            ours = of_features(Path(folder), magnitudes, dtype, time_first, args.hop)
        stored = embed([mine[: len(other)] for mine, other in zip(ours, theirs, strict=True)])
        inside, edges = cosines_of(original, stored)
        figures = scores(stored)
        for place, values in (("inside", inside), ("edges", edges)):
            cosines = f"cosine least {values.min():.5f}, mean {values.mean():.5f}"
            print(f"{name} {place}: {len(values)} shingles, {cosines}")
        print(f"{name}: MAP {figures['m_MAP']:.4f}, ARP {figures['m_ARP']:.3f}")


if __name__ == "__main__":
    main()
