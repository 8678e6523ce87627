"""Settings as dataclass fields that say what they mean and take: flags (with underscores too where
the original scripts have them), checks and schema come from them."""

from __future__ import annotations

import argparse
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, field, fields
from functools import partial
from typing import Any

from millrace.common.errors import MillraceError

# By what a field says its type is, a text: modules of settings put off annotations.
_KINDS = {"int": int, "float": float, "str": str}
_JSON = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
}
# What limits are called in JSON Schema, and how a value is compared with them.
_LIMITS = {
    "at_least": ("minimum", operator.ge),
    "above": ("exclusiveMinimum", operator.gt),
    "at_most": ("maximum", operator.le),
    "below": ("exclusiveMaximum", operator.lt),
}
# Settings whose flags the original scripts have, with underscores; others have hyphens only.
ORIGINAL_NAMES = {
    "max_steps",
    "lr_scheduler_type",
    "warmup_ratio",
    "min_bs",
    "gradient_checkpointing",
    "log_steps",
    "save_steps",
    "save_total_limit",
    "eval_steps",
    "num_workers",
    "prefetch_factor",
    "max_open_tars",
    "start_bs",
    "max_memory_gb",
}


def setting(
    default: Any,
    meaning: str,
    among: Sequence[str] = (),
    in_config: bool = True,
    of_loader: bool = False,
    pattern: str = "",
    **limits: float,
) -> Any:
    """A dataclass field of type int, float or str. `in_config`: whether it is a key of the config
    too; `of_loader`: whether the batches of a run depend on it; `pattern`: of text in the config.

    `limits` of the value are at_least, above, at_most and below.
    """
    metadata = {
        "meaning": meaning,
        "limits": limits,
        "among": tuple(among),
        "in_config": in_config,
        "of_loader": of_loader,
        "pattern": pattern,
    }
    return field(default=default, metadata=metadata)


loader_setting = partial(setting, of_loader=True)


def _settings(kind: type) -> list[Field]:
    return [item for item in fields(kind) if "meaning" in item.metadata]


def of_loader(kind: type) -> set[str]:
    """The names of the settings that a run's batches depend on."""
    return {item.name for item in _settings(kind) if item.metadata["of_loader"]}


def check(settings: Any, where: str) -> None:
    """Raise MillraceError for a value outside of what its field takes, or that is not finite."""
    for item in _settings(type(settings)):
        value = getattr(settings, item.name)
        among = item.metadata["among"]
        limits = item.metadata["limits"]
        if among:
            fits = value in among
            words = f"one of {', '.join(among)}"
        else:
            compared = (_LIMITS[name][1](value, limit) for name, limit in limits.items())
            fits = math.isfinite(value) and all(compared)
            words = " and ".join(
                f"{name.replace('_', ' ')} {limit:g}" for name, limit in limits.items()
            )
        if not fits:
            raise MillraceError(f"{item.name} must be {words or 'finite'}, not {value!r}", where)


def add_arguments(
    parser: Any,
    kind: type,
    names: Collection[str] = (),
    also: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add a flag for every setting of the dataclass `kind`, or for those in `names`; `also` holds
    further spellings of some."""
    for item in _settings(kind):
        if not names or item.name in names:
            original = [f"--{item.name}"] if item.name in ORIGINAL_NAMES else []
            spellings = [
                f"--{item.name.replace('_', '-')}",
                *original,
                *(also or {}).get(item.name, ()),
            ]
            meaning = item.metadata["meaning"]
            if item.type == "bool":
                parser.add_argument(*spellings, action="store_true", help=meaning)
                continue
            parser.add_argument(
                *spellings,
                type=_KINDS[str(item.type)],
                default=item.default,
                choices=item.metadata["among"] or None,
                help=meaning,
            )


def from_args(kind: type, args: argparse.Namespace, **changes: Any) -> Any:
    """The dataclass `kind` with what flags of its fields' names gave, and `changes`."""
    chosen = {
        item.name: getattr(args, item.name) for item in fields(kind) if hasattr(args, item.name)
    }
    return kind(**{**chosen, **changes})


def parsed(kind: type, given: Mapping[str, Any]) -> Any:
    """The dataclass `kind` of values by field's name, text where a command line gave them."""
    types = {item.name: _KINDS.get(str(item.type), lambda value: value) for item in fields(kind)}
    if unknown := sorted(given.keys() - types.keys()):
        raise MillraceError(
            f"there is no setting {unknown[0]}", remedy=f"Known are {', '.join(types)}"
        )
    return kind(**{name: types[name](value) for name, value in given.items()})


def schema_of(kind: type) -> dict[str, dict[str, Any]]:
    """JSON Schema of the settings that are keys of the config, by name."""
    result = {}
    for item in _settings(kind):
        among = item.metadata["among"]
        limits = item.metadata["limits"]
        if item.metadata["in_config"]:
            bounds = {_LIMITS[name][0]: limit for name, limit in limits.items()}
            if pattern := item.metadata["pattern"]:
                bounds["pattern"] = f"^({pattern})$"
            if among:
                takes: dict[str, Any] = {"enum": list(among)}
            else:
                takes = {"type": _JSON[str(item.type)], **bounds}
            result[item.name] = {
                **takes,
                "default": item.default,
                "description": item.metadata["meaning"],
            }
    return result
