"""Version matching on the demo corpus: true and shuffled clique labels, no learning, a chroma
matcher.

    snakemake --cores 2 music_fetch_demo music_index
    python -m tests.bench.bench_versions --work-dir /tmp/bench [--seeds 1 2 3]

Figures are those of the valid and verify cliques, which no run has trained on: before the first
step, and of the last epoch. none: steps with a learning rate of nothing, so that batch
normalisation knows the data: the untrained model to compare with, as else all embeddings are nearly
equal. shuffled: the versions of the train split are dealt to cliques of the same sizes at random.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import yaml

from millrace.common import cli
from millrace.music.features.index import FeatureIndex
from millrace.music.features.reader import WindowReader
from millrace.music.sampling.cliques import Cliques, read_cliques
from millrace.music.training.metrics import means, scores

CONFIG = Path(__file__).parents[2] / "config.yaml"
LABELS = ["none", "true", "shuffled"]
INDEX, METADATA = Path("results/music/index/features.index"), Path("resources/music/demo/metadata")


def shuffled(train: Path, target: Path, seed: int) -> Path:
    """A copy of a split whose versions are dealt anew."""
    cliques = json.loads(train.read_bytes())
    versions = [version for clique in cliques.values() for version in clique]
    deal = iter(random.Random(seed).sample(versions, len(versions)))
    target.write_text(
        json.dumps({name: [next(deal) for _ in clique] for name, clique in cliques.items()})
    )
    return target


def trained(folder: Path, train: Path, held_out: Path, **changes: float) -> list[dict]:
    """The validations of a run, the first one before its first step."""
    run = yaml.safe_load(CONFIG.read_text())["music"]["runs"]["demo"]
    splits = {"train": train, "valid": held_out}
    keys = {
        **run,
        **changes,
        "path.index": INDEX,
        **{f"path.splits.{k}": v for k, v in splits.items()},
    }
    command = [
        sys.executable,
        "-m",
        "millrace.music.train_model",
        *(f"{k}={v}" for k, v in keys.items()),
    ]
    subprocess.run([*command, "--output-dir", str(folder)], check=True, stderr=subprocess.DEVNULL)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines if line.get("event") == "eval"]


def chroma(cliques: Cliques) -> dict[str, float]:
    """Tracks by the mean of their chroma: the least cosine distance over twelve rotations."""
    index = FeatureIndex(INDEX)
    reader, means_of = WindowReader(index), []
    for track, frames in zip(cliques.tracks.tolist(), cliques.frames.tolist(), strict=True):
        folded = reader.read(track, 0, frames).reshape(7, 12, frames).sum(0)
        folded = folded / np.maximum(folded.max(0), 1e-9)
        means_of.append(folded.mean(1) - folded.mean())
    unit = np.stack(means_of) / np.linalg.norm(means_of, axis=1, keepdims=True)
    distances = 1 - np.max([unit @ np.roll(unit, turn, 1).T for turn in range(12)], 0)
    np.fill_diagonal(distances, np.inf)
    relevant = cliques.cliques[:, None] == cliques.cliques
    np.fill_diagonal(relevant, False)
    return means(scores(torch.from_numpy(distances), torch.from_numpy(relevant)))


def arguments() -> argparse.Namespace:
    parser = cli.parser(__doc__, "tests.bench.bench_versions")
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--labels", nargs="+", default=LABELS, choices=LABELS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    held_out = args.work_dir / "held_out.json"
    parts = [json.loads((METADATA / f"{name}.json").read_bytes()) for name in ("valid", "verify")]
    held_out.write_text(json.dumps(parts[0] | parts[1]))
    cliques = read_cliques({"valid": str(held_out)}, FeatureIndex(INDEX), "h5")["valid"]
    print(f"{len(cliques)} tracks of {len(set(cliques.cliques.tolist()))} unheard cliques")
    print("labels    seed  train loss        MAP             NAR (%)")
    nars: dict[str, list[float]] = {labels: [] for labels in args.labels}
    for labels in args.labels:
        for seed in args.seeds:
            train, changes = METADATA / "train.json", {"seed": seed}
            if labels == "shuffled":
                train = shuffled(train, args.work_dir / f"train-{seed}.json", seed)
            elif labels == "none":
                changes |= {"training.optim.lr": 1e-9, "training.optim.min_lr": 1e-12}
            first, *_, last = evaluations = trained(
                args.work_dir / f"{labels}-{seed}", train, held_out, **changes
            )
            nars[labels].append(last["valid/m_ARP"])
            loss = [each["train/l_main"] for each in (evaluations[1], last)]
            shown = [
                f"{first[f'valid/{key}']:{form}} -> {last[f'valid/{key}']:{form}}"
                for key, form in (("m_MAP", ".3f"), ("m_ARP", "4.1f"))
            ]
            print(
                f"{labels:9s} {seed:4d}  {loss[0]:.2f} -> {loss[1]:5.2f}  {'  '.join(shown)}",
                flush=True,
            )
    for labels, values in nars.items():
        change = [
            f"{100 * (value / none - 1):+.0f} %"
            for value, none in zip(values, nars.get("none", []), strict=False)
        ]
        print(
            f"{labels:9s} mean NAR {np.mean(values):.1f}; against none:"
            f" {', '.join(change) or 'not run'}"
        )
    plain = chroma(cliques)
    print(f"chroma matcher: MAP {plain['m_MAP']:.3f}, NAR {plain['m_ARP']:.1f}")


if __name__ == "__main__":
    main()
