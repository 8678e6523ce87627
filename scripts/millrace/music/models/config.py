"""The sizes of CLEWS, the `model` section of its configuration files, under the same names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from millrace.common.errors import MillraceError

CONFIGURATION = "configuration.yaml"  # beside the checkpoints of a run
_LEAST_FRAMES = 7  # of a shingle: what two convolutions of stride 2 leave a frame of
_LARGEST = 2**53  # numbers up to here are the same in YAML, JSON, numpy and torch


def _size(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class ClewsConfig:
    """`model` of a configuration, nested keys joined by `_`; the defaults are those published for
    Discogs-VI.

    Lengths are in seconds. cqt_*: what the features must be like. A frame is the mean of `cqt_pool`
    hops.
    """

    name: str = _size("clews", "clews; clews-dvi, clews-shs or clews-tiny also set the sizes")
    zdim: int = _size(1024, "dimensions of an embedding")
    shingling_len: float = _size(20.0, "seconds of a shingle")
    shingling_hop: float = _size(
        20.0, "seconds from one shingle to the next in training; half in validation"
    )
    cqt_hoplen: float = _size(0.02, "seconds per stored frame, also of tracks that state none")
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
    def from_keys(cls, keys: Mapping[str, Any], where: str = "") -> ClewsConfig:
        """Of a configuration's keys `model.…`; those that are missing have the defaults.

        Raises MillraceError as `checked` does, and for sizes of which no model can be made.
        """
        values = checked(keys, cls().keys(), where).items()
        names = {key.partition(".")[2].replace(".", "_"): value for key, value in values}
        sizes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in names.items()
        }
        config = cls(**sizes)
        for problem, remedy in config._problems():
            raise MillraceError(problem, where, remedy)
        return config

    def keys(self) -> dict[str, Any]:
        """What `from_keys` reads."""
        values = {f"model.{name.replace('_', '.')}": value for name, value in asdict(self).items()}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What each of these keys means."""
        return {
            f"model.{each.name.replace('_', '.')}": each.metadata["meaning"] for each in fields(cls)
        }

    def _problems(self) -> Iterator[tuple[str, str]]:
        """What speaks against these sizes, and what to do about it; one may rest on those before
        it."""
        if self.name != "clews":
            yield f"model.name is {self.name!r}", "Set it to clews: others are unknown"
        for name, value in asdict(self).items():
            numbers = value if isinstance(value, tuple) else (value,)
            if not isinstance(value, str) and not (
                numbers and all(number > 0 for number in numbers)
            ):
                yield f"model.{name.replace('_', '.')} is {value}", "Set it above 0"
        if (
            self.shingle_frames < _LEAST_FRAMES
            or round(self.shingling_hop / self.frame_seconds) < 2
        ):
            problem = (
                f"model.shingling.len or hop is too short in frames of {self.frame_seconds:g} s"
            )
            yield problem, f"Give {_LEAST_FRAMES} frames or more, and a hop of 2"
        stages = {len(self.backbone_blocks), len(self.backbone_channels), len(self.backbone_down)}
        if len(stages) > 1 or len(self.frontend_channels) != 2:
            problem = (
                "backbone.blocks, channels and down differ in length, or frontend.channels are"
                " not two"
            )
            yield problem, "Give one number for each stage"
        if odd := [
            size for size in (self.frontend_channels[1], *self.backbone_channels) if size % 2
        ]:
            remedy = (
                "Use even numbers: half of the channels are normalised by batch, half by instance"
            )
            yield f"a stage of the model has {odd[0]} channels", remedy


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


def checked(
    values: Mapping[str, Any], defaults: Mapping[str, Any], where: str = ""
) -> dict[str, Any]:
    """Values by dotted key, each with the type of its default; null is the empty one, of a section
    nothing.

    Raises MillraceError for a key without a default, with the nearest one, and for a value of
    another type.
    """
    result = {}
    for key, value in values.items():
        if key in defaults:
            place = f"{where}: {key}" if where else key
            result[key] = _typed(value, defaults[key], place)
        elif value not in (None, {}):
            inside = [name for name in defaults if name.startswith(f"{key}.")]
            if inside:
                raise MillraceError(f"{key} is {value!r}", where, f"Give keys, such as {inside[0]}")
            near = difflib.get_close_matches(key, defaults, 1, 0.75)
            near += [
                name for name in sorted(defaults) if name.endswith(f".{key.rpartition('.')[2]}")
            ]
            near += difflib.get_close_matches(key, defaults, 1, 0)
            raise MillraceError(
                f"there is no key {key}", where, f"The nearest known one is {near[0]}"
            )
    return result


def _typed(value: Any, default: Any, where: str) -> Any:
    if not default and value in (None, "null"):
        return default
    if isinstance(default, str) and type(value) in (int, float):
        return str(value)
    if isinstance(default, list) and isinstance(value, list):
        return [_typed(part, default[0], where) for part in value]
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    # NaN is not below anything.
    fits = type(value) is type(default) and (
        isinstance(value, str | list) or abs(value) <= _LARGEST
    )
    if not fits:
        kind = type(default).__name__
        raise MillraceError(f"the value is {value!r}", where, f"Give a {kind}, such as {default!r}")
    return value


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
    try:
        content = parse_value(Path(path).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            flat(content)  # not within itself
    except OSError as error:
        raise MillraceError(f"cannot be read ({error.strerror})", str(path), missing) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        cause = getattr(error, "problem", None) or type(error).__name__
        remedy = (
            "Indent with spaces, not with tabs"
            if "\\t" in cause
            else "Write sections of keys and values"
        )
        raise MillraceError(f"this is not YAML ({cause})", where, remedy) from error
    if not isinstance(content, dict):
        raise MillraceError(
            "this file holds no sections", str(path), "Give a configuration of CLEWS"
        )
    return content
