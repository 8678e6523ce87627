"""What the tests publish: small files with contents of their own, and the repository they go to."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
from huggingface_hub import HfApi
from huggingface_hub.utils import disable_progress_bars

from millrace.common.hub.publish import File
from millrace.common.hub.repository import Repository
from tests.common.hub.faults import TOKEN

disable_progress_bars()
REPO = "me/speech"
CARD = b'---\nlicense: "unknown"\n---\n'


def write_shards(folder: Path, numbers: range, size: int = 2000, seed: int = 0) -> list[File]:
    """Files of random bytes below data/."""
    folder.mkdir(exist_ok=True)
    files = []
    for number in numbers:
        path = folder / f"{number:05d}.tar"
        path.write_bytes(random.Random(number * 1000 + seed).randbytes(size))
        files.append(File.of(f"data/malta/train/{path.name}", path))
    return files


def repository(endpoint: str, **options) -> Repository:
    return Repository(HfApi(endpoint, token=TOKEN), REPO, "dataset", **options)


def tree(hub: Repository) -> dict[str, str]:
    """SHA-256 of the large files below data/, by path."""
    hub.exists()
    return {entry.path: entry.lfs.sha256 for entry in hub.tree() if entry.path.startswith("data/")}


def wanted(files: list[File]) -> dict[str, str]:
    return {file.path: file.sha256 for file in files if file.path.startswith("data/")}


def history(folder: Path) -> list[dict]:
    """The commits that lead to the head of main, the last first, as the server keeps them."""
    place, commits = folder / "datasets" / REPO, []
    oid = (place / "main").read_text()
    while oid:
        commits.append(orjson.loads((place / f"commits/{oid}.json").read_bytes()))
        oid = commits[-1]["parent"]
    return commits
