"""make: help, the Python that is needed, and a clean that leaves the precious files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.workflow import ROOT


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A clone in a folder of its own, as far as make is concerned."""
    for name in (
        "Makefile",
        "pyproject.toml",
        "requirements.txt",
        "requirements-demo.txt",
        "requirements-test.txt",
        "constraints.txt",
    ):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_help_is_the_default_and_lists_every_target(folder):
    done = make(folder)
    assert done.returncode == 0 and done.stdout == make(folder, "help").stdout
    phony = re.search(r"^\.PHONY: (.*)$", (folder / "Makefile").read_text(), re.M)[1].split()
    assert sorted(re.findall(r"^make (\S+)  +\S", done.stdout, re.M)) == sorted(phony)


def test_clean_removes_what_can_be_built_and_nothing_precious(folder):
    kept = [
        "resources/speech/assignment.jsonl",
        "resources/speech/countries/a/x.wav",
        ".venv/bin/python",
    ]
    kept += ["my.txt"]
    kept += [".venv/lib/__pycache__/x.pyc", "config.yaml", "profiles/default/config.yaml"]
    gone = ["results/speech/index.parquet", "logs/speech/x.log", "benchmarks/speech/x.tsv"]
    gone += ["scripts/millrace/__pycache__/x.pyc"]
    gone += [
        ".snakemake/metadata/x",
        ".pytest_cache/x",
        ".ruff_cache/x",
        ".hypothesis/x",
        "report.html",
        "site/index.html",
    ]
    for name in kept + gone:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    done = make(folder, "clean")
    assert done.returncode == 0, done.stderr
    assert [name for name in kept if not (folder / name).is_file()] == []
    assert [name for name in gone if (folder / name).exists()] == []
    assert make(folder, "clean").returncode == 0


@pytest.mark.parametrize("program", ["exit 1", None])
def test_a_python_that_will_not_do_is_said_in_one_line(folder, program):
    python = folder / "python"
    if program:
        python.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit\n{program}\n'
        )
        python.chmod(0o755)
    done = make(folder, "run", f"PYTHON={python}")
    assert done.returncode != 0
    assert "Millrace needs Python 3.11 or newer" in done.stderr and "make PYTHON=" in done.stderr
    assert ("3.9.2" in done.stderr) == bool(program)
    assert not (folder / ".venv").exists()


def test_on_windows_make_and_python_name_wsl_in_one_line(folder):
    done = make(folder, "--dry-run", "run", "OS=Windows_NT")
    assert done.returncode == 2
    program = "import sys; sys.platform = 'win32'; import millrace"
    imported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "scripts", capture_output=True, text=True
    )
    assert imported.returncode == 1
    for last in (done.stderr.splitlines()[-1], imported.stderr.splitlines()[-1]):
        assert "Millrace needs Linux: on Windows run it in WSL (wsl --install)" in last


def test_what_is_installed_is_not_installed_again(folder):
    (folder / ".venv").mkdir()
    for stamp in (".python", ".runtime", ".test"):
        (folder / ".venv" / stamp).touch()
    for target, expected in (
        ("run", ["speech_fetch_corpus", "--cores all$"]),
        ("test", ["--lint", "pytest"]),
    ):
        done = make(folder, "--dry-run", target)
        assert done.returncode == 0, done.stderr
        assert "-m pip" not in done.stdout and "venv .venv" not in done.stdout
        assert all(re.search(text, done.stdout, re.M) for text in expected)
        # A script in .venv/bin holds the path it was installed at: with it, a folder that was moved
        # is broken.
        assert not re.search(r"\.venv/bin/(?!python )", done.stdout)
    # New requirements are.
    newer = (folder / ".venv/.test").stat().st_mtime + 10
    os.utime(folder / "requirements.txt", (newer, newer))
    assert "-r requirements-demo.txt" in make(folder, "--dry-run", "run").stdout


@pytest.mark.parametrize("target, gpus", [("test-long", ""), ("gpu", "3")])
def test_only_the_tests_that_need_a_gpu_see_one(folder, monkeypatch, target, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "GPUs: [$CUDA_VISIBLE_DEVICES]"\n')
    python.chmod(0o755)
    for stamp in (".python", ".runtime", ".test"):
        (folder / ".venv" / stamp).touch()
    done = make(folder, target)
    assert done.returncode == 0, done.stderr
    assert f"GPUs: [{gpus}]" in done.stdout.splitlines()


def test_continuous_integration_runs_make_test_last_and_is_valid_bash():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    subprocess.check_call(["bash", "-n", str(script)])
    lines = script.read_text().splitlines()
    assert lines[-1].startswith("exec make test") and "set -euo pipefail" in lines
    assert any("MILLRACE_CI=1" in line for line in lines)
