"""Running the workflow as a user does, in a folder of its own, and reading what it says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from millrace.common import jsonl
from tests.workflow import snakemake_server

ROOT = Path(__file__).resolve().parents[2]
PYTHON_M_SNAKEMAKE = (sys.executable, "-m", "snakemake")


@dataclass(frozen=True)
class Job:
    """One job of a dry run."""

    rule: str
    wildcards: str
    reason: str
    input: str = ""
    output: str = ""
    log: str = ""
    message: str = ""
    command: str = ""


class Plan(NamedTuple):
    """What a dry run lists, without targets that only gather, and what Millrace says."""

    jobs: list[Job]
    said: list[str]


class Workflow:
    """The workflow in `folder`, with a config of its own."""

    # Where its jobs run.
    PLACE = ("--cores", "2")

    def __init__(self, folder: Path, **config: object) -> None:
        self.folder, self.config = folder, config
        (folder / "config.test.yaml").write_text(yaml.safe_dump(config))

    def command(self, *arguments: str) -> list[str]:
        options = ("--snakefile", str(ROOT / "Snakefile"), "--configfile", "config.test.yaml")
        return [*PYTHON_M_SNAKEMAKE, *options, *self.PLACE, *arguments]

    def options(self, *arguments: str) -> list[str]:
        return self.command(*arguments)[len(PYTHON_M_SNAKEMAKE) :]

    def call(
        self, *arguments: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run snakemake; the exit code is the caller's to check."""
        return snakemake_server.call(self.options(*arguments), self.folder, env or dict(os.environ))

    def call_on_terminal(self, *arguments: str, env: dict[str, str]) -> tuple[int, str]:
        """Run snakemake where it writes to a terminal: exit code and what it wrote."""
        return snakemake_server.call_on_terminal(self.options(*arguments), self.folder, env)

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Run snakemake, which must succeed; return what it printed."""
        done = self.call(*arguments, env=env)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def plan(self, *arguments: str) -> Plan:
        """Dry-run, which must succeed."""
        return self._logged("--dry-run", *arguments)

    def ran(self, *arguments: str) -> list[Job]:
        """Run, which must succeed; the jobs that were started."""
        return self._logged(*arguments).jobs

    def _logged(self, *arguments: str) -> Plan:
        paths = f"{ROOT}/tests/workflow/plugins:{os.environ.get('PYTHONPATH', '')}"
        environment = os.environ | {"PYTHONPATH": paths}
        text = self.run(*arguments, "--logger", "jobs", env=environment)
        lines = text.splitlines()
        jobs = [Job(**json.loads(line)) for line in lines if line.startswith('{"rule"')]
        said = [line for line in lines if line.startswith("Millrace:")]
        return Plan([job for job in jobs if job.output], said)

    def dry(self, *arguments: str) -> list[Job]:
        """The jobs that a dry run lists."""
        return self.plan(*arguments).jobs

    def partitions(self, *arguments: str) -> set[str]:
        """The partitions whose shards a dry run lists."""
        return {
            job.wildcards.removeprefix("partition=")
            for job in self.dry(*arguments)
            if job.rule == "speech_create_shards"
        }

    def files(self, pattern: str = "results/speech/**/*") -> dict[str, tuple[str, int]]:
        """SHA-256 and mtime of files, by path."""
        return {
            str(path.relative_to(self.folder)): (
                hashlib.sha256(path.read_bytes()).hexdigest(),
                path.stat().st_mtime_ns,
            )
            for path in sorted(self.folder.glob(pattern))
            if path.is_file()
        }

    def read(self, path: str) -> Any:
        """A JSON file of the folder."""
        return jsonl.read(self.folder / path)

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}", **extra}
