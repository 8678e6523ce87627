"""The config, checked against the schemas of the lanes before anything runs: defaults, numbers that
come as text, keys that are unknown or stand twice."""

from __future__ import annotations

import json
import math
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from millrace.common import settings
from millrace.common.errors import MillraceError

# Lanes in the order of the data: the name of rule file, script folder, config section and results
# folder.
LANE_NAMES = ("speech", "asr", "music", "image", "audit")
# Those that are built if the config has no `lanes`.
DEFAULT_LANES = ["speech", "asr"]
# Numbers and truth values that arrive as text: YAML 1.1 reads 2e-5, without a point, as such, and
# Snakemake hands all over so that is nested in --config 'speech={max_cer: 0.2}'.
_JSON_SCALAR = re.compile(
    r"true|false|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", re.IGNORECASE
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = {"number", "integer", "boolean"}  # what such a text may stand for
# Words of JSON Schema, as messages say them.
_KINDS = {
    "object": "keys with values (`key: value`, with a space)",
    "array": "a list",
    "string": "text (yes, no, on and off in quotes)",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def validate_config(
    config: dict,
    schemas: str | os.PathLike,
    files: Iterable[str | os.PathLike] = (),
    check: bool = True,
) -> dict:
    """Check the config against the closed schemas and fill in defaults; return a new dict.

    `files` are those it was read from. Exits with one line per problem, which names the key, when
    something is wrong: a traceback out of a Snakefile helps nobody. Without `check` defaults are
    filled in only: the process of a cluster job reads what was checked already.
    """
    try:
        if repeated := [line for path in files if check for line in _duplicate_keys(Path(path))]:
            raise MillraceError("\n".join(repeated))
        return checked_config(config, schemas, check)
    except MillraceError as error:
        # WorkflowError would print the Snakefile's line instead of the config's key.
        sys.exit(f"Millrace: the config is not valid.\n{error}")


def check_syntax(path: str | os.PathLike) -> None:
    """Exit with one line that names file and line if a config file has no keys, or is no YAML.

    Snakemake, which reads it next, would not say where. A file that is missing is left to it.
    """
    where = f"{path}"
    problem = "the file has no keys at its top"
    try:
        with open(path, "rb") as handle:
            root = yaml.compose(handle, Loader=yaml.SafeLoader)
        if isinstance(root, yaml.MappingNode):
            return
    except FileNotFoundError:
        return
    except yaml.MarkedYAMLError as error:
        problem = f"the file is not valid YAML ({error.problem})"
        if error.problem_mark is not None:
            where += f", line {error.problem_mark.line + 1}"
    except (OSError, yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
    sys.exit(f"Millrace: {where}: {problem}. Write keys as `lanes: [speech]`, one a line")


def checked_config(config: dict, schemas: str | os.PathLike, check: bool = True) -> dict:
    """As validate_config, but of the values only, and raises MillraceError."""
    known = {lane: load_schema(Path(schemas) / f"{lane}.schema.yaml") for lane in LANE_NAMES}
    problems = [
        f"  {key}: no such section; keys stand below their lane, as in `speech: {{max_cer: 0.2}}`"
        for key in config
        if key not in ("lanes", *LANE_NAMES)
    ]
    wanted = config.get("lanes", DEFAULT_LANES)
    if not isinstance(wanted, list) or any(lane not in LANE_NAMES for lane in wanted):
        problems.append(f"  lanes: must be a list of {', '.join(LANE_NAMES)}, not {wanted!r}")
    result: dict[str, Any] = {"lanes": wanted}
    for lane, schema in known.items():
        section = {} if config.get(lane) is None else config[lane]
        if isinstance(section, dict):
            section = _filled(section, schema, schema)
        result[lane] = section
        if not check:
            continue
        own = _problems(section, schema, lane)
        problems += own or _told(section, schema.get("checkedBy"), lane)
        if not problems and lane in wanted:
            problems += _told(section, schema.get("checkedOutsideBy"), lane)
    if problems:
        raise MillraceError("\n".join(problems))
    return result


def load_schema(path: Path) -> dict:
    """A lane's schema. `settingsOf` names dataclasses whose settings are properties of its object.

    `checkedBy` names a function of the lane's section that yields what is wrong between keys,
    `checkedOutsideBy` one that yields what is wrong outside of the config, if the lane is built.
    """
    with open(path, encoding="utf-8") as handle:
        schema = yaml.load(handle, Loader=_LOADER)
    parts = [*schema["properties"].values(), *schema.get("$defs", {}).values()]
    for part in parts:
        for name in part.pop("settingsOf", []):
            part["properties"] |= settings.schema_of(pkgutil.resolve_name(name))
    return schema


def _filled(value: Any, rule: dict, schema: dict, fills: bool = True) -> Any:
    """`value` with defaults if it `fills`, and with text read as JSON wherever `rule` wants the
    number or truth value that it is."""
    if "$ref" in rule:
        # Shared by what says only in what it differs: `training`, and each run.
        fills = False
        rule = schema["$defs"][rule["$ref"].rpartition("/")[2]]
    if isinstance(value, dict):
        rules = rule.get("properties", {})
        others = rule.get("additionalProperties") or {}
        # A run or a country may be called 1.
        named = {str(key): child for key, child in value.items()}
        if fills:
            for key, child in rules.items():
                if "default" in child:
                    named.setdefault(key, child["default"])
        return {
            key: _filled(child, rules.get(key, others), schema, fills)
            for key, child in named.items()
        }
    if isinstance(value, list):
        items: dict = next(
            (part["items"] for part in (rule, *rule.get("oneOf", [])) if "items" in part), {}
        )
        return [_filled(child, items, schema, fills) for child in value]
    wanted = rule.get("type", [])
    kinds = [wanted] if isinstance(wanted, str) else wanted
    is_scalar = not _SCALARS.isdisjoint(kinds)
    if isinstance(value, str) and is_scalar and _JSON_SCALAR.fullmatch(value):
        return json.loads(value.lower())
    return value


def _duplicate_keys(path: Path) -> list[str]:
    """A line for every duplicate key: YAML keeps the last one, and drops whole sections."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, ValueError, yaml.YAMLError):
        return []  # Snakemake has read it, so it is of a kind that is not ours to judge.
    problems = []
    waiting = [("", root)]
    while waiting:
        above, node = waiting.pop(0)
        lines: dict[str, int] = {}
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            name = f"{above}{key.value}"
            line = key.start_mark.line + 1
            if name in lines:
                problems.append(f"  {path}: duplicate key {name} (lines {lines[name]} and {line})")
            lines[name] = line
            waiting.append((f"{name}.", value))
    return problems


def _told(section: dict, function: str | None, lane: str) -> list[str]:
    """What a function that a schema names says of its lane's section."""
    if function is None:
        return []
    return [f"  {lane}.{line}" for line in pkgutil.resolve_name(function)(section)]


def _problems(section: Any, schema: dict, lane: str) -> list[str]:
    problems = []
    for error in _validator(schema).iter_errors(section):
        key = ".".join([lane, *map(str, error.absolute_path)])
        if error.validator == "additionalProperties":
            unknown = set(map(str, error.instance)) - set(error.schema.get("properties", {}))
            problems += [
                f"  {key}.{name}: no such key; docs/configuration.md has all of them"
                for name in unknown
            ]
            continue
        meaning = error.schema.get("description", "")
        problems.append(f"  {key}: {_message(error)}{f' ({meaning})' if meaning else ''}")
    return sorted(problems)


def _message(error: Any) -> str:
    """What is wrong with a value."""
    wanted = error.validator_value
    value = error.instance
    if value is None:
        return "has no value; give it one, or delete the line for the default"
    if error.validator == "oneOf":
        return f"cannot be {value!r}"
    if error.validator == "required":
        return f"{', '.join(name for name in wanted if name not in value)} is missing"
    if error.validator == "pattern" and "description" in error.schema:
        return f"{_shown(value)} is not a name for it"
    if error.validator == "type":
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return f"must be {' or '.join(_KINDS[kind] for kind in kinds)}, not {value!r}"
    return error.message


def _shown(value: Any) -> str:
    """The value as written; not what may hold a token or a password, as errors end in logs."""
    if re.search(r"hf_\w|://[^/]*@", str(value)):
        return "what stands there (not shown, as it may hold a token)"
    return repr(value)


def _validator(schema: dict) -> Any:
    """JSON Schema, but numbers are finite, and whole ones have no point."""
    from jsonschema import Draft4Validator, Draft202012Validator, validators

    kinds = Draft4Validator.TYPE_CHECKER  # for which 1.0 is no whole number

    def is_number(_: Any, value: Any) -> bool:
        return kinds.is_type(value, "number") and math.isfinite(value)

    types = kinds.redefine("number", is_number)
    return validators.extend(Draft202012Validator, type_checker=types)(schema)
