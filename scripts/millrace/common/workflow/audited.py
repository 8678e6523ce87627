"""How a lane names its loaders to the audit lane, and what a training rule waits for."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from millrace.common import jsonl

_LONGEST = 254  # letters of a file's name, less Snakemake's mark of a piece
FINDINGS = "results/audit/{lane}/{run}/findings.json"
PAGE = "results/audit/{lane}/{run}/findings.html"
ACCEPTED = "results/audit/{lane}/{run}/accepted.json"


class Audited(NamedTuple):
    """The loader of a run: module:factory with its arguments, the files that say what it reads, and how many
    ranks and epochs it has."""

    loader: str
    arguments: dict[str, Any]
    files: list[str]
    ranks: int = 1
    epochs: int = 2


def gate(
    lane: str, run: str, metrics: str, audited: Audited, texts: Iterable[str], ancient: Callable
) -> list[str]:
    """What is there once the audit of a run's loader lets it start.

    Its time does not count (`ancient`) while the metrics are as they would be made now: of these files, none
    of them newer, by a command with these `texts`. So an audit that runs again makes no finished run pending;
    but a run with other settings or data is, though Snakemake looks no further below a job that is pending.
    """
    path = ACCEPTED.format(lane=lane, run=run)
    record = jsonl.read_or({}, _metadata(metrics))
    command, made = f"{record.get('shellcmd')} ", os.path.getmtime(metrics) if os.path.exists(metrics) else 0
    is_same = set(record.get("input", ())) - {path} == set(audited.files)
    is_same &= all(f" {text} " in command for text in texts)
    is_same &= all(os.path.getmtime(file) <= made for file in audited.files if os.path.exists(file))
    return [ancient(path)] if is_same and made else [path]


def _metadata(path: str) -> str:
    """Where Snakemake notes how a file was made; long names in pieces."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    pieces = [name[at : at + _LONGEST] for at in range(0, len(name), _LONGEST)]
    return os.path.join(".snakemake/metadata", *(f"@{piece}" for piece in pieces[:-1]), pieces[-1])
