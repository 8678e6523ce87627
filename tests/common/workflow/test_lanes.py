"""What the Snakefile asks of the lanes: sources in step, one line to the user, a prefix that survives odd
folders."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.common.errors import MillraceError
from millrace.common.workflow import config, lanes
from tests.workflow.workflow import ROOT


@dataclass
class Found:
    name: str
    message: str = ""


def house(on: bool = True, main: bool = True) -> lanes.Lanes:
    return lanes.Lanes({"lanes": ["speech"] if on else []}, ROOT, is_main_process=main)


def ask(of: lanes.Lanes, sync) -> Found:
    return of.sources("speech", sync=sync, load=lambda: Found("loaded"), remedy="do this")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are looked for in the current folder."""
    monkeypatch.chdir(tmp_path)


def must_not_sync() -> Found:
    raise AssertionError("synced")


def test_the_main_process_syncs_and_says_nothing_when_all_is_well(capsys):
    assert ask(house(), lambda: Found("synced")).name == "synced"
    assert capsys.readouterr().err == ""


def test_a_spawned_job_and_a_lane_that_is_off_only_load():
    assert ask(house(main=False), must_not_sync).name == "loaded"
    assert ask(house(on=False), must_not_sync).name == "loaded"


def test_a_locked_workflow_only_loads_and_says_so(tmp_path: Path, capsys):
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    assert ask(house(), lambda: Found("synced")).name == "synced"
    (tmp_path / ".snakemake/locks/0.input.lock").write_text("")
    assert ask(house(), must_not_sync).name == "loaded"
    assert "lock" in capsys.readouterr().err


def test_a_missing_source_is_one_line_with_the_remedy(capsys):
    assert ask(house(), lambda: Found("none", "no corpus at x")).name == "none"
    assert capsys.readouterr().err == "Millrace: speech: no corpus at x: do this\n"


def test_a_source_in_error_ends_in_one_line():
    def fail() -> Found:
        raise MillraceError("is damaged", where="a.jsonl, line 3")

    with pytest.raises(SystemExit) as caught:
        ask(house(), fail)
    assert caught.value.code == "Millrace: speech: a.jsonl, line 3: is damaged"


def test_what_the_system_refuses_ends_in_one_line():
    def fail() -> Found:
        raise PermissionError(13, "Permission denied", "corpus/malta")

    with pytest.raises(SystemExit) as caught:
        ask(house(), fail)
    assert str(caught.value.code).startswith("Millrace: speech: corpus/malta: Permission denied")


def test_a_lane_that_builds_nothing_says_so_once(capsys):
    silent = house()
    ask(silent, lambda: Found("empty"))
    silent.register_targets("speech", lambda: [])
    assert capsys.readouterr().err == "Millrace: speech: there is nothing to build from: do this\n"
    told = house()
    ask(told, lambda: Found("none", "no corpus at x"))
    told.register_targets("speech", lambda: [])
    assert capsys.readouterr().err.count("\n") == 1
    off = house(on=False)
    off.register_targets("speech", lambda: [])
    assert capsys.readouterr().err == ""


def test_targets_are_those_of_the_lanes_that_are_on():
    for on, expected in ((True, ["x", "y"]), (False, [])):
        some = house(on)
        some.register_targets("speech", lambda: ["x", "y"])
        assert some.targets() == expected


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "b{r}ace", "$HOME", "a;b"])
def test_the_prefix_finds_this_clone_and_this_python_in_any_folder(tmp_path: Path, name):
    clone = tmp_path / name
    (clone / "scripts/millrace").mkdir(parents=True)
    (clone / "scripts/millrace/__init__.py").write_text("")
    prefix = lanes.Lanes({"lanes": []}, clone, is_main_process=False).shell_prefix("set()")
    # As Snakemake does it: prefix and command are one format string.
    command = (prefix + "python -c 'import millrace, sys; print(millrace.__file__, sys.prefix)'").format()
    for path in ("", "/somewhere"):
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            ["bash", "-euc", command], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stdout.strip() == f"{clone}/scripts/millrace/__init__.py {sys.prefix}", done.stderr


def test_with_conda_its_own_python_is_used():
    assert "export PATH" not in house().shell_prefix("{<DeploymentMethod.CONDA: 1>}")
    assert "export PATH" in house().shell_prefix("set()")


def test_an_invalid_config_ends_the_parse_with_its_key():
    with pytest.raises(SystemExit) as caught:
        config.validate_config({"speech": {"max_cerr": 1}}, ROOT / "rules/schemas")
    assert "speech.max_cerr" in str(caught.value.code)
