"""All that Millrace knows of Snakemake beyond its documented interface: its command line, what it
keeps below .snakemake, and a few of its objects.

The Snakefile asks for the oldest release in which all of this is so; the tests of this module hold
it to the pinned one.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl

_FOLDER = Path(".snakemake")
_LONGEST = 254  # letters of a file's name, less Snakemake's mark of a piece
_LOGS_LOOKED_AT = 50
# Options of Snakemake that say which workflow it is, of which folder and config.
_OF_PLACE = {
    "snakefile": "-s",
    "directory": "--directory",
    "configfile": "--configfile",
    "config": "--config",
}
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
    """The rules (and files) that were asked for; whether nothing is to be run.

    `place` are the options that say which workflow this is, as one types them; `targets` are the
    words that name what is to be made. `by_notes`: the notes in .snakemake/metadata say what is up
    to date. Nothing is forced, and they are in no database.
    """

    asked: frozenset[str] = frozenset()
    only_reads: bool = False
    place: str = ""
    targets: str = ""
    by_notes: bool = True

    def command(self, mode: str) -> str:
        """How to call Snakemake on the same workflow in another mode, for the same targets if it
        has to do with some."""
        targets = "" if mode == "--unlock" else self.targets
        return " ".join(filter(None, ["snakemake", targets, self.place, mode]))

    def lanes(self) -> set[str]:
        """The lanes whose targets were asked for: `asr`, `asr_data`."""
        return {name.partition("_")[0] for name in self.asked if name.isidentifier()}


def parse(
    argv: Sequence[str], parser: Callable[[], Any], rule_name: Callable[[str], str] = str
) -> Call:
    """Read Snakemake's command line; nothing was asked for if that is not what started this
    process.

    While the workflow is parsed, Snakemake keeps targets and modes to itself. So `parser`, which
    makes Snakemake's own, reads `argv` once more: a word such as `asr_big.yaml` may be anything.
    `argv` begins with the program, `rule_name` gives the name that a rule of Millrace has in the
    workflow: a module may rename them.
    """
    program = Path(argv[0])
    if program.stem != "snakemake" and program.parts[-2:] != ("snakemake", "__main__.py"):
        return Call()
    options, _ = parser().parse_known_args(list(argv[1:]))

    before, _, after = rule_name("\0").partition("\0")
    asked = set()
    for option in _NAMING:
        for name in map(str, getattr(options, option) or ()):
            if name.startswith(before) and name.endswith(after):
                asked.add(name.removeprefix(before).removesuffix(after))

    only_reports = bool(options.report and not options.report_after_run)
    only_reads = only_reports or any(getattr(options, mode) for mode in _READING)
    targets = shlex.join(options.targets or ())
    is_forced = bool(options.forceall or options.forcerun)
    by_notes = not is_forced and str(options.persistence_backend) == "file"
    return Call(frozenset(asked), only_reads, _place(options), targets, by_notes)


def _place(options: Any) -> str:
    """The options of a call that say which workflow it is, as one types them."""
    words = []
    for name, flag in _OF_PLACE.items():
        values = getattr(options, name)
        if values:
            if not isinstance(values, list):
                values = [values]
            words += [flag, *map(str, values)]
    return shlex.join(words)


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


def say_who_locks(lock_error: Any, workflow_error: Any, message: Callable[[], str]) -> None:
    """Have Snakemake's LockException say this: its own text advises to unlock, also while the other
    run lives."""
    lock_error.__init__ = lambda error: workflow_error.__init__(error, message())


def keep_what_is_loaded() -> None:
    """Look for no garbage in what Snakemake has loaded: that is a fifth of the time of a large dry
    run."""
    gc.freeze()
    gc.set_threshold(50_000)


def note_no_failed_job(job: Any) -> None:
    """Have Snakemake's Job keep the note of before of a job that fails.

    Snakemake notes it as one that is done, with the inputs and parameters of now, deletes its
    outputs, and does not miss them while what was made of them before is there: the same command
    again would find nothing to do.
    """
    postprocess = job.postprocess
    turn = asyncio.Lock()  # jobs of a group fail side by side, and the setting is one for all

    async def without_note(self: Any, *arguments: Any, error: bool = False, **options: Any) -> None:
        if not error:
            await postprocess(self, *arguments, **options)
            return
        settings = self.dag.workflow.execution_settings
        async with turn:
            keeps = settings.keep_metadata
            settings.keep_metadata = False
            try:
                await postprocess(self, *arguments, error=True, **options)
            finally:
                settings.keep_metadata = keeps

    job.postprocess = without_note


def force(workflow: Any, outputs: Iterable[str]) -> None:
    """Have the jobs of these outputs run again, as --forcerun would, but for jobs of the DAG only.

    It must be called while the DAG grows, before Snakemake looks for what is pending.
    """
    workflow.dag.forcefiles.update(outputs)


def is_locked() -> bool:
    """Whether a run, dead or alive, holds the lock of the current folder."""
    try:
        return any(os.scandir(_FOLDER / "locks"))
    except FileNotFoundError:
        return False


def unfinished() -> dict[str, float]:
    """Outputs that Snakemake has begun and not finished, and since when, in seconds since 1970."""
    folder = _FOLDER / "incomplete"
    since = {}
    for path in folder.rglob("*"):
        if path.is_file():
            pieces = path.relative_to(folder).parts
            name = "".join(piece.removeprefix("@") for piece in pieces)
            output = base64.urlsafe_b64decode(name).decode(errors="replace")
            since[output] = path.stat().st_mtime
    return since


class Record(NamedTuple):
    """How a file was made, as Snakemake has noted it."""

    command: str
    inputs: frozenset[str]


def record(path: str) -> Record:
    """The note of a file; an empty one if there is none."""
    note: Mapping[str, Any] = jsonl.read_or({}, _note(path))
    return Record(f"{note.get('shellcmd')}", frozenset(note.get("input", ())))


def is_recorded(path: str) -> bool:
    """Whether Snakemake has noted how a file was made: only then it sees that a parameter is
    another one now."""
    return _note(path).exists()


def _note(path: str) -> Path:
    """Where the note of a file lies. Long names are in pieces."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    pieces = [name[at : at + _LONGEST] for at in range(0, len(name), _LONGEST)]
    folders = [f"@{piece}" for piece in pieces[:-1]]
    return Path(_FOLDER, "metadata", *folders, pieces[-1])


class RunLog(NamedTuple):
    """What the log of a run says: its path, when the run began and the log ended, in seconds since
    1970, and how many of its steps are done."""

    path: str
    started: float
    written: float
    done: int
    total: int
    has_ended: bool


def last_log() -> RunLog | None:
    """The newest log of the current folder that has a table of jobs; others are of --unlock, or of
    runs with nothing to do."""
    logs = sorted(Path(_FOLDER, "log").glob("*.snakemake.log"), reverse=True)
    for path in logs[:_LOGS_LOOKED_AT]:
        text = path.read_text(errors="replace")
        total = re.search(r"^total +(\d+)$", text, re.M)  # the end of the table of jobs
        if total is None:
            continue
        done = re.findall(r"^(\d+) of \d+ steps", text, re.M) or ["0"]
        started = datetime.strptime(path.name[:17], "%Y-%m-%dT%H%M%S").timestamp()
        has_ended = "\nElapsed time: " in text
        written = path.stat().st_mtime
        return RunLog(str(path), started, written, int(done[-1]), int(total[1]), has_ended)
    return None
