"""The folder of a training run: what it was trained with, so that a changed run never goes on from other weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.common import atomic, jsonl, partitions
from scripts.common.cli import log

NOTE = "run.json"
PREVIOUS = "previous"
_KEPT = (NOTE, PREVIOUS)


def claim(folder: str | os.PathLike, identity: Mapping[str, Any]) -> str:
    """Make `folder` the folder of the run that `identity` describes; return the run's digest.

    A folder of the same run is left as it is: the run goes on. What another run has left is moved to
    `previous/<its digest>`, where its checkpoints stay whole. Call it on one rank, before the others look.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    digest = partitions.digest(identity)[:12]
    before = _known(folder)
    if before == digest:
        return digest
    stale = [path for path in sorted(folder.iterdir()) if path.name not in _KEPT and not path.name.startswith(".")]
    if stale:
        target = _free(folder / PREVIOUS / (before or "unknown"))
        target.mkdir(parents=True)
        for path in stale:
            path.rename(target / path.name)
        log.info("%s holds another run; it was moved to %s, and this one begins anew", folder, target)
    atomic.write_json(folder / NOTE, {"digest": digest, "run": identity})
    return digest


def _known(folder: Path) -> str | None:
    try:
        return str(jsonl.read(folder / NOTE)["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _free(path: Path) -> Path:
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
