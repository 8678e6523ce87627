"""One import and its reference: `import millrace` is light, names resolve, examples run, the page
builds."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import millrace
from tests.asr import audio_tars
from tests.image.record_sets import write_set
from tests.music.features.trees import cqt, indexed, write_mm
from tests.tars.tars import write_tar
from tests.workflow.test_layout import HEAVY
from tests.workflow.workflow import ROOT

PAGE = (ROOT / "docs/reference/index.md").read_text()
OBJECTS = re.findall(r"^::: (\S+)$", PAGE, re.M)
TRAIN = """
from torch.utils.data import DataLoader

def make_loader():
    return DataLoader(list(range(12)), batch_size=4)
"""


def test_importing_millrace_loads_nothing_heavy():
    program = (
        f"import sys, millrace; print(sorted(set({HEAVY!r}) & set(sys.modules)), dir(millrace))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert said.startswith("[] ")
    assert all(repr(name) in said for name in millrace.__all__)


def test_every_public_name_is_on_the_page_and_no_other_name_is_public():
    for name in millrace.__all__:
        public = getattr(millrace, name)
        listed = public.check if inspect.ismodule(public) else public
        assert f"{listed.__module__}.{listed.__qualname__}" in OBJECTS
    with pytest.raises(AttributeError, match="millrace' has no attribute 'open_tar'"):
        millrace.open_tar  # noqa: B018
    assert re.search(r"from millrace import (.*)", PAGE)[1].split(", ") == millrace.__all__


@pytest.mark.parametrize(
    "program, problem",
    [
        ("from millrace import open_loader", "open_loader: numpy is not installed.*millrace.asr.'"),
        ("from millrace import open_tars", "open_tars: numpy is not installed.*millrace.asr.'"),
        ("from millrace import HDF5Record", "HDF5Record: numpy is not installed.*millrace.image.'"),
        ("from millrace import FeatureIndex", "FeatureIndex: numpy is .*millrace.music.'"),
        (
            "from millrace.tars.__main__ import main; main(['index', 'a.tar'])",
            "millrace.tars: numpy is not installed.*millrace.asr.'",
        ),
    ],
)
def test_a_name_whose_extra_is_missing_says_what_to_install(program, problem):
    command = [sys.executable, "-S", "-c", program]  # -S: without any installed package
    environment = {"PYTHONPATH": f"{ROOT}/scripts"}
    said = subprocess.run(command, env=environment, capture_output=True, text=True).stderr
    assert re.search(problem, said.splitlines()[-1]), said


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Buckets, tars, records, features and a training script, where the examples look for them."""
    root = tmp_path_factory.mktemp("reference")
    audio_tars.corpus(root / "results/asr")
    for tar in range(2):
        keys = [f"{number:06d}" for number in range(20 * tar, 20 * tar + 20)]
        members = [(f"{key}.{field}", b"7") for key in keys for field in ("jpg", "cls")]
        write_tar(root / f"train-{tar}.tar", members)
    write_set(root / "results/image/records", [5, 4])
    features = root / "results/music/index"
    indexed(features, mm=[write_mm(features, "dQw4w9WgXcQ", cqt(1)).parent.name])
    (root / "train.py").write_text(TRAIN)
    return root


@pytest.mark.parametrize("name", OBJECTS)
def test_the_example_of_each_object_on_the_page_runs(folder, name, monkeypatch, capsys):
    module, _, attribute = name.rpartition(".")
    text = inspect.getdoc(getattr(importlib.import_module(module), attribute))
    example = re.search(r"\n\n((?:    .*\n|\n)+)", text)[1]
    assert "from millrace import" in example
    monkeypatch.chdir(folder)
    exec(textwrap.dedent(example), {"__name__": "__main__"})
    assert "TarLoader" in name or capsys.readouterr().out


def test_the_reference_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text()
    assert all(f'id="{name}"' in page for name in OBJECTS)
    assert "Batches of at most <code>seconds</code> of padded audio" in page
