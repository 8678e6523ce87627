"""What the Snakefile needs of the lanes: a checked config, their sources in step, their targets."""

from __future__ import annotations

import difflib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from scripts.common import run_lock
from scripts.common.errors import MillraceError

# Lanes in the order of the data: the name of rule file, script folder, config section and results folder.
LANES = ("speech", "asr")


def validate_config(config: dict, schemas: str | os.PathLike) -> dict:
    """Check the config against the closed schemas and fill in defaults; return a new dict.

    Exits with one line per problem, which names the key, when something is wrong: a traceback out of a Snakefile
    helps nobody.
    """
    try:
        return checked_config(config, schemas)
    except MillraceError as error:
        # WorkflowError would print the Snakefile's line instead of the config's key.
        sys.exit(f"Millrace: the config is not valid.\n{error}")


def checked_config(config: dict, schemas: str | os.PathLike) -> dict:
    """As validate_config, but raises MillraceError."""
    known = {lane: _load_schema(Path(schemas) / f"{lane}.schema.yaml") for lane in LANES}
    problems = [
        f"  {key}: no such section{_suggest(key, ['lanes', *LANES])}" for key in config if key not in ("lanes", *LANES)
    ]
    wanted = config.get("lanes", list(LANES))
    if not isinstance(wanted, list) or any(lane not in LANES for lane in wanted):
        problems.append(f"  lanes: must be a list of {', '.join(LANES)}, not {wanted!r}")
    result: dict[str, Any] = {"lanes": wanted}
    for lane, schema in known.items():
        section = config.get(lane) or {}
        result[lane] = _with_defaults(section, schema) if isinstance(section, dict) else section
        problems += _problems(result[lane], schema, lane)
    if problems:
        raise MillraceError("\n".join(problems))
    return result


def _load_schema(path: Path) -> dict:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with open(path, encoding="utf-8") as handle:
        return yaml.load(handle, Loader=loader)


def _with_defaults(section: dict, schema: dict) -> dict:
    result = dict(section)
    for key, rule in schema.get("properties", {}).items():
        if key not in result and "default" in rule:
            result[key] = rule["default"]
        if rule.get("type") == "object" and isinstance(result.get(key), dict) and "properties" in rule:
            result[key] = _with_defaults(result[key], rule)
    return result


def _problems(section: Any, schema: dict, lane: str) -> list[str]:
    found = []
    for error in _validator(schema).iter_errors(section):
        key = ".".join([lane, *map(str, error.absolute_path)])
        if error.validator == "additionalProperties":
            allowed = list(error.schema.get("properties", {}))
            for name in sorted(set(map(str, error.instance)) - set(allowed)):
                found.append(f"  {key}.{name}: no such key{_suggest(name, allowed)}")
        else:
            meaning = error.schema.get("description", "") if error.validator != "ascending" else ""
            hint = "; put it in quotes, YAML reads yes, no, on and off as truth values" * _is_unquoted(error)
            found.append(f"  {key}: {error.message}{hint}{f' ({meaning})' if meaning else ''}")
    return sorted(found)


def _is_unquoted(error: Any) -> bool:
    return error.validator == "type" and error.validator_value == "string" and isinstance(error.instance, bool)


def _validator(schema: dict) -> Any:
    """JSON Schema with two words more, `sumsTo` and `ascending`; numbers are finite, whole numbers have no point."""
    from jsonschema import Draft202012Validator, validators

    def is_number(_: Any, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    def is_integer(_: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    types = Draft202012Validator.TYPE_CHECKER.redefine_many({"number": is_number, "integer": is_integer})
    words = {"sumsTo": _sums_to, "ascending": _ascending}
    return validators.extend(Draft202012Validator, words, type_checker=types)(schema)


def _sums_to(_: Any, total: float, instance: Any, schema: dict) -> Iterator[Any]:
    """Values of an object that must have this sum."""
    from jsonschema import ValidationError

    values = list(instance.values()) if isinstance(instance, dict) else []
    if all(isinstance(value, int | float) for value in values) and not math.isclose(sum(values), total, abs_tol=1e-6):
        yield ValidationError(f"the values must sum to {total}, not {round(sum(values), 6)}")


def _ascending(_: Any, pairs: list[list[str]], instance: Any, schema: dict) -> Iterator[Any]:
    """Pairs of keys of an object: the first one's value must be below the second's."""
    from jsonschema import ValidationError

    for low, high in pairs if isinstance(instance, dict) else []:
        values = instance.get(low), instance.get(high)
        if all(isinstance(value, int | float) for value in values) and not values[0] < values[1]:
            yield ValidationError(f"{values[0]} is not below {high}, which is {values[1]}", path=[low])


def _suggest(name: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(str(name), allowed, 1, 0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(allowed)}"


class House:
    """The lanes of one parse of the workflow."""

    def __init__(self, config: dict, basedir: str | os.PathLike, is_main_process: bool) -> None:
        self.config, self.basedir, self.is_main_process = config, Path(basedir), is_main_process
        self._targets: dict[str, Callable[[], list[str]]] = {}
        self._told_lock = False
        if is_main_process and (message := run_lock.clear_stale()):
            self._say(message)

    def shell_prefix(self, deployment: str) -> str:
        """What precedes every rule's command: this clone on PYTHONPATH, this Python on PATH unless conda brings one."""
        prefix = f"export PYTHONPATH={shlex.quote(str(self.basedir))}" + "${PYTHONPATH:+:$PYTHONPATH}; "
        if "conda" not in deployment.lower():
            prefix += f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH; "
        # Snakemake formats the prefix with the command, so braces are doubled.
        return prefix.replace("{", "{{").replace("}", "}}")

    def sources(self, lane: str, sync: Callable[[], Any], load: Callable[[], Any], remedy: str) -> Any:
        """The lane's sources: synced in the main process, unless a run holds the lock; loaded everywhere else.

        A lane that is switched off is not synced. What goes wrong is said in one line, and stops no other lane.
        """
        if not self.is_main_process or lane not in self.config["lanes"]:
            return load()
        if run_lock.is_held():
            if not self._told_lock:
                self._say("a run holds the workflow's lock, so the partitions are shown as that run found them")
            self._told_lock = True
            return load()
        try:
            found = sync()
        except MillraceError as error:
            sys.exit(f"Millrace: {lane}: {error}")
        if found.message:
            self._say(f"{lane}: {found.message}: {remedy}")
        return found

    def promise(self, lane: str, targets: Callable[[], list[str]]) -> None:
        """Register what the lane builds when it is switched on."""
        self._targets[lane] = targets

    def targets(self) -> list[str]:
        """The final files of all lanes that are switched on."""
        return [path for lane in self.config["lanes"] for path in self._targets[lane]()]

    @staticmethod
    def _say(message: str) -> None:
        print(f"Millrace: {message}", file=sys.stderr)
