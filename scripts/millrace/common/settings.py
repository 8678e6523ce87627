"""Settings as dataclass fields that say what they mean and take: flags, checks and schema come from them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Sequence
from dataclasses import Field, field, fields
from typing import Any

from millrace.common.errors import MillraceError

_KINDS = {"int": int, "float": float, "str": str}
_JSON = {"int": "integer", "float": "number", "str": "string"}
_WORDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
# Flags that the original scripts have, with underscores; all others have hyphens only.
ORIGINAL_NAMES = frozenset(
    (
        *("model_path", "bucket_dir", "output_dir", "max_steps", "lr_scheduler_type", "warmup_ratio"),
        *("gradient_checkpointing", "log_steps", "save_steps", "save_total_limit", "eval_steps"),
        *("num_workers", "prefetch_factor", "max_open_tars", "profile_steps"),
        *("start_bs", "min_bs", "max_memory_gb"),
    )
)


def setting(
    default: Any,
    meaning: str,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    among: Sequence[str] = (),
    in_config: bool = True,
) -> Any:
    """A dataclass field of type int, float or str. `in_config`: whether it is a key of the config too."""
    limits = dict(zip(_WORDS, (at_least, above, at_most, below), strict=True))
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    metadata = {"meaning": meaning, "limits": limits, "among": tuple(among), "in_config": in_config}
    return field(default=default, metadata=metadata)


def _settings(kind: type) -> list[Field]:
    return [item for item in fields(kind) if "meaning" in item.metadata]


def check(settings: Any, where: str) -> None:
    """Raise MillraceError for a value outside of what its field takes, or that is not finite."""
    for item in _settings(type(settings)):
        value, limits, among = getattr(settings, item.name), item.metadata["limits"], item.metadata["among"]
        if among:
            fits, words = value in among, f"one of {', '.join(among)}"
        else:
            fits = math.isfinite(value) and all(
                {
                    "at least": value >= limit,
                    "above": value > limit,
                    "at most": value <= limit,
                    "below": value < limit,
                }[_WORDS[name]]
                for name, limit in limits.items()
            )
            words = " and ".join(f"{_WORDS[name]} {limit:g}" for name, limit in limits.items()) or "finite"
        if not fits:
            raise MillraceError(f"{item.name} must be {words}, not {value!r}", where=where)


def flag_names(name: str) -> list[str]:
    """The flag of a setting, with hyphens, and the spelling of the original scripts if they have it."""
    flag = f"--{name}"
    return [flag.replace("_", "-"), *([flag] if "_" in name and name in ORIGINAL_NAMES else [])]


def add_arguments(parser: Any, kind: type, names: Collection[str] = ()) -> None:
    """Add a flag for every setting of the dataclass `kind`, or for those in `names`."""
    for item in _settings(kind):
        if not names or item.name in names:
            parser.add_argument(
                *flag_names(item.name),
                type=_KINDS[item.type],
                default=item.default,
                choices=item.metadata["among"] or None,
                help=item.metadata["meaning"],
            )


def from_args(kind: type, args: argparse.Namespace, **changes: Any) -> Any:
    """The dataclass `kind` with what flags of its fields' names gave, and `changes`."""
    chosen = {item.name: getattr(args, item.name) for item in fields(kind) if hasattr(args, item.name)}
    return kind(**{**chosen, **changes})


def schema_of(kind: type) -> dict[str, dict[str, Any]]:
    """JSON Schema of the settings that are keys of the config, by name."""
    result = {}
    for item in _settings(kind):
        meta = item.metadata
        if meta["in_config"]:
            takes = (
                {"enum": list(meta["among"])}
                if meta["among"]
                else {"type": _JSON[item.type], **meta["limits"]}
            )
            result[item.name] = {**takes, "default": item.default, "description": meta["meaning"]}
    return result
