"""The laws of the layout: one name per step, used everywhere; verbs run, nouns are imported."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from millrace.common.workflow.config import LANE_NAMES
from tests.workflow.workflow import ROOT

VERBS = [
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
]
# Steps of no rule: what they make is nobody's input.
BY_HAND = {
    "asr_transcribe",
    "audit_check_splits",
    "image_create_epochs",
    "music_verify_h5_sample",
}
PACKAGE = ROOT / "scripts/millrace"
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")
)
# Parse, call, report. More is a noun's business.
MAX_STEP_TOKENS = 950
MAX_NOUN_TOKENS = 3_500
LISTED_FILES = 39
HEAVY = ("torch", "numpy", "pandas", "pyarrow", "h5py", "av", "soundfile", "soxr", "matplotlib")
HEAVY += ("jiwer", "pydub", "datasets")


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def is_step(path: Path) -> bool:
    """A verb-named file at the top of a lane; in a room every file is a noun."""
    return path.parent.parent == PACKAGE and path.stem.split("_")[0] in VERBS


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def tokens(path: Path) -> int:
    """Names, operators, numbers and strings that are no docstring: what a reader has to take in."""
    source = path.read_text()
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
    }
    counted = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    return sum(
        token.type in counted and token.start not in docstrings
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    )


@cache
def imported_names(path: Path) -> set[str]:
    """Dotted names of all that the file imports, also inside functions."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute, so that they can be searched"
            names.add(str(node.module))
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


STEPS = [path for path in MODULES if is_step(path)]
NOUNS = [path for path in MODULES if path not in STEPS]
# Their job is the command line or the config.
MAY_KNOW = (
    "common/cli.py",
    "common/training/launch.py",
    "common/settings.py",
    "common/workflow/config.py",
    "asr/training/options.py",
    "asr/calibration/options.py",
    "common/hub/server.py",
    "image/training/options.py",
    # A published model's configuration.yaml, and those that users train with.
    "music/models/config.py",
    "music/training/conf.py",
    "music/training/run.py",
)


def test_every_lane_has_rules_schema_package_and_targets(rules):
    files = {path.stem for path in (ROOT / "rules").glob("*.smk")}
    assert files == {"common", *LANE_NAMES}
    for lane in LANE_NAMES:
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
    assert {"all", *LANE_NAMES} <= {rule["name"] for rule in targets}
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


def test_rules_quote_their_wildcards(jobs):
    for name, rule in jobs.items():
        if rule["wildcards"]:
            unquoted = re.findall(r"\{(?:input|output|log)(?:\.\w+)?\}", rule["shell"])
            assert not unquoted, f"{name}: {unquoted} breaks on names with spaces"


def test_rules_that_train_or_evaluate_ask_for_gpus(jobs):
    training = {name for name, rule in jobs.items() if "environment" in rule["params"]}
    with_gpus = {name for name, rule in jobs.items() if "gpu" in rule["resources"]}
    assert with_gpus == training - {"audit_check_loader"}  # which runs loaders


def test_rules_hold_no_python(rules):
    for name, rule in rules.items():
        assert not rule["is_run"], f"{name} has run:"
        assert not rule["script"], f"{name} has script:"
        assert not rule["lambdas"], f"{name} has a lambda in {rule['lambdas']}"


def test_every_step_belongs_to_a_rule_and_has_tests(jobs):
    steps = {f"{path.parent.name}_{path.stem}" for path in STEPS if path.parent.name in LANE_NAMES}
    assert steps == set(jobs) | BY_HAND
    missing = [
        name
        for path in STEPS
        if path.parent.name in LANE_NAMES
        and not (ROOT / (name := f"tests/{path.parent.name}/test_{path.stem}.py")).is_file()
    ]
    assert not missing, missing


def test_every_wildcard_is_constrained():
    for lane in LANE_NAMES:
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


def test_rules_keep_what_they_make_and_wait_for_what_changes():
    """The gate of a finished run alone is `ancient`, which its lane's inputs decide."""
    texts = {path.name: path.read_text() for path in (ROOT / "rules").glob("*.smk")}
    assert [name for name, text in texts.items() if re.search(r"\b(ancient|temp)\(", text)] == []


def offenders(paths: list[Path], offends: Callable[[Path], bool]) -> list[str]:
    """Modules that break a law, by name."""
    return [name_of(path) for path in paths if offends(path)]


def has_a_command_line(path: Path) -> bool:
    source = path.read_text()
    functions = {node.name for node in tree(path).body if isinstance(node, ast.FunctionDef)}
    end = 'if __name__ == "__main__":\n    raise SystemExit(main())'
    return {"make_parser", "main"} <= functions and end in source


def test_a_step_is_a_short_command_line():
    assert STEPS
    assert offenders(STEPS, lambda path: not has_a_command_line(path)) == []
    assert offenders(STEPS, lambda path: tokens(path) > MAX_STEP_TOKENS) == []


def test_nobody_imports_a_step():
    steps = {f"millrace.{step.parent.name}.{step.stem}" for step in STEPS}
    assert offenders(MODULES, lambda path: bool(imported_names(path) & steps)) == []


def knows_its_surroundings(path: Path) -> bool:
    """Whether a module knows the command line or the config."""
    if imported_names(path) & {"argparse", "yaml"}:
        return True
    source = path.read_text()
    return any(text in source for text in ("sys.argv", "config.yaml", '__name__ == "__main__"'))


def test_a_noun_knows_nothing_of_config_command_line_or_snakemake():
    def imports_snakemake(path: Path) -> bool:
        return any(name.split(".")[0] == "snakemake" for name in imported_names(path))

    assert offenders(NOUNS, imports_snakemake) == []
    ordinary = [path for path in NOUNS if name_of(path) not in MAY_KNOW]
    assert offenders(ordinary, knows_its_surroundings) == []


def test_a_noun_is_of_a_size_that_can_be_read():
    assert offenders(NOUNS, lambda path: tokens(path) > MAX_NOUN_TOKENS) == []


def test_every_module_says_what_it_is_for():
    assert offenders(MODULES, lambda path: not ast.get_docstring(tree(path))) == []


def test_what_a_parse_of_the_workflow_imports_is_light():
    modules = [
        "millrace.common.workflow.lanes",
        *(f"millrace.{lane}.inputs" for lane in LANE_NAMES),
    ]
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_list_of_files_that_strict_rules_do_not_hold_for_only_shrinks():
    """Take a file off when it is rewritten, and lower the number."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = config["tool"]["ruff"]["lint"]["per-file-ignores"]
    assert [path for path in listed if "*" not in path and not (ROOT / path).is_file()] == []
    assert len(listed) <= LISTED_FILES
