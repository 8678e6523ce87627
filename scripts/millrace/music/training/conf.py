"""Configurations as the original trainer takes them: conf=FILE and a.b=c, over the published defaults."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from millrace.common.errors import MillraceError
from millrace.music.features.roots import split_files, split_name
from millrace.music.features.track import Contract
from millrace.music.models.config import CONFIGS, ClewsConfig, flat, nested, parse_value, read_yaml, typed

# Augmentations of waveforms, which precomputed features cannot have.
WAVEFORM_KEYS = ("length", "polarity", "gain", "noise", "compexp", "reqtime", "clipping")
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "specaugment": {"p": 0.1, "n": 1, "full": True, "f_pc": 0.15, "t_pc": 0.15},
    "timestretch": {"p": 0.1, "r": [0.6, 1.8], "pad_mode": "repeat", "cut_mode": "random"},
    "pitchtranspose": {"p": 0.1, "r": [-12, 12]},
}
# Of the published configuration for Discogs-VI. Empty text and 0 where the file may say null.
_DEFAULTS: dict[str, Any] = {
    **{"jobname": "", "conf": "", "seed": 43, "checkpoint": "", "limit_batches": 0},
    **{f"path.{name}": "" for name in ("h5_root", "mm_root", "jsonl", "index", "audio", "meta")},
    **{f"path.splits.{name}": "" for name in ("train", "valid", "test")},
    **{"path.logs": "logs", "path.cache": "cache"},
    **{"fabric.nnodes": 1, "fabric.ngpus": 1, "fabric.precision": "32", "fabric.accelerator": "auto"},
    **{"data.input": "cqt", "data.nworkers": 16, "data.prefetch_factor": 4, "data.samplerate": 16000},
    **{"data.persistent_workers": True, "data.pin_memory": True, "data.mp_context": "spawn"},
    **{"data.audiolen": 150.0, "data.maxlen": 0.0, "data.pad_mode": "repeat", "data.n_per_class": 4},
    **{"data.p_samesong": 0.0, "data.prefer": "h5", "data.on_leak": "error", "data.resample": False},
    **{"data.max_open_files": 16, "data.max_missing_fraction": 0.01},
    **{"training.batchsize": 25, "training.numepochs": 1000, "training.save_freq": 0},
    **{"training.optim.name": "adam", "training.optim.lr": 2e-4, "training.optim.wd": 0.0},
    **{"training.optim.sched": "plateau_10", "training.optim.min_lr": 1e-6},
    **{"training.monitor.quantity": "m_COMP", "training.monitor.mode": "min"},
}
_KNOWN = {**_DEFAULTS, **flat({"model": ClewsConfig().as_section(), "augmentations": AUGMENTATIONS})}
_CHOICES = {
    "fabric.precision": ("32", "32-true", "16-mixed", "bf16-mixed", "bf16-true"),
    "fabric.accelerator": ("auto", "cpu", "cuda"),
    "data.mp_context": ("spawn", "fork", "forkserver"),
    "data.pad_mode": ("repeat", "zeros"),
    "data.prefer": ("h5", "mm"),
    "data.on_leak": ("error", "drop"),
    "training.optim.name": ("adam", "adamw"),
    "training.monitor.quantity": ("m_COMP", "m_MAP", "m_MR1", "m_ARP", "l_main"),
    "training.monitor.mode": ("min", "max"),
    "augmentations.timestretch.pad_mode": ("repeat", "zeros"),
    "augmentations.timestretch.cut_mode": ("start", "end", "random"),
}
_AT_LEAST = {"data.n_per_class": 2, "training.batchsize": 2, "training.numepochs": 1, "fabric.nnodes": 1}
_AT_LEAST |= {"fabric.ngpus": 1, "data.prefetch_factor": 1, "data.max_open_files": 1}
_AT_LEAST |= {"augmentations.specaugment.n": 1}
_SHARES = {f"augmentations.{name}.p" for name in AUGMENTATIONS}
_SHARES |= {f"augmentations.specaugment.{name}" for name in ("f_pc", "t_pc")}
# Of an evaluation: seconds of tracks (maxlen), and of shingles, where 0 is the whole track. Without qslen or
# cslen shingles are those of the model; without redux the reduction is that of the loss. limit_num: tracks.
_EVALUATION = {"checkpoint": "", "partition": "test", "redux": "", "maxlen": 600.0, "limit_num": 0}
_EVALUATION |= {"qslen": None, "qshop": 5.0, "cslen": None, "cshop": 5.0}


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
        """Its `model` section; `name` may be one of models.config.CONFIGS, whose sizes are then the defaults.

        Raises MillraceError for a value of another type.
        """
        own = {key[6:]: value for key, value in self.items() if key.startswith("model.")}
        if preset := CONFIGS.get(own.get("name", "")):
            own = {**flat(preset.as_section()), **own, "name": preset.name}
        return ClewsConfig.from_mapping(own)

    def contract(self) -> Contract:
        """What features must be like for the model."""
        model, resample = self.model, self["data.resample"]
        return Contract(model.bins, model.cqt_hoplen, model.cqt_pool, model.shingling_len, resample=resample)


def read(overrides: Sequence[str], conf: str = "") -> Conf:
    """The file of `conf` (or of conf=FILE) with the overrides a.b=c, checked; else the defaults.

    `augmentations` of the file replace the default ones as a whole. Raises MillraceError for a tab with its
    line, for an unknown key with the nearest one, and for values that no key takes.
    """
    words: dict[str, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise MillraceError(f"{text} is no override", "the command line", "Write key=value")
        words[_known_name(key)] = value
    path = words.get("conf") or conf
    content = read_yaml(path, "Name a configuration: conf=FILE") if path else {}
    for name in ("path", "data"):
        # A folder of splits stands for the files in it.
        if isinstance(section := content.get(name), dict) and isinstance(section.get("splits"), str):
            section["splits"] = split_files(section["splits"])
    given = {_known_name(key): value for key, value in flat(content).items()}
    # An empty section says nothing.
    given = {key: value for key, value in given.items() if value is not None or key in _DEFAULTS}
    _refuse_unknown(given, str(path))
    _refuse_unknown(words, "the command line")
    given |= {
        key: text if isinstance(_DEFAULTS.get(key), str) else _parsed(key, text)
        for key, text in words.items()
    }

    result = Conf(_DEFAULTS)
    if "augmentations" not in content:
        result |= flat({"augmentations": AUGMENTATIONS})
    result |= {key: _typed(key, value) for key, value in given.items()}
    result["conf"] = str(path)
    _check(result, str(path or "the command line"))
    return result


def split_options(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of an evaluation among key=value, and the others; qslen= is the default."""
    options, others = dict(_EVALUATION), ["fabric.ngpus=1", "fabric.nnodes=1"]
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in options:
            others.append(f"fabric.{text}" if key in ("ngpus", "nnodes") else text)
        elif value not in ("", "null"):
            default = 0.0 if _EVALUATION[key] is None else _EVALUATION[key]
            options[key] = value if default in ("", "test") else typed(_parsed(key, value), default, key)
    if not options["checkpoint"]:
        raise MillraceError("no checkpoint is named", "the command line", "Write checkpoint=FILE")
    return {**options, "partition": split_name(options["partition"])}, others


def _parsed(key: str, text: str) -> Any:
    try:
        return parse_value(text)
    except yaml.YAMLError:
        problem = f"{key} has the value {text!r}"
        raise MillraceError(problem, "the command line", "Write it as in YAML") from None


def _known_name(key: str) -> str:
    """data.splits is path.splits, and splits have several names."""
    if match := re.fullmatch(r"(?:path|data)\.splits\.(\w+)", key):
        return f"path.splits.{split_name(match[1])}"
    return key


def _refuse_unknown(values: Mapping[str, Any], where: str) -> None:
    for key in values:
        is_waveform = key.startswith("augmentations.") and key.split(".")[1] in WAVEFORM_KEYS
        if key not in _KNOWN and not is_waveform:
            known = sorted(_KNOWN)
            same_word = [name for name in known if name.endswith(f".{key.rpartition('.')[2]}")]
            near = difflib.get_close_matches(key, known, 1, 0.75) or same_word
            near = near or difflib.get_close_matches(key, known, 1, 0)
            raise MillraceError(f"there is no key {key}", where, f"The nearest known one is {near[0]}")


def _typed(key: str, value: Any) -> Any:
    """A value of the type of its default; null is the empty one. A model checks its own."""
    if key.startswith("model.") or key not in _KNOWN:
        return value
    default = _KNOWN[key]
    if not default and value in (None, "null"):
        return default
    return (
        str(value) if isinstance(default, str) and type(value) in (int, float) else typed(value, default, key)
    )


def _check(conf: Conf, where: str) -> None:
    if conf["data.input"] != "cqt":
        problem = f"data.input is {conf['data.input']}: this trainer reads features, not audio"
        remedy = "Make features of your audio (python -m millrace.music.create_features), then set it to cqt"
        raise MillraceError(problem, where, remedy)
    for key, among in _CHOICES.items():
        if conf.get(key, among[0]) not in among:
            raise MillraceError(f"{key} is {conf[key]!r}", where, f"Set it to {' or '.join(among)}")
    for key, least in _AT_LEAST.items():
        if conf.get(key, least) < least:
            raise MillraceError(f"{key} is {conf[key]}", where, f"Set it to {least} or more")
    for key in conf.keys() & _SHARES:
        if not 0 <= conf[key] <= 1:
            raise MillraceError(f"{key} is {conf[key]}", where, "Set it to 0 or more, 1 at most")
    for key, least in (("timestretch", 0.001), ("pitchtranspose", -math.inf)):
        r = conf.get(f"augmentations.{key}.r", AUGMENTATIONS[key]["r"])
        if len(r) != 2 or not least <= r[0] <= r[1]:
            remedy = "Give the least and the greatest value, of timestretch above 0"
            raise MillraceError(f"augmentations.{key}.r is {r}", where, remedy)
    if not re.fullmatch(r"flat|plateau_[1-9]\d*", schedule := conf["training.optim.sched"]):
        problem = f"training.optim.sched is {schedule}"
        raise MillraceError(problem, where, "Set it to plateau_N (evaluations of patience) or flat")
    if conf["data.audiolen"] < conf.model.shingling_len:
        problem = f"data.audiolen is {conf['data.audiolen']:g} s, less than a shingle"
        raise MillraceError(problem, where, f"Set it to {conf.model.shingling_len:g} or more")
