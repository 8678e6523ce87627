"""The code on the pages of the audit does what they say."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from millrace.audit.check_loader import make_parser
from millrace.audit.testing import assert_loader_ok
from tests.audit.running import run
from tests.workflow.workflow import ROOT

DOCS = ROOT / "docs/audit"
TRAIN = """
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def make_loader(limit=64):
    data = TensorDataset(torch.arange(limit))
    return DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
"""


def snippet(page: str, language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[1]


def test_the_loop_that_is_shown_decides_the_order_of_epochs(guard, tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAIN + snippet("dp14.md", "py"))
    argv = ["--loader", f"{tmp_path}/train.py:make_loader", "--only", "DP14", "--ranks", "2"]
    _, without = run(guard, argv)
    _, findings = run(guard, [*argv, "--loop", f"{tmp_path}/train.py:read"])
    assert (without[0].verdict, findings[0].verdict) == ("not decidable", "pass")


def test_the_test_that_is_shown_takes_what_assert_loader_ok_takes():
    code = snippet("ci.md", "py")
    compile(code, "ci.md", "exec")
    assert assert_loader_ok.__name__ in code and f"from {assert_loader_ok.__module__} " in code


def test_the_job_that_is_shown_runs_a_command_that_there_is():
    job = yaml.safe_load(snippet("ci.md", "yaml"))["jobs"]["audit"]
    [command] = [step["run"] for step in job["steps"] if "check_loader" in step.get("run", "")]
    args = make_parser().parse_args(command.split()[3:])
    kept = [step["with"] for step in job["steps"] if "with" in step][1:]
    artifact = {"name": "audit", "path": str(args.json.parent)}
    assert kept == [artifact, {"sarif_file": str(args.sarif)}]
