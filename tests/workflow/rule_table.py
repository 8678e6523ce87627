"""Print what Snakemake knows of every rule, as JSON: `python -m tests.workflow.rule_table
<Snakefile> <config file>`.

A program of its own, because reading a workflow changes the interpreter (sys.path, logging, shell
prefix).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from snakemake.api import SnakemakeApi
from snakemake.settings import types


def describe(rule: Any, workflow: Any, large: str) -> dict[str, Any]:
    """What the laws speak about, as plain values. Constraints are cut from wildcards: {a,\\d+} ->
    {a}."""

    def plain(pattern: object) -> str:
        # The constraints hold braces of their own at most as {n}, which none uses.
        return re.sub(r"\{(\w+),[^{}]*\}", r"{\1}", str(pattern))

    directives = {
        "input": rule.input,
        "output": rule.output,
        "params": rule.params,
        "log": rule.log,
        "benchmark": [rule.benchmark],
        "resources": list(rule.resources.values()),
    }
    # What a job asks for without input, and for a file of 1000 MB.
    needs = {}
    for need in ("mem_mb", "runtime", "gpu"):
        value = rule.resources.get(need)
        if value is not None:
            asked = [value.evaluate({}, input=paths, attempt=1) for paths in ([], [large])]
            needs[need] = [resource.value for resource in asked]
    functions = [
        (name, value) for name, values in directives.items() for value in values if callable(value)
    ]
    return {
        "name": rule.name,
        "docstring": rule.docstring,
        "file": Path(rule.snakefile).name,
        "log": [plain(path) for path in rule.log],
        "benchmark": plain(rule.benchmark) if rule.benchmark else None,
        "conda": rule.conda_env,
        "shell": rule.shellcmd,
        "is_run": rule.is_run,
        "script": rule.script,
        "local": rule.name in workflow._localrules,
        "wildcards": sorted(rule.wildcard_names),
        "inputs": [name for name, _ in rule.input._allitems() if name],
        "unnamed_inputs": sum(1 for name, _ in rule.input._allitems() if not name),
        "outputs": [name for name, _ in rule.output._allitems() if name],
        "output_paths": [plain(path) for path in rule.output],
        "unnamed_outputs": sum(1 for name, _ in rule.output._allitems() if not name),
        "params": [name for name, _ in rule.params._allitems() if name],
        "lambdas": [
            name for name, value in functions if getattr(value, "__name__", "") == "<lambda>"
        ],
        "resources": sorted(set(rule.resources) - {"_cores", "_nodes", "tmpdir"}),
        "asks": [getattr(value, "__name__", "") for value in rule.input],
        "needs": needs,
        "computed": sorted(name for name, value in rule.resources.items() if value.is_evaluable()),
    }


def main(snakefile: str, configfile: str) -> None:
    with SnakemakeApi(types.OutputSettings(quiet={types.Quietness.ALL})) as api:
        workflow = api.workflow(
            resource_settings=types.ResourceSettings(),
            config_settings=types.ConfigSettings(configfiles=[Path(configfile)]),
            storage_settings=types.StorageSettings(),
            workflow_settings=types.WorkflowSettings(),
            deployment_settings=types.DeploymentSettings(),
            snakefile=Path(snakefile),
        )._workflow
        with tempfile.NamedTemporaryFile() as large:
            large.truncate(1000 * 10**6)
            rules = [describe(rule, workflow, large.name) for rule in workflow.rules]
        print(json.dumps(rules))


if __name__ == "__main__":
    main(*sys.argv[1:])
