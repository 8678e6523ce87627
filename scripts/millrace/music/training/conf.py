"""Configurations as the original trainer takes them: conf=FILE and a.b=c, over the published
defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import yaml

from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.music.features.roots import split_files, split_name
from millrace.music.features.track import Contract
from millrace.music.models import config
from millrace.music.models.config import ClewsConfig, checked, flat, nested
from millrace.music.training import conf_keys
from millrace.music.training.conf_keys import Key

COMMAND_LINE = "the command line"


class Monitor(NamedTuple):
    """The figure of the valid split that says which model is the best."""

    quantity: str
    mode: str  # min or max

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> Self:
        """That of a configuration."""
        return cls(conf["training.monitor.quantity"], conf["training.monitor.mode"])

    @property
    def name(self) -> str:
        return f"valid/{self.quantity}"

    def cost(self, figures: Mapping[str, float]) -> float:
        """The monitored value, negative if more is better."""
        value = figures[self.name]
        return value if self.mode == "min" else -value


# Augmentations of waveforms, which precomputed features cannot have.
_WAVEFORM = ("length", "polarity", "gain", "noise", "compexp", "reqtime", "clipping")
_DEFAULTS = conf_keys.defaults(conf_keys.TRAINING)
_AUGMENTATIONS = conf_keys.defaults(conf_keys.AUGMENTATIONS)
_EVALUATION = conf_keys.defaults(conf_keys.EVALUATION)
AUGMENTATIONS: dict[str, dict[str, Any]] = nested(_AUGMENTATIONS)["augmentations"]
_KNOWN = {
    **_DEFAULTS,
    **ClewsConfig().keys(),
    **_AUGMENTATIONS,
}


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

    def contract(self) -> Contract:
        """What features must be like for the model."""
        model = self.model
        resample = self["data.resample"]
        return Contract(
            model.bins, model.cqt_hoplen, model.cqt_pool, model.shingling_len, resample=resample
        )


def read(overrides: Sequence[str], conf: str = "") -> Conf:
    """The file of `conf` (or of conf=FILE) with the overrides a.b=c, checked; else the defaults.

    `augmentations` of the file replace the default ones as a whole; `model.name` may be one of
    models.config.CONFIGS, whose sizes are then the defaults. Raises MillraceError for a tab with
    its line, for an unknown key with the nearest one, and for values that no key takes.
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
    typed = {key: _parsed(key, text, _DEFAULTS.get(key)) for key, text in words.items()}

    result = Conf(_DEFAULTS)
    has_augmentations = any(key.partition(".")[0] == "augmentations" for key in content)
    if not has_augmentations:
        result |= _AUGMENTATIONS
    for values, place in ((content, where), (flat(typed), COMMAND_LINE)):
        result |= checked(_renamed(values, place), _KNOWN, place)

    preset = config.CONFIGS.get(result.get("model.name", ""))
    if preset:
        result = Conf({**preset.keys(), **result, "model.name": preset.name})
    result["conf"] = str(path)
    result |= result.model.keys()
    _check(result, where)
    return result


def split_options(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of an evaluation among key=value, and the others; qslen= is the default."""
    options = dict(_EVALUATION)
    others = ["fabric.ngpus=1", "fabric.nnodes=1"]
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in options:
            others.append(f"fabric.{text}" if key in ("ngpus", "nnodes") else text)
        elif value not in ("", "null"):
            default = {key: 0.0 if _EVALUATION[key] is None else _EVALUATION[key]}
            options |= checked({key: _parsed(key, value, default[key])}, default, COMMAND_LINE)
    if not options["checkpoint"]:
        raise MillraceError("no checkpoint is named", COMMAND_LINE, "Write checkpoint=FILE")
    _check_values(options, COMMAND_LINE)
    return {**options, "partition": split_name(options["partition"])}, others


def _parsed(key: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, str):
            return text
        return config.parse_value(text)
    except yaml.YAMLError:
        problem = f"{key} has the value {text!r}"
        raise MillraceError(problem, COMMAND_LINE, "Write it as in YAML") from None


def _renamed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """data.splits is path.splits, splits have several names, a folder stands for the files in it,
    and augmentations of waveforms are skipped."""
    result: dict[str, Any] = {}
    skipped: dict[str, None] = {}
    for key, value in values.items():
        one_split = re.fullmatch(r"(?:path|data)\.splits\.(\w+)", key)
        if one_split:
            result[f"path.splits.{split_name(one_split[1])}"] = value
        elif key in ("path.splits", "data.splits") and isinstance(value, str):
            files = split_files(value)
            if not files:
                problem = f"{key} is {value}, where no file is called train, valid or test"
                raise MillraceError(problem, where, "Name a folder with the files of the splits")
            for name, file in files.items():
                result[f"path.splits.{name}"] = file
        elif _is_of_waveforms(key):
            skipped[key.split(".")[1]] = None
        else:
            result[key] = value
    if skipped:
        log.info("augmentations of waveforms are skipped: %s", ", ".join(skipped))
    return result


def _is_of_waveforms(key: str) -> bool:
    section, _, name = key.partition(".")
    return section == "augmentations" and name.partition(".")[0] in _WAVEFORM


def _check_values(values: Mapping[str, Any], where: str) -> None:
    """Raise MillraceError for a value that its key does not take."""
    for name, value in values.items():
        key = conf_keys.BY_NAME.get(name, Key(name, 0, ""))
        remedy = f"Set it to {key.at_least:g} or more"
        if key.among:
            fits = value in key.among
            remedy = f"Set it to {' or '.join(key.among)}"
        else:
            parts = value if isinstance(value, list) else [value]
            numbers = [part for part in parts if isinstance(part, int | float)]
            fits = all(key.at_least <= number <= key.at_most for number in numbers)
            if key.at_most < math.inf:
                remedy += f", {key.at_most:g} at most"
        if not fits:
            raise MillraceError(f"{name} is {value!r}", where, remedy)


def _check(conf: Conf, where: str) -> None:
    if conf["data.input"] != "cqt":
        problem = f"data.input is {conf['data.input']}: this trainer reads features, not audio"
        remedy = "Make features of your audio (`snakemake music_create_features`, or python -m "
        remedy += "millrace.music.create_features), then set it to cqt"
        raise MillraceError(problem, where, remedy)
    _check_values(conf, where)
    _check_ranges(conf, where)
    _check_monitor(conf["training.monitor.quantity"], conf["training.monitor.mode"], where)

    schedule = conf["training.optim.sched"]
    if not re.fullmatch(r"flat|plateau_[1-9]\d*", schedule):
        remedy = "Set it to plateau_N (evaluations of patience) or flat"
        raise MillraceError(f"training.optim.sched is {schedule}", where, remedy)

    audiolen = conf["data.audiolen"]
    shingle = conf.model.shingling_len
    if audiolen < shingle:
        problem = f"data.audiolen is {audiolen:g} s, less than a shingle"
        raise MillraceError(problem, where, f"Set it to {shingle:g} or more")


def _check_ranges(conf: Conf, where: str) -> None:
    for name in ("augmentations.timestretch.r", "augmentations.pitchtranspose.r"):
        edges = conf.get(name, [0, 0])
        if len(edges) != 2 or edges[0] > edges[1]:
            remedy = "Give the least and the greatest value"
            raise MillraceError(f"{name} is {edges}", where, remedy)


def _check_monitor(quantity: str, mode: str, where: str) -> None:
    best = "max" if quantity == "m_MAP" else "min"
    if mode != best:
        problem = f"training.monitor has quantity {quantity} and mode {mode}"
        remedy = "The best m_MAP is the max, of all others it is the min"
        raise MillraceError(problem, where, remedy)
