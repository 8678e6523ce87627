"""How Snakemake was called, and from where: what the workflow needs to know while it is parsed.

At that time Snakemake has parsed its command line, but keeps targets and modes to itself. So they
are parsed once more, by its own parser: a word such as `asr_big.yaml` may be anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Options of Snakemake that name rules, beside the targets.
_NAMING = ("targets", "forcerun", "until", "prioritize")
# Modes of Snakemake that run nothing, and are no dry run.
_READING: tuple[str, ...] = (
    "lint",
    "list_rules",
    "list_target_rules",
    "dag",
    "rulegraph",
    "filegraph",
    "d3dag",
    "summary",
    "detailed_summary",
    "list_changes",
    "list_input_changes",
    "list_params_changes",
    "list_untracked",
    "unlock",
    "archive",
    "containerize",
    "generate_unit_tests",
    "cleanup_metadata",
    "cleanup_shadow",
    "conda_create_envs_only",
    "conda_cleanup_envs",
    "list_conda_envs",
    "container_cleanup_images",
    "delete_all_output",
    "delete_temp_output",
)
# The folders that steps and input functions name.
_FOLDERS = ("results/", "resources/", "logs/", "benchmarks/")


class Call(NamedTuple):
    """The rules (and files) that were asked for; whether nothing is to be run."""

    asked: frozenset[str] = frozenset()
    only_reads: bool = False

    def lanes(self) -> set[str]:
        """The lanes whose targets were asked for: `asr`, `asr_data`."""
        return {name.partition("_")[0] for name in self.asked if name.isidentifier()}


def parse(
    argv: Sequence[str], parser: Callable[[], Any], rule_name: Callable[[str], str] = str
) -> Call:
    """Read Snakemake's command line; nothing was asked for if that is not what started this
    process.

    `argv` begins with the program, `parser` makes Snakemake's own, `rule_name` gives
    the name that a rule of Millrace has in the workflow: a module may rename them.
    """
    program, *arguments = argv
    path = Path(program)
    if path.stem != "snakemake" and path.parts[-2:] != ("snakemake", "__main__.py"):
        return Call()
    options, _ = parser().parse_known_args(arguments)
    before, _, after = rule_name("\0").partition("\0")
    asked = {
        str(name).removeprefix(before).removesuffix(after)
        for option in _NAMING
        for name in getattr(options, option) or ()
        if str(name).startswith(before) and str(name).endswith(after)
    }
    only_reports = options.report and not options.report_after_run
    return Call(
        frozenset(asked), bool(only_reports) or any(getattr(options, mode) for mode in _READING)
    )


def refuse_other_paths(in_module: Callable[[str], str]) -> None:
    """Exit if the `prefix` or `replace_prefix` of a module would move our files: steps and input
    functions name many files that no rule names. `in_module` gives what becomes of a path."""
    for path in _FOLDERS:
        if in_module(path) != path:
            problem = (
                f"`prefix` and `replace_prefix` are not possible: {path} would be {in_module(path)}"
            )
            remedy = (
                "Leave it out; where files must not mix, run Millrace in a folder of its own"
                " (--directory)"
            )
            sys.exit(
                f"Millrace: the module statement: {problem}, and steps would not find it. {remedy}"
            )


def own_shell(shell: Any, prefix: str) -> Any:
    """Snakemake's `shell` for our rules: each command has `prefix` (a format string), after what
    the importing workflow gives to all commands by `shell.prefix`."""

    class Shell(shell):
        @classmethod
        def _get_process_prefix(cls, shell_exec: str | None = None) -> str:
            return f"{super()._get_process_prefix(shell_exec)} {prefix.format()}"

    return Shell
