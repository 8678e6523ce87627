"""The laws of the layout: one name per step, used everywhere; verbs run, nouns are imported."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from millrace.common.workflow.config import LANES
from tests.workflow.workflow import ROOT

VERBS = (
    *(
        "fetch",
        "generate",
        "build",
        "create",
        "verify",
        "evaluate",
        "check",
        "calibrate",
        "export",
        "merge",
        "train",
        "report",
        "upload",
        "write",
        "transcribe",
        "benchmark",
    ),
)
# Steps of no rule: what they make is nobody's input.
BY_HAND = {"asr_transcribe"}
PACKAGE = ROOT / "scripts/millrace"
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")
)
# Parse, call, report. More is a noun's business.
MAX_STEP_TOKENS = 950
MAX_NOUN_TOKENS = 3_500
TOO_LARGE = {"audit/checks/preprocessing.py"}
HEAVY = ("torch", "numpy", "pandas", "pyarrow", "h5py", "av", "soundfile", "soxr", "matplotlib")
HEAVY += ("jiwer", "pydub", "datasets")


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def is_step(path: Path) -> bool:
    """A verb-named file at the top of a lane; in a room every file is a noun."""
    return path.parent.parent == PACKAGE and path.stem.split("_")[0] in VERBS


def tokens(path: Path) -> int:
    """Names, operators, numbers and strings that are no docstring: what a reader has to take in."""
    source = path.read_text()
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    }
    counted = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    return sum(
        token.type in counted and token.start not in docstrings
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )


def imported_names(path: Path) -> set[str]:
    """Dotted names of all that the file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


STEPS = [path for path in MODULES if is_step(path)]
NOUNS = [path for path in MODULES if path not in STEPS]
# Their job is the command line or the config.
MAY_KNOW = (
    *("common/cli.py", "common/training/launch.py", "common/settings.py"),
    *("common/workflow/config.py", "asr/training/options.py"),
    *("asr/calibration/options.py", "common/hub/server.py", "image/training/options.py"),
    # A published model's configuration.yaml, and those that users train with.
    *("music/models/config.py", "music/training/conf.py", "music/training/run.py"),
)


def test_every_lane_has_rules_schema_package_and_targets(rules):
    files = {path.stem for path in (ROOT / "rules").glob("*.smk")}
    assert files == {"common", *LANES}
    for lane in LANES:
        assert (ROOT / f"rules/schemas/{lane}.schema.yaml").is_file()
        assert (ROOT / f"scripts/millrace/{lane}/__init__.py").is_file()
        assert (ROOT / f"tests/{lane}/__init__.py").is_file()
        assert lane in rules, f"no target rule `{lane}`"
    assert "all" in rules


def test_every_rule_says_in_one_line_what_it_does(rules):
    for name, rule in rules.items():
        text = rule["docstring"]
        assert text and "\n" not in text, f"{name}: {text!r}"
        assert text.endswith((".", "(the default).")) and text[0].isupper(), f"{name}: {text!r}"


def test_rules_belong_to_the_lane_of_their_file(rules):
    for name, rule in rules.items():
        lane = Path(rule["file"]).stem
        if lane == "Snakefile":
            assert name == "all"
        else:
            assert name == lane or name.startswith(f"{lane}_"), f"{name} in {rule['file']}"


def test_target_rules_are_local_and_without_wildcards(rules):
    targets = [rule for rule in rules.values() if not rule["shell"]]
    assert {"all", *LANES} <= {rule["name"] for rule in targets}
    for rule in targets:
        assert rule["local"], f"{rule['name']} would be sent to the cluster"
        assert not rule["wildcards"] and not rule["outputs"] and not rule["unnamed_outputs"], rule[
            "name"
        ]


def test_every_job_rule_is_named_like_its_step_log_benchmark_and_environment(jobs):
    assert jobs
    for name, rule in jobs.items():
        lane, _, step = name.partition("_")
        assert step.split("_")[0] in VERBS, f"{name}: {step.split('_')[0]} is none of the verbs"
        assert (ROOT / f"scripts/millrace/{lane}/{step}.py").is_file(), (
            f"{name}: no scripts/{lane}/{step}.py"
        )
        # Training sets an environment, and may be started by torchrun.
        start = r"(\{params\.environment\} )?python (-m|\{params\.launcher\})"
        assert re.match(rf"{start} millrace\.{lane}\.{step} ", rule["shell"]), name
        assert len(rule["log"]) == 1 and rule["log"][0].startswith(f"logs/{lane}/{step}/"), (
            name,
            rule["log"],
        )
        assert rule["log"][0].endswith(".log")
        assert rule["benchmark"], f"{name}: no benchmark"
        assert rule["benchmark"] == rule["log"][0].replace("logs/", "benchmarks/", 1).replace(
            ".log", ".tsv"
        ), name
        assert rule["conda"] and (ROOT / "rules" / rule["conda"]).is_file(), (
            f"{name}: no environment"
        )
        assert re.search(r" 2> \{log(:q)?\}$", rule["shell"]), (
            f"{name}: standard error does not go to the log"
        )


def test_job_rules_name_their_files_and_write_below_results_or_resources(jobs):
    for name, rule in jobs.items():
        lane = name.partition("_")[0]
        assert rule["outputs"] and not rule["unnamed_outputs"] and not rule["unnamed_inputs"], name
        for path in rule["output_paths"]:
            assert path.startswith((f"results/{lane}/", f"resources/{lane}/")), f"{name}: {path}"


def test_rules_state_memory_and_quote_their_wildcards(jobs):
    for name, rule in jobs.items():
        assert rule["local"] or "mem_mb" in rule["resources"], f"{name} states no memory"
        if rule["wildcards"]:
            unquoted = re.findall(r"\{(?:input|output|log)(?:\.\w+)?\}", rule["shell"])
            assert not unquoted, f"{name}: {unquoted} breaks on names with spaces"


def test_rules_hold_no_python(rules):
    for name, rule in rules.items():
        assert not rule["is_run"], f"{name} has run:"
        assert not rule["script"], f"{name} has script:"
        assert not rule["lambdas"], f"{name} has a lambda in {rule['lambdas']}"


def test_every_step_belongs_to_a_rule_and_has_tests(jobs):
    steps = {f"{path.parent.name}_{path.stem}" for path in STEPS if path.parent.name in LANES}
    assert steps == set(jobs) | BY_HAND
    missing = [
        name
        for path in STEPS
        if path.parent.name in LANES
        and not (ROOT / (name := f"tests/{path.parent.name}/test_{path.stem}.py")).is_file()
    ]
    assert not missing, missing


def test_every_wildcard_is_constrained():
    for lane in LANES:
        text = (ROOT / f"rules/{lane}.smk").read_text()
        constrained = set(
            re.findall(
                r"^    (\w+)=",
                text.partition("wildcard_constraints:")[2].partition("\n\n")[0],
                re.M,
            )
        )
        used = set(re.findall(r'^        "logs/[^"]*\{(\w+)\}', text, re.M))
        assert used <= constrained


@pytest.mark.parametrize("path", STEPS, ids=name_of)
def test_a_step_is_a_short_command_line(path):
    functions = {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }
    assert {"make_parser", "main"} <= functions
    assert 'if __name__ == "__main__":\n    raise SystemExit(main())' in path.read_text()
    assert tokens(path) <= MAX_STEP_TOKENS


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nobody_imports_a_step(path):
    steps = {f"millrace.{step.parent.name}.{step.stem}" for step in STEPS}
    assert not imported_names(path) & steps


@pytest.mark.parametrize("path", NOUNS, ids=name_of)
def test_a_noun_knows_nothing_of_config_command_line_or_snakemake(path):
    names, source = imported_names(path), path.read_text()
    assert not any(name.split(".")[0] == "snakemake" for name in names)
    assert (tokens(path) <= MAX_NOUN_TOKENS) != (name_of(path) in TOO_LARGE)
    if name_of(path) in MAY_KNOW:
        return
    assert not names & {"argparse", "yaml"}
    assert "sys.argv" not in source and "config.yaml" not in source
    assert '__name__ == "__main__"' not in source


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_what_a_parse_of_the_workflow_imports_is_light():
    modules = ["millrace.common.workflow.lanes", *(f"millrace.{lane}.inputs" for lane in LANES)]
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
