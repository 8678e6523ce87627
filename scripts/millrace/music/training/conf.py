"""Configurations as the original trainer takes them: conf=FILE and a.b=c, over the published
defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.music.features.roots import split_name
from millrace.music.models import config
from millrace.music.models.config import ClewsConfig, Key, checked, flat, nested
from millrace.music.training import conf_keys

COMMAND_LINE = "the command line"


class Monitor(NamedTuple):
    """The figure of the valid split that says which model is the best."""

    quantity: str

    @property
    def mode(self) -> str:
        """Whether more or less of it is better."""
        return "max" if self.quantity == "m_MAP" else "min"

    @property
    def name(self) -> str:
        return f"valid/{self.quantity}"

    def cost(self, figures: Mapping[str, float]) -> float:
        """The monitored value, negative if more is better."""
        value = figures[self.name]
        return value if self.mode == "min" else -value


# Augmentations of waveforms, which precomputed features cannot have.
_WAVEFORM = ("length", "polarity", "gain", "noise", "compexp", "reqtime", "clipping")
_SPLIT = re.compile(r"(?:path|data)\.splits\.(\w+)")
_KEYS = {
    key.name: key for key in (*conf_keys.TRAINING, *conf_keys.AUGMENTATIONS, *ClewsConfig.table())
}
_EVALUATION = {key.name: key for key in conf_keys.EVALUATION}
_DEFAULTS = {key.name: key.default for key in conf_keys.TRAINING}
_AUGMENTATIONS = {key.name: key.default for key in conf_keys.AUGMENTATIONS}
AUGMENTATIONS: dict[str, dict[str, Any]] = nested(_AUGMENTATIONS)["augmentations"]


class Conf(dict):
    """Values by dotted key.

    conf = read(["jobname=dvi-h5", "conf=config/dvi-h5.yaml", "fabric.ngpus=2"])
    conf["training.optim.lr"], conf.section("augmentations")
    """

    def section(self, name: str) -> dict[str, Any]:
        """A section as it stands in a file."""
        return nested(self).get(name, {})

    @property
    def model(self) -> ClewsConfig:
        """Its `model` section."""
        keys = {key: value for key, value in self.items() if key.startswith("model.")}
        return ClewsConfig.from_keys(keys, self["conf"])

    @property
    def roots(self) -> dict[str, str]:
        """The folders of features that it names, by kind."""
        paths = {kind: self[f"path.{kind}_root"] for kind in ("h5", "mm")}
        return {kind: path for kind, path in paths.items() if path}


def read(overrides: Sequence[str], conf: str = "") -> Conf:
    """The file of `conf` (or of conf=FILE) with the overrides a.b=c, checked; else the defaults.

    `augmentations` of the file replace the default ones as a whole; `model.name` may be one of
    models.config.CONFIGS, whose sizes are then the defaults. Raises MillraceError for a tab with
    its line, for an unknown key, and for values that no key takes.
    """
    words: dict[str, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise MillraceError(f"{text} is no override", COMMAND_LINE, "Write key=value")
        words[key] = value
    path = words.get("conf") or conf
    where = str(path or COMMAND_LINE)
    content = flat(config.read_yaml(path, "Name a configuration: conf=FILE")) if path else {}
    typed = {name: _parsed(name, text, _KEYS.get(name)) for name, text in words.items()}

    result = Conf(_DEFAULTS)
    if not any(name.startswith("augmentations") for name in content):
        result |= _AUGMENTATIONS
    for values, place in ((content, where), (typed, COMMAND_LINE)):
        result |= checked(_renamed(values), _KEYS.values(), place)
    result["conf"] = str(path)
    result |= result.model.keys()
    _check(result, where)
    return result


def split_options(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of an evaluation among key=value, and the others; redux= is the default."""
    options = {key.name: key.default for key in conf_keys.EVALUATION}
    others = ["fabric.ngpus=1", "fabric.nnodes=1"]
    for text in overrides:
        name, _, value = text.partition("=")
        key = _EVALUATION.get(name)
        if name in ("ngpus", "nnodes"):
            others.append(f"fabric.{text}")
        elif key is None:
            others.append(text)
        elif value not in ("", "null"):
            options[name] = key.typed(_parsed(name, value, key), COMMAND_LINE)
    if not options["checkpoint"]:
        raise MillraceError("no checkpoint is named", COMMAND_LINE, "Write checkpoint=FILE")
    return {**options, "partition": split_name(options["partition"])}, others


def _parsed(name: str, text: str, key: Key | None) -> Any:
    """The value of a text that was typed."""
    if key and isinstance(key.default, str):
        return text
    try:
        return config.parse_value(text)
    except yaml.YAMLError:
        problem = f"{name} has the value {text!r}"
        raise MillraceError(problem, COMMAND_LINE, "Write it as in YAML") from None


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """data.splits is path.splits, splits have several names, and augmentations of waveforms are
    skipped."""
    result: dict[str, Any] = {}
    skipped: dict[str, None] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        kind = name.partition(".")[0]
        split = _SPLIT.fullmatch(key)
        if split:
            result[f"path.splits.{split_name(split[1])}"] = value
        elif section == "augmentations" and kind in _WAVEFORM:
            skipped[kind] = None
        else:
            result[key] = value
    if skipped:
        log.info("augmentations of waveforms are skipped: %s", ", ".join(skipped))
    return result


def _check(conf: Conf, where: str) -> None:
    """Raise MillraceError for values that do not go together."""
    for name in ("augmentations.timestretch.r", "augmentations.pitchtranspose.r"):
        edges = conf.get(name, [0, 0])
        if len(edges) != 2 or edges[0] > edges[1]:
            remedy = "Give the least and the greatest value"
            raise MillraceError(f"{name} is {edges}", where, remedy)

    schedule = conf["training.optim.sched"]
    if not re.fullmatch(r"flat|plateau_[1-9]\d*", schedule):
        remedy = "Set it to plateau_N (evaluations of patience) or flat"
        raise MillraceError(f"training.optim.sched is {schedule}", where, remedy)

    audiolen = conf["data.audiolen"]
    shingle = conf.model.shingling_len
    if audiolen < shingle:
        problem = f"data.audiolen is {audiolen:g} s, less than a shingle"
        raise MillraceError(problem, where, f"Set it to {shingle:g} or more")
