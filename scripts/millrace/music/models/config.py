"""The sizes of CLEWS: the `model` section of its configuration files, under the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from millrace.common.errors import MillraceError


@dataclass(frozen=True)
class ClewsConfig:
    """`model` of a configuration, nested keys joined by `_`; the defaults are those published for Discogs-VI.

    Lengths are in seconds. cqt_*: what the features must be like. A frame is the mean of `cqt_pool` hops.
    """

    name: str = "clews"
    zdim: int = 1024
    shingling_len: float = 20.0
    shingling_hop: float = 20.0
    cqt_hoplen: float = 0.02
    cqt_noctaves: int = 7
    cqt_nbinsoct: int = 12
    cqt_fscale: float = 1.0
    cqt_pool: int = 5
    frontend_cqtpow: float = 0.5
    frontend_channels: tuple[int, ...] = (128, 256)
    backbone_blocks: tuple[int, ...] = (3, 4, 6, 3)
    backbone_channels: tuple[int, ...] = (256, 512, 1024, 2048)
    backbone_down: tuple[int, ...] = (1, 2, 2, 1)
    loss_redux_pos: str = "bpwr-5"
    loss_redux_neg: str = "min"
    loss_gamma: float = 5.0
    loss_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.name != "clews":
            raise MillraceError(f"name is {self.name!r}", "model", "Set it to clews: others are unknown")
        for field in fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if not isinstance(value, str) and not (numbers and all(number > 0 for number in numbers)):
                raise MillraceError(f"{_key(field.name)} is {value}", "model", "Set it above 0")
        stages = {len(self.backbone_blocks), len(self.backbone_channels), len(self.backbone_down)}
        if len(stages) > 1 or len(self.frontend_channels) != 2:
            problem = "backbone.blocks, channels and down differ in length, or frontend.channels are not two"
            raise MillraceError(problem, "model", "Give one number for each stage")
        odd = [size for size in (self.frontend_channels[1], *self.backbone_channels) if size % 2]
        if odd:
            remedy = "Use even numbers: half of the channels are normalised by batch, half by instance"
            raise MillraceError(f"a stage has {odd[0]} channels", "model", remedy)

    @property
    def bins(self) -> int:
        """Rows of a feature."""
        return self.cqt_noctaves * self.cqt_nbinsoct

    @property
    def frame_seconds(self) -> float:
        """From one frame to the next, 0.1 as published."""
        return self.cqt_hoplen * self.cqt_pool

    @property
    def shingle_frames(self) -> int:
        """Frames of a shingle, 200 as published."""
        return round(self.shingling_len / self.frame_seconds)

    @classmethod
    def from_mapping(cls, model: Mapping[str, Any]) -> ClewsConfig:
        """The `model` section of a configuration; keys that are missing have the defaults.

        Raises MillraceError for unknown keys and for values of another type than the default's.
        """
        if not isinstance(model, Mapping):
            raise MillraceError(f"this is {model!r}", "model", "Give a section with keys")
        defaults = {_key(field.name): field.default for field in fields(cls)}
        values = flat(model)
        if unknown := [key for key in values if key not in defaults]:
            remedy = f"Remove it; known are {', '.join(defaults)}"
            raise MillraceError(f"there is no key {unknown[0]}", "model", remedy)
        checked = {key: typed(value, defaults[key], f"model.{key}") for key, value in values.items()}
        return cls(**{key.replace(".", "_"): value for key, value in checked.items()})

    def as_section(self) -> dict[str, Any]:
        """The `model` section that `from_mapping` reads, nested as published."""
        values = {_key(name): value for name, value in asdict(self).items()}
        return nested({key: list(v) if isinstance(v, tuple) else v for key, v in values.items()})


CONFIGS = {
    "clews-dvi": ClewsConfig(),
    "clews-shs": ClewsConfig(zdim=2048),
    # For the CPU: 0.1 million parameters.
    "clews-tiny": ClewsConfig(
        zdim=64,
        frontend_channels=(8, 16),
        backbone_blocks=(1, 1, 1, 1),
        backbone_channels=(16, 32, 64, 64),
    ),
}


def typed(value: Any, default: Any, key: str) -> Any:
    """The value of `key` with the type of its default; raises MillraceError if it has another."""
    if isinstance(default, tuple | list) and isinstance(value, tuple | list):
        return type(default)(typed(part, default[0], key) for part in value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        kind = "list" if isinstance(default, tuple) else type(default).__name__
        raise MillraceError(f"the value is {value!r}", key, f"Give a {kind}, such as {default!r}")
    return value


def flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    result: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        result |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return result


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of values by dotted key."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return result


def _key(name: str) -> str:
    """The key as the file has it: inner sections are words without `_`."""
    return name.replace("_", ".")


class _Loader(yaml.SafeLoader):
    """YAML as OmegaConf reads it: 2e-4 and 1e-6 are numbers; to PyYAML alone they are text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_value(text: str) -> Any:
    """The value that a text has in YAML; raises yaml.YAMLError for others."""
    return yaml.load(text, _Loader)  # a SafeLoader


def read_yaml(path: str | Path, missing: str = "Name a file that exists") -> dict[str, Any]:
    """A configuration file of CLEWS; raises MillraceError that names the line of a mistake, such as a tab.

    `missing` is the remedy if the file cannot be read.
    """
    try:
        content = parse_value(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MillraceError(f"cannot be read ({error.strerror})", str(path), missing) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        cause = getattr(error, "problem", None) or type(error).__name__
        raise MillraceError(
            f"this is not YAML ({cause})", where, "Indent with spaces, not with tabs"
        ) from error
    if not isinstance(content, dict):
        raise MillraceError("this file holds no sections", str(path), "Give a configuration of CLEWS")
    return content
