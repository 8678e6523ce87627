"""One set of versions: what pip installs is what conda installs, and it is what runs here."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.workflow.test_layout import imported_names
from tests.workflow.workflow import ROOT

# conda-forge's name, where it differs.
CONDA_NAMES = {"matplotlib-base": "matplotlib"}
ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(path: Path) -> list[Requirement]:
    """The lines of a requirements file, with those of the files it includes."""
    lines = []
    for text in path.read_text().splitlines():
        line = text.partition("#")[0].strip()
        if line.startswith("-r "):
            lines += requirements(path.parent / line[3:].strip())
        elif line:
            lines.append(Requirement(line))
    return lines


def pins(path: Path) -> dict[str, str]:
    """Package -> version of a requirements file, for every Python."""
    found = {}
    for line in requirements(path):
        (pin,) = line.specifier
        assert pin.operator == "==", line
        assert normal(line.name) not in found, f"{line.name} is pinned twice"
        found[normal(line.name)] = pin.version
    return found


def markers(lines: Iterable[Requirement]) -> dict[str, str]:
    """Package -> which Pythons need it, where that is not all."""
    return {normal(line.name): str(line.marker) for line in lines if line.marker}


def dependencies(path: Path) -> tuple[dict[str, str], list[str]]:
    """(package -> version, included requirements files) of a conda environment."""
    found = {}
    included = []
    for line in yaml.safe_load(path.read_text())["dependencies"]:
        for text in line["pip"] if isinstance(line, dict) else [line]:
            if text.startswith("-r "):
                included.append(text[3:])
            elif text != "pip":
                name, version = re.fullmatch(r"([a-z0-9_-]+)={1,2}([0-9.]+)", text).groups()
                found[normal(CONDA_NAMES.get(name, name))] = version
    return found, included


PACKAGES = metadata.packages_distributions()
RUNTIME = pins(ROOT / "requirements-demo.txt")
TEST = pins(ROOT / "requirements-test.txt")


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


EXTRAS = PROJECT["optional-dependencies"]


def declared() -> list[Requirement]:
    """All that pyproject.toml asks for; the package's own extras are left out."""
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return [line for line in map(Requirement, texts) if line.name != PROJECT["name"]]


def test_the_package_asks_for_what_is_pinned_and_nothing_else():
    asked = declared()
    assert {normal(line.name) for line in asked} == set(RUNTIME)
    assert [str(line) for line in asked if RUNTIME[normal(line.name)] not in line.specifier] == []


def test_pydub_finds_on_every_python_what_the_standard_library_has_lost():
    """`audioop` left with Python 3.13, and pydub cannot be imported without it."""
    expected = {"audioop-lts": 'python_version >= "3.13"'}
    assert markers(requirements(ROOT / "requirements.txt")) == markers(declared()) == expected
    for name, texts in EXTRAS.items():
        packages = {Requirement(text).name for text in texts}
        assert ("pydub" in packages) == ("audioop-lts" in packages), name


def brought(*extras: str) -> set[str]:
    """Packages that `pip install millrace[extras]` brings, with the extras that those include."""
    waiting, seen = list(extras), set()
    texts = list(PROJECT["dependencies"])
    while waiting:
        extra = waiting.pop()
        if extra not in seen:
            seen.add(extra)
            texts += EXTRAS[extra]
            own = [line for line in map(Requirement, EXTRAS[extra]) if line.name == PROJECT["name"]]
            waiting += [name for line in own for name in line.extras]
    packages = {normal(Requirement(text).name) for text in texts}
    return packages - {PROJECT["name"]}


def test_the_package_alone_brings_torch_and_nothing_else():
    assert brought() == {"torch"}


@pytest.mark.parametrize(
    "extra, modules",
    [
        ("asr", ["asr/planning/loader", "tars/loader", "tars/__main__"]),
        ("splits", ["audit/check_splits", "audit/splits/compare"]),
        ("image", ["image/records/dataset"]),
        ("music", ["music/features/index"]),
    ],
)
def test_each_extra_holds_what_its_part_of_the_library_imports(extra, modules):
    for name in modules:
        assert third_party(ROOT / f"scripts/millrace/{name}.py") <= brought(extra), name


def test_the_extra_of_the_workflow_brings_all_but_what_the_demos_alone_need():
    assert brought("workflow") == set(RUNTIME) - brought("demo") | {"torch"}


def test_torch_is_pinned_before_anything_that_could_pull_another():
    assert next(iter(RUNTIME)) == "torch"
    assert list(TEST)[: len(RUNTIME)] == list(RUNTIME)


def test_conda_versions_are_the_pip_pins():
    assert ENVIRONMENTS
    for path in ENVIRONMENTS:
        found, included = dependencies(path)
        assert found.pop("python") == "3.11", path
        assert {name: TEST.get(name) for name in found} == found, path
        assert found or included, path
        assert all((path.parent / name).resolve().is_file() for name in included), path


def test_rules_name_all_environments_but_that_of_the_tests(jobs):
    named = {Path(rule["conda"]).name for rule in jobs.values()}
    assert named == {path.name for path in ENVIRONMENTS} - {"test.yaml"}


INSTALLED = [
    normal(line.name)
    for line in requirements(ROOT / "requirements-test.txt")
    if not line.marker or line.marker.evaluate()
]


def test_the_pins_are_what_these_tests_run_with():
    # A local part (+cpu) says which build of the same version it is.
    installed = {name: metadata.version(name).partition("+")[0] for name in INSTALLED}
    assert installed == {name: TEST[name] for name in INSTALLED}


# What only the comparison of readers needs: a peer that is missing is reported, not fatal. And the
# trainer that an adapter is for: whoever uses that has it.
PEERS = {normal(name) for name in ("webdataset", "lhotse", "lightning")}


def own_file(module: str) -> Path | None:
    """The file of a module of the package."""
    file = ROOT / f"scripts/{module.replace('.', '/')}.py"
    return file if file.is_file() else None


@cache
def needs(path: Path) -> tuple[frozenset[Path], frozenset[str]]:
    """What one script imports: files of the package, and packages under the names of
    requirements.txt."""
    files = set()
    packages = set()
    for name in imported_names(path):
        top = name.split(".")[0]
        if top == "millrace":
            files.add(own_file(name))
        elif top not in sys.stdlib_module_names:
            brought_by = {normal(package) for package in PACKAGES.get(top, [top])}
            packages |= brought_by & set(RUNTIME) or brought_by
    return frozenset(files - {None}), frozenset(packages)


def third_party(*paths: Path) -> set[str]:
    """Packages that scripts and all scripts they import need."""
    waiting, seen, packages = list(paths), set(), set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        files, brought = needs(path)
        waiting += files
        packages |= brought
    return packages


def test_every_import_of_the_lanes_is_pinned_by_name():
    """What a script imports is a direct dependency, not one that another package happens to
    bring."""
    for path in (ROOT / "scripts/millrace").rglob("*.py"):
        _, packages = needs(path)
        missing = packages - set(RUNTIME) - PEERS
        assert not missing, f"{path.name} needs {missing}"


def test_every_environment_holds_what_its_steps_import(jobs):
    for name, rule in jobs.items():
        lane, _, step = name.partition("_")
        there, _ = dependencies(ROOT / "rules" / rule["conda"])
        missing = third_party(ROOT / f"scripts/millrace/{lane}/{step}.py") - set(there) - PEERS
        assert not missing, f"{name} needs {missing}, which {rule['conda']} does not hold"


def test_every_package_that_is_installed_for_tests_has_its_version_in_the_constraints():
    """Those that the pinned ones bring too, however deep: a new release of one must change nothing
    here."""
    constraints = requirements(ROOT / "constraints.txt")
    fixed = {normal(each.name): str(each.specifier) for each in constraints}
    assert all(version.startswith("==") for version in fixed.values())

    elsewhere = {
        normal(each.name) for each in constraints if each.marker and not each.marker.evaluate()
    }
    waiting = [Requirement(name) for name in TEST.keys() - elsewhere]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        name = normal(wanted.name)
        if f"{wanted.name}{wanted.extras}" in seen:
            continue
        seen.add(f"{wanted.name}{wanted.extras}")
        assert fixed.get(name) == f"=={metadata.version(name).partition('+')[0]}", name
        for text in metadata.requires(name) or []:
            brought = Requirement(text)
            if name == "torch" and re.match("triton|cuda-|nvidia-", brought.name):
                continue  # of its build for GPUs alone
            extras = [{"extra": extra} for extra in wanted.extras or [""]]
            if brought.marker is None or any(brought.marker.evaluate(extra) for extra in extras):
                waiting.append(brought)
    assert len(seen) > 100
