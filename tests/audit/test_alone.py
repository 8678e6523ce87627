"""The audit by itself: what it imports, how often Python is started, what a report holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata, resources
from typing import NamedTuple

import jsonschema
import pytest

from tests.audit import plain
from tests.workflow.test_envs import brought
from tests.workflow.workflow import ROOT

SCHEMA = json.loads(
    resources.files("millrace.audit.report").joinpath("findings.schema.json").read_text()
)
# Of every Python that starts: its command is noted, and what extras bring cannot be imported.
SITE = """
import os, sys

with open(os.environ["STARTED"], "a") as file:
    file.write(" ".join(sys.orig_argv) + "\\n")

class Blocked:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked)
"""


class Alone(NamedTuple):
    """An audit where nothing but torch is installed."""

    code: int
    said: str
    started: list[str]  # commands of the Pythons that were started
    report: dict


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Alone:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "sitecustomize.py").write_text(SITE)
    extras = brought("workflow") - brought() - torchs_own()
    packages = metadata.packages_distributions()
    modules = [name for name in packages if {each.lower() for each in packages[name]} & extras]
    environment = os.environ | {
        "PYTHONPATH": f"{folder}:{ROOT}/scripts",
        "STARTED": str(folder / "started"),
        "BLOCKED": " ".join(modules),
    }
    assert {"numpy", "orjson", "pyarrow", "psutil", "av"} <= set(modules)
    command = [sys.executable, "-m", "millrace.audit.check_loader", "--loader"]
    command += [f"{plain.here}:good", "--ranks", "1", "--timeout", "240"]
    command += ["--json", str(folder / "findings.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    started = (folder / "started").read_text().splitlines()
    report = json.loads((folder / "findings.json").read_text())
    return Alone(done.returncode, done.stdout, started, report)


def torchs_own() -> set[str]:
    """Packages that torch itself asks for."""
    texts = [text for text in metadata.requires("torch") if "extra ==" not in text]
    return {re.match(r"[\w.-]+", text)[0].lower() for text in texts}


def test_an_audit_needs_torch_alone(alone: Alone):
    assert alone.code == 0, alone.said
    verdicts = {entry["name"]: entry["verdict"] for entry in alone.report["entries"]}
    passed = ["DP2", "DP4", "DP6", "DP7", "DP15", "end"]
    assert {verdicts[name] for name in passed} == {"pass"}, verdicts
    assert {probe["status"] for probe in alone.report["probes"]} == {"ok"}


def test_torch_is_loaded_twice_once_for_all_processes_and_once_by_a_spawned_worker(alone: Alone):
    """Loading it is half of what an audit of a small loader takes."""
    kinds = ("check_loader", "guard import main", "resource_tracker", "spawn_main")
    started = [kind for kind in kinds for command in alone.started if kind in command]
    assert len(started) == len(alone.started), alone.started
    assert sorted(started) == sorted(kinds)


def test_a_real_report_is_as_the_schema_says(alone: Alone):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(alone.report, SCHEMA)
    assert alone.report["unreached"] is None
