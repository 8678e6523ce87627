"""What a parse settles for all lanes: which are on, how many GPUs of this machine count, memory and
time of jobs, and which edits of the config are a change."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError, counted, printable
from millrace.common.report import made_from
from millrace.common.workflow import left_over, lost, run_lock
from millrace.common.workflow import sources as workflow_sources
from millrace.common.workflow.config import LANE_NAMES
from millrace.common.workflow.snakemake_state import (
    Call,
    force,
    is_locked,
    is_recorded,
    unfinished,
)
from millrace.common.workflow.sources import Sources, SourcesMissing

_LOCKED = "a run holds the workflow's lock, so the partitions are shown as that run found them"
DEVICES = Path("/dev")
_CHOICES = "results/{}/partitions/index/choices.json"
# Sections of a lane that hold what was set, and no defaults.
_SPARSE = ("training", "runs", "model_options", "path_map")


class Stage(NamedTuple):
    """What the target <lane>_<stage> makes, which is not all of the lane: its files, and the keys
    of the config that decide on them (with a point or without)."""

    files: Callable[[], list[str]]
    keys: Collection[str]

    def makes(self, path: str) -> bool:
        """Whether a file lies where those of the stage lie."""
        return any(path.startswith(f"{os.path.dirname(file)}/") for file in self.files())


class Lanes:
    """The lanes of one parse of the workflow."""

    def __init__(
        self,
        config: dict,
        basedir: str | os.PathLike,
        is_main_process: bool,
        dry_run: bool = False,
        jobs: int | None = None,
        asked: Call | None = None,
    ) -> None:
        """`basedir` is the folder of the clone. `jobs` is Snakemake's --jobs, which it keeps only
        for other executors than its local one; `asked` is what it was asked for."""
        self._asked = asked = asked if asked and is_main_process else Call()
        self.config = config
        self.basedir = Path(basedir)
        self.is_main_process = is_main_process
        # A lane whose target is asked for by name is switched on for this run.
        self.on = [lane for lane in LANE_NAMES if lane in config["lanes"] or lane in asked.lanes()]
        self._is_run = not dry_run and not asked.only_reads
        self.is_local = is_main_process and jobs is None
        self._targets: dict[str, Callable[[], list[str]]] = {}
        self._sources: dict[str, Sources] = {}
        self._choices: dict[str, dict[str, Any]] = {}
        self._remade: dict[str, list[str]] = {}
        self._said: set[str] = set()
        # What a pipe shows of a dry run is its end.
        is_on_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self._says_at_end = dry_run and not is_on_terminal
        self._kept: list[str] = []
        self._parsed = time.time()
        self._left_over = ""
        if is_main_process:
            try:
                self._left_over = left_over.check(
                    self._say,
                    self._is_run,
                    on_cluster=jobs is not None,
                    unlock=asked.command("--unlock"),
                )
            except MillraceError as error:
                sys.exit(f"Millrace: {error}")
            if self._is_run:
                run_lock.enter()
                _forget_shown()

    def lock_message(self) -> str:
        """Who holds the lock and what to do, for Snakemake's error, whose own text names nobody."""
        holder = run_lock.holder(self._asked.command("--unlock"))
        return f"Millrace: {self._left_over or holder}"

    def shell_prefix(self, deployment: str) -> str:
        """Precedes every command: this clone on PYTHONPATH; this Python on PATH unless conda has
        one."""
        package = shlex.quote(str(self.basedir / "scripts"))
        prefix = f"export PYTHONPATH={package}" + "${PYTHONPATH:+:$PYTHONPATH}; "
        if "conda" not in deployment.lower():
            prefix += f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH; "
        if self.is_main_process:
            prefix += f"export {left_over.MARK}={run_lock.this_run()}; "
        prefix += made_from.export(self.config)
        # Snakemake formats the prefix with the command, so braces are doubled.
        return prefix.replace("{", "{{").replace("}", "}}")

    def flag(self, lane: str, key: str) -> str:
        """A key of the config as the step's flag.

        Snakemake compares the values of a rule's params as a set, without their names: two that
        change places would pass unseen, and a dry run could not say which key has changed.
        """
        return f"--{key.replace('_', '-')} {self.config[lane][key]}"

    def machine(self, ancient: Callable[[str], str]) -> dict[str, Any]:
        """What RunInputs needs to know of where jobs run; `ancient` is Snakemake's."""
        return {
            "gpus": self.gpus(),
            "is_local": self.is_local,
            "ancient": ancient,
        }

    def gpus(self) -> int | None:
        """NVIDIA GPUs here for the workflow's jobs; None if they cannot be counted, or jobs run
        elsewhere."""
        uncounted = any(
            (DEVICES / name).exists() for name in ("kfd", "dxg")
        )  # AMD's, and those of WSL
        if uncounted or not self.is_local:
            return None
        count = sum(path.name[6:].isdigit() for path in DEVICES.glob("nvidia*"))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0," * count).split(",")
        return min(count, sum(name not in ("", "-1") for name in visible))

    def memory_mb(self, payload: float, per_mb: float = 0) -> int | Callable[..., int]:
        """A rule's memory: `payload` MB, `per_mb` for each MB of input, and Snakemake's in each
        cluster job.

        Doubled at each further attempt, as Slurm kills a job that needs more.
        """
        return self._need(
            lambda mb, attempt: round(300 + payload + mb) * 2 ** (attempt - 1), per_mb
        )

    def runtime(self, minutes: float, per_mb: float = 0) -> int | Callable[..., int]:
        """A rule's time limit: `minutes`, and `per_mb` for each MB of input; more at each further
        attempt."""
        return self._need(lambda more, attempt: round(minutes + more) * attempt, per_mb)

    def _need(self, of: Callable[[float, int], int], per_mb: float) -> int | Callable[..., int]:
        if per_mb:
            return lambda wildcards, input, attempt: of(per_mb * _size_mb(input), attempt)
        # A plain number spares each of many jobs a call; here nothing is killed for asking too
        # little.
        if self.is_local:
            return of(0, 1)
        return lambda wildcards, attempt: of(0, attempt)

    def sources(self, lane: str, module: Any) -> Sources:
        """The lane's sources: synced in the main process, unless a run holds the lock; else as last
        synced.

        `module` is the lane's sources.py. A lane that is switched off is not synced. Missing
        sources stop the targets that need them, what is damaged stops the workflow, with one line.
        """
        folder = f"results/{lane}/partitions"
        remedy = module.REMEDY
        last = workflow_sources.load(folder)
        if not self.is_main_process:
            return last
        if lane not in self.on:
            if not last.partitions:
                text = (
                    f"Millrace: {lane}: it is not among `lanes`, and nothing of it was built:"
                    f" {remedy}"
                )
                last.missing = SourcesMissing(text)
            return last
        if self._left_over:
            return last
        if is_locked():
            self._say(_LOCKED)
            return last
        sources = self._synced(lane, module, folder)
        for note in sources.notes:
            self._say(f"{lane}: {note}")
        missing = sources.missing
        if missing is not None:
            text = f"{lane}: {missing.text}"
            if missing.pristine:
                text += f": {remedy}"
                if self._asked_stage(lane, {}) is not None:  # and not only that it is fetched
                    self._say(text)
            sources.missing = SourcesMissing(f"Millrace: {text}", missing.pristine)
        self._sources[lane] = sources
        self._choices[lane] = _flat(self.config[lane], module.QUIET_KEYS)
        return sources

    def _synced(self, lane: str, module: Any, folder: str) -> Sources:
        """The lane's sources, in step with what lies there. What is damaged ends the workflow."""
        was_collecting = gc.isenabled()
        gc.disable()  # half of the time of a large corpus, and there are no circles to collect
        try:
            settings = workflow_sources.settings_of(module.Settings, self.config[lane])
            return workflow_sources.sync(module.collect, settings, folder)
        except MillraceError as error:
            sys.exit(f"Millrace: {lane}: {error}")
        except OSError as error:
            # A full disk, or a folder that may not be read: Snakemake would print a place in our
            # code.
            place = error.filename or "results"
            sys.exit(f"Millrace: {lane}: {place}: {error.strerror}. Mend that, and try again")
        finally:
            if was_collecting:
                gc.enable()

    def register_targets(
        self,
        lane: str,
        targets: Callable[[], list[str]],
        pending_notes: Callable[[], list[str]] = list,
        stages: Mapping[str, Stage] | None = None,
        listed: lost.Listed | None = None,
    ) -> None:
        """Register what the lane builds when it is switched on, and say what of that, as far as it
        is asked for, differs from what was built; and which files that its indices list are lost.
        """
        self._targets[lane] = targets
        if lane not in self._sources:
            return
        with contextlib.suppress(SourcesMissing):
            stages = stages or {}
            stage = self._asked_stage(lane, stages)
            if stage is not None:
                asked = stages.get(stage, Stage(targets, set(self.config[lane])))
                sources = self._sources[lane]
                keys = self._changed_keys(lane, asked)
                if line := "; ".join(filter(None, [sources.changes_until(stage), *keys])):
                    self._say(f"{lane}: {line}")
                if keys and self._asked.by_notes:
                    self._refuse_unseen(lane, keys, [*sources.outputs_until(stage), *asked.files()])
                for note in pending_notes():
                    self._say(f"{lane}: {note}")
                if listed and stage not in listed.before:
                    makers = listed.lost()
                    if makers:
                        self._say(f"{lane}: {lost.shown(makers)}")
                    self._remade[lane] = sorted({*makers.values(), *listed.stale()})

    def remaking(
        self, lane: str, inputs: Callable[..., list[str]], workflow: Any
    ) -> Callable[..., list[str]]:
        """The input function of the merge of a lane, or of the job that makes what an index lists:
        what has been lost is made again.
        """

        def with_remaking(wildcards: Any) -> list[str]:
            if outputs := self._remade.get(lane):
                force(workflow, outputs)
            return inputs(wildcards)

        return with_remaking

    def _changed_keys(self, lane: str, stage: Stage) -> list[str]:
        """The keys that differ from those that the files of a stage were made with, with both
        values."""
        now = _of_sections(self._choices[lane], stage.keys)
        built = self._built_choices(lane)
        keys: dict[str, None] = {}
        for path in stage.files():
            if path in built:
                before = _of_sections(built[path], stage.keys)
                keys |= dict.fromkeys(workflow_sources.changed_settings(before, now, _SPARSE))
        return list(keys)

    def _refuse_unseen(self, lane: str, keys: Collection[str], files: Iterable[str]) -> None:
        """Exit if keys have changed, and Snakemake cannot see it in one of these files, as it has
        no note of how that was made: .snakemake was deleted. The file would stay as it was, and
        soon nothing would say so. A dry run only says it.
        """
        made = [path for path in files if os.path.exists(path)]
        begun = unfinished()  # which are made again
        unknown = [path for path in made if path not in begun and not is_recorded(path)]
        if not unknown:
            return
        problem = (
            f"{lane}: {'; '.join(keys)}, but Snakemake has lost how {unknown[0]} was made"
            f" (.snakemake/metadata; {counted(len(unknown), 'file')}), so it would stay as it is"
        )
        noted = self._asked.command("--cores 1 --touch --forceall")
        remedy = (
            "Bring .snakemake back. Or set the keys back (in --config too), build what else is"
            f" pending, type `{noted}`, which notes it again, and change the keys then."
            f" Or make all anew: `{self._asked.command('--cores all --forceall')}`"
        )
        if self._is_run:
            sys.exit(f"Millrace: {problem}. {remedy}")
        self._say(f"{problem}. {remedy}")

    def _asked_stage(self, lane: str, stages: Mapping[str, Stage]) -> str | None:
        """Until which of its stages a lane is asked for: "" for everything, None for nothing of
        it."""
        asked = sorted(self._asked.asked) or ["all"]
        found = [self._stage_of(lane, target, stages) for target in asked]
        reached = {stage for stage in found if stage is not None}
        if len(reached) == 1:
            return reached.pop()
        return "" if reached else None

    def _stage_of(self, lane: str, target: str, stages: Mapping[str, Stage]) -> str | None:
        """As `_asked_stage`, of one target, a rule's name or a file."""
        is_file = "/" in target
        owner, _, rest = target.removeprefix("results/").partition("/" if is_file else "_")
        if owner == lane:
            if not is_file:
                if rest.startswith("fetch_"):
                    return None
                return rest if rest in stages else ""
            return next((name for name, stage in stages.items() if stage.makes(target)), "")
        if owner not in (*LANE_NAMES, "resources"):
            # All that the config names; and what we do not know by its name.
            if lane in self.config["lanes"] or owner != "all":
                return ""
            return None
        return self._stage_of_needed(lane, owner, rest)

    def _stage_of_needed(self, lane: str, owner: str, rest: str) -> str | None:
        """As `_asked_stage`, of a target of another lane, which may need this one."""
        if owner == "audit" and rest:  # results/audit/<lane>/<run>/...
            return self._stage_of(lane, f"results/{rest}", {})
        if owner == "audit" and lane != "speech":
            return ""
        reads_shards = owner in ("asr", "audit") and self.config["asr"]["source"] == "speech"
        return "shards" if lane == "speech" and reads_shards else None

    def targets(self) -> list[str]:
        """The final files of all lanes that are switched on. Raises SourcesMissing."""
        return [path for lane in self.config["lanes"] for path in self._targets[lane]()]

    def success(self, outputs: Iterable[str]) -> None:
        """A run has succeeded, so these outputs are up to date: note the config they were made
        with."""
        made = set(outputs)
        for lane, choices in self._choices.items():
            with contextlib.suppress(SourcesMissing):
                if now := {path: choices for path in self._targets[lane]() if path in made}:
                    content = atomic.json_bytes(self._built_choices(lane) | now)
                    atomic.write_if_changed(_CHOICES.format(lane), content)

    def say_end(self, failed: bool, logs: list[str]) -> None:
        """The run has ended: say what it has made, or which steps failed. `logs` are Snakemake's
        own."""
        from millrace.common.workflow import status

        _forget_shown()
        # The audit is asked for by the rules that train.
        run = status.Ended(
            lanes=[*dict.fromkeys([*self.on, "audit"])],
            since=self._parsed,
            failed=failed,
            logs=logs,
            report=self._asked.command("--report report.html"),
        )
        status.say_last(run)

    def print_kept(self) -> None:
        """Print what was kept for the end of a dry run."""
        for line in self._kept:
            print(line, file=sys.stderr)

    def _built_choices(self, lane: str) -> dict[str, dict[str, Any]]:
        return jsonl.read_or({}, _CHOICES.format(lane))

    def _say(self, message: str) -> None:
        """Print a line, once."""
        if message in self._said:
            return
        self._said.add(message)
        line = printable(f"Millrace: {message}")
        if self._says_at_end:
            self._kept.append(line)
        else:
            print(line, file=sys.stderr)


def _forget_shown() -> None:
    """Delete what is made to be shown once, so that the next run, or dry run, makes it pending
    again."""
    for path in Path("results").glob("*/hub/diff.txt"):
        path.unlink(missing_ok=True)


def _size_mb(paths: Iterable[str]) -> float:
    """The size of the files that are there: a dry run may ask before they are made."""
    return sum(os.path.getsize(path) for path in paths if os.path.exists(path)) / 1e6


def _of_sections(choices: Mapping[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """Those keys whose first part is one of `sections`, as they are compared."""
    found = {}
    for key, value in choices.items():
        if key.partition(".")[0] in sections:
            found[key] = _compared(value)
    return found


def _compared(value: Any) -> Any:
    """A value without the slash at the end of a text, which says nothing behind a folder."""
    if not isinstance(value, str):
        return value
    return value.rstrip("/") or value


def _flat(section: dict[str, Any], without: Collection[str], above: str = "") -> dict[str, Any]:
    """The values of a section by key, those of objects with a point; of what is switched off that
    it is."""
    if not section.get("enabled", True):
        return {f"{above}enabled": False}
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if key in without:
            continue
        if isinstance(value, dict):
            flat |= _flat(value, without, f"{above}{key}.")
        else:
            flat[above + key] = value
    return flat
