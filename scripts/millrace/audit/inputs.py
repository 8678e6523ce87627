"""Which files the rules of the audit lane ask for, with which flags a run's loader is audited, and
which code makes it be audited again."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from millrace.common.processes import TRAINING_ENVIRONMENT
from millrace.common.workflow.runs import FINDINGS, PAGE, Audited

_PACKAGE = Path(__file__).parents[1]


class AuditedLane(Protocol):
    """What is asked of the inputs of a lane that trains."""

    def audited(self, run: str) -> Audited: ...

    def audited_runs(self) -> list[str]: ...


class AuditInputs:
    """Input functions and parameters of the lane's rules. `lanes` are the inputs of the lanes that
    train; `on` the names of the lanes that are switched on."""

    def __init__(
        self, section: dict, lanes: Mapping[str, AuditedLane], on: Collection[str]
    ) -> None:
        self.section = section
        self.lanes = lanes
        self._on = on

    def targets(self, wildcards: Any = None) -> list[str]:
        """The page of every run's loader, of the lanes that are switched on."""
        lanes = [lane for lane in self.lanes if lane in self._on]
        return [
            PAGE.format(lane=lane, run=run)
            for lane in lanes
            for run in self.lanes[lane].audited_runs()
        ]

    def data(self, wildcards: Any) -> list[str]:
        """What a loader reads."""
        return self.lanes[wildcards.lane].audited(wildcards.run).files

    def loader(self, wildcards: Any) -> str:
        """The flags of check_loader that name a run's loader."""
        audited = self.lanes[wildcards.lane].audited(wildcards.run)
        words = [
            f"--loader {audited.loader} --ranks {min(audited.ranks, 2)} --epochs {audited.epochs}"
        ]
        # Beside it stand the split of evaluation and the model, which take the same arguments.
        words.append(f"--val-loader {audited.loader}_validation --model {audited.loader}_model")
        for name, value in audited.arguments.items():
            text = value
            if not isinstance(value, str):
                text = json.dumps(value, sort_keys=True)
            words.append(f"--arg {shlex.quote(f'{name}={text}')}")
        return " ".join(words)

    def environment(self, wildcards: Any) -> str:
        """What is set before Python starts, and a digest of the loader's code: other code is
        audited."""
        values = {"MILLRACE_LOADER_CODE": _digest(wildcards.lane), **TRAINING_ENVIRONMENT}
        return " ".join(f"{name}={value}" for name, value in values.items())

    def findings(self, wildcards: Any) -> list[str]:
        """What an audit found; nothing if runs start whatever it finds, and nobody asked for it."""
        wanted = self.section["refuse"] != "none" or "audit" in self._on
        if wanted:
            return [FINDINGS.format(lane=wildcards.lane, run=wildcards.run)]
        return []

    def choices(self, wildcards: Any = None) -> str:
        """The flags of the entries whose fails stop a run, and of those that do not count, with
        reasons."""
        refuse = self.section["refuse"]
        ignore = sorted(self.section["ignore"].items())
        words = [f"--refuse {refuse if isinstance(refuse, str) else ','.join(refuse) or 'none'}"]
        return " ".join(
            words + [f"--ignore {shlex.quote(f'{entry}={reason}')}" for entry, reason in ignore]
        )


@cache
def _digest(lane: str) -> str:
    """A digest of the code that a loader, its model and its audit depend on."""
    digest = hashlib.sha256()
    for folder in (lane, "common", "audit"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
