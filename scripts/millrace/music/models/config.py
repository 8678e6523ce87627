"""The sizes of CLEWS (the `model` section), and how configuration files are read: YAML as OmegaConf
has it, types and ranges of values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from millrace.common.errors import MillraceError

CONFIGURATION = "configuration.yaml"  # beside the checkpoints of a run
LARGEST = 2**53  # numbers up to here are the same in YAML, JSON, numpy and torch
_LEAST_FRAMES = 7  # of a shingle: what two convolutions of stride 2 leave a frame of


@dataclass(frozen=True)
class Key:
    """A key, its default, whose type a value must have, what it means, and which values it takes.

    A default of "" or 0 may be null in a file.
    """

    name: str
    default: Any
    meaning: str
    at_least: float = 0
    at_most: float = LARGEST
    among: tuple[str, ...] = ()

    def typed(self, value: Any, where: str) -> Any:
        """The value, or the parts of a list. Raises MillraceError for what is not taken."""
        if value in (None, "null") and not self.default:
            return self.default
        if isinstance(self.default, list) and isinstance(value, list):
            return [self._part(part, type(self.default[0]), where) for part in value]
        return self._part(value, type(self.default), where)

    def _part(self, value: Any, kind: type, where: str) -> Any:
        if kind is str and type(value) in (int, float):
            value = str(value)
        if kind is float and type(value) is int:
            value = float(value)
        problem = f"{self.name} is {value!r}"
        if type(value) is not kind:
            remedy = f"Give a {kind.__name__}, such as {self.default!r}"
            raise MillraceError(problem, where, remedy)
        if self.among and value not in self.among:
            raise MillraceError(problem, where, f"Set it to {' or '.join(self.among)}")
        # NaN is in no range.
        if isinstance(value, int | float) and not self.at_least <= value <= self.at_most:
            most = f", {self.at_most:g} at most" if self.at_most < LARGEST else ""
            remedy = f"Set it to {self.at_least:g} or more{most}"
            raise MillraceError(problem, where, remedy)
        return value


def checked(values: Mapping[str, Any], keys: Iterable[Key], where: str = "") -> dict[str, Any]:
    """Values by dotted key, each with the type of its default; an empty section says nothing.

    Raises MillraceError for an unknown key, and for a value that its key does not take.
    """
    known = {key.name: key for key in keys}
    result = {}
    for name, value in values.items():
        if name in known:
            result[name] = known[name].typed(value, where)
        elif value not in (None, {}):
            remedy = "docs/configuration.md lists the keys"
            raise MillraceError(f"there is no key {name}", where, remedy)
    return result


def _size(default: Any, meaning: str, among: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"meaning": meaning, "among": among})


@dataclass(frozen=True)
class ClewsConfig:
    """`model` of a configuration, nested keys joined by `_`; the defaults are those published for
    Discogs-VI.

    Lengths are in seconds. cqt_*: what the features must be like. A frame is the mean of `cqt_pool`
    hops.
    """

    name: str = _size("clews", "clews; clews-tiny also sets the sizes", ("clews", "clews-tiny"))
    zdim: int = _size(1024, "dimensions of an embedding")
    shingling_len: float = _size(20.0, "seconds of a shingle")
    shingling_hop: float = _size(
        20.0, "seconds from one shingle to the next in training; half in validation"
    )
    cqt_hoplen: float = _size(0.02, "seconds per stored frame")
    cqt_noctaves: int = _size(7, "octaves")
    cqt_nbinsoct: int = _size(12, "bins of an octave")
    cqt_fscale: float = _size(1.0, "not read: of the original's transform")
    cqt_pool: int = _size(5, "stored frames that are averaged to one of the model")
    frontend_cqtpow: float = _size(0.5, "power that magnitudes are raised to")
    frontend_channels: tuple[int, ...] = _size(
        (128, 256), "channels of the two convolutions of the front end"
    )
    backbone_blocks: tuple[int, ...] = _size((3, 4, 6, 3), "residual blocks of each stage")
    backbone_channels: tuple[int, ...] = _size((256, 512, 1024, 2048), "channels of each stage")
    backbone_down: tuple[int, ...] = _size((1, 2, 2, 1), "stride of each stage")
    loss_redux_pos: str = _size(
        "bpwr-5", "how shingles' distances become one between versions of a clique"
    )
    loss_redux_neg: str = _size("min", "likewise between other tracks")
    loss_gamma: float = _size(5.0, "factor of distances between other tracks")
    loss_epsilon: float = _size(
        1e-6, "weight below which distances between other tracks do not count"
    )

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
    def table(cls) -> list[Key]:
        """Its keys, `model.…`."""
        result = []
        for each in fields(cls):
            default = list(each.default) if isinstance(each.default, tuple) else each.default
            about = each.metadata
            name = f"model.{each.name.replace('_', '.')}"
            result.append(Key(name, default, about["meaning"], among=about["among"]))
        return result

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any], where: str = "") -> ClewsConfig:
        """Of a configuration's keys `model.…`; those that are missing have the defaults.

        Raises MillraceError as `checked` does, and for sizes of which no model can be made.
        """
        sizes: dict[str, Any] = {}
        for key, value in checked(keys, cls.table(), where).items():
            name = key.removeprefix("model.").replace(".", "_")
            sizes[name] = tuple(value) if isinstance(value, list) else value
        base = CONFIGS[sizes.pop("name", "clews")]
        config = replace(base, **sizes)
        config._check(where)
        return config

    def keys(self) -> dict[str, Any]:
        """What `from_keys` reads."""
        values = {f"model.{name.replace('_', '.')}": value for name, value in asdict(self).items()}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    def _check(self, where: str) -> None:
        """Raise MillraceError for sizes of which no model can be made."""
        for key, value in self.keys().items():
            numbers = value if isinstance(value, list) else [value]
            if not isinstance(value, str) and (not numbers or min(numbers) <= 0):
                raise MillraceError(f"{key} is {value}", where, "Set it above 0")

        hop = round(self.shingling_hop / self.frame_seconds)
        if self.shingle_frames < _LEAST_FRAMES or hop < 2:
            frame = f"frames of {self.frame_seconds:g} s"
            problem = f"model.shingling.len or hop is too short in {frame}"
            remedy = f"Give {_LEAST_FRAMES} frames or more, and a hop of 2"
            raise MillraceError(problem, where, remedy)

        stages = {len(self.backbone_blocks), len(self.backbone_channels), len(self.backbone_down)}
        channels = (*self.frontend_channels[1:], *self.backbone_channels)
        is_even = all(number % 2 == 0 for number in channels)
        if len(stages) > 1 or len(self.frontend_channels) != 2 or not is_even:
            problem = "model.frontend.channels or model.backbone is no network"
            remedy = "Give two channels in front, a number for each stage, channels that are even"
            raise MillraceError(problem, where, remedy)


CONFIGS = {
    "clews": ClewsConfig(),
    # For the CPU: 0.1 million parameters.
    "clews-tiny": ClewsConfig(
        zdim=64,
        frontend_channels=(8, 16),
        backbone_blocks=(1, 1, 1, 1),
        backbone_channels=(16, 32, 64, 64),
    ),
}


def flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    result: dict[str, Any] = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        result |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
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


class _Loader(yaml.SafeLoader):
    """YAML as OmegaConf reads it: 2e-4 and 1e-6 are numbers, to PyYAML alone they are text; of a
    key that stands there twice PyYAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := [key for key, _ in node.value if names.count(key.value) > 1]:
            problem = f"the key {repeated[-1].value} is there twice"
            mark = repeated[-1].start_mark
            raise yaml.constructor.ConstructorError(None, None, problem, mark)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # A few lines of them can stand for more values than memory holds.
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases are not read", problem_mark=mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_value(text: str) -> Any:
    """The value that a text has in YAML; raises yaml.YAMLError for others."""
    return yaml.load(text, _Loader)  # a SafeLoader


def read_yaml(path: str | Path, missing: str = "Name a file that exists") -> dict[str, Any]:
    """A configuration file of CLEWS; raises MillraceError that names the line of a mistake, such as
    a tab.

    `missing` is the remedy if the file cannot be read.
    """
    where = str(path)
    remedy = "Write sections of keys and values, indented with spaces"
    try:
        content = parse_value(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MillraceError(f"cannot be read ({error.strerror})", where, missing) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        if mark:
            where = f"{path}:{mark.line + 1}"
        cause = getattr(error, "problem", None) or type(error).__name__
        raise MillraceError(f"this is not YAML ({cause})", where, remedy) from error
    if not isinstance(content, dict):
        raise MillraceError("this file holds no sections", where, remedy)
    return content
