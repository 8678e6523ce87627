"""Configurations as the original trainer takes them: conf=FILE and a.b=c, over the published defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.music.features.roots import split_files, split_name
from millrace.music.features.track import Contract
from millrace.music.models import config
from millrace.music.models.config import ClewsConfig, checked, flat, nested

COMMAND_LINE = "the command line"
# Augmentations of waveforms, which precomputed features cannot have.
_WAVEFORM = ("length", "polarity", "gain", "noise", "compexp", "reqtime", "clipping")
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
    **{"fabric.nnodes": 1, "fabric.ngpus": 1, "fabric.precision": "32", "fabric.accelerator": "cuda"},
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
_KNOWN = {**_DEFAULTS, **ClewsConfig().keys(), **flat({"augmentations": AUGMENTATIONS})}
_CHOICES = {
    "fabric.precision": ("32", "32-true", "16-mixed", "bf16-mixed"),
    "fabric.accelerator": ("auto", "cpu", "cuda"),
    "data.mp_context": ("spawn", "fork", "forkserver"),
    "data.pad_mode": ("repeat", "zeros"),
    "data.prefer": ("h5", "mm"),
    "data.on_leak": ("error", "drop"),
    "training.optim.name": ("adam", "adamw"),
    "training.monitor.quantity": ("m_COMP", "m_MAP", "m_MR1", "m_ARP", "l_main"),
    "augmentations.timestretch.pad_mode": ("repeat", "zeros"),
    "augmentations.timestretch.cut_mode": ("start", "end", "random"),
}
# The least and the greatest value of numbers that are not just 0 or more.
_LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("data.n_per_class", "training.batchsize"), (2, math.inf)),
    **dict.fromkeys(("training.numepochs", "fabric.nnodes", "fabric.ngpus"), (1, math.inf)),
    **dict.fromkeys(("data.prefetch_factor", "data.max_open_files"), (1, math.inf)),
    **dict.fromkeys(("data.p_samesong", "data.max_missing_fraction"), (0, 1)),
    **dict.fromkeys((f"augmentations.{name}.p" for name in AUGMENTATIONS), (0, 1)),
    **dict.fromkeys((f"augmentations.specaugment.{name}" for name in ("f_pc", "t_pc")), (0, 1)),
    "augmentations.specaugment.n": (1, 1000),
    "augmentations.timestretch.r": (0.001, 100),
    "augmentations.pitchtranspose.r": (-1000, 1000),
    "maxlen": (0.1, math.inf),
}
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
        """Its `model` section."""
        keys = {key: value for key, value in self.items() if key.startswith("model.")}
        return ClewsConfig.from_keys(keys, self["conf"])

    def contract(self) -> Contract:
        """What features must be like for the model."""
        model, resample = self.model, self["data.resample"]
        return Contract(model.bins, model.cqt_hoplen, model.cqt_pool, model.shingling_len, resample=resample)


def read(overrides: Sequence[str], conf: str = "") -> Conf:
    """The file of `conf` (or of conf=FILE) with the overrides a.b=c, checked; else the defaults.

    `augmentations` of the file replace the default ones as a whole; `model.name` may be one of
    models.config.CONFIGS, whose sizes are then the defaults. Raises MillraceError for a tab with its line,
    for an unknown key with the nearest one, and for values that no key takes.
    """
    words: dict[str, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise MillraceError(f"{text} is no override", COMMAND_LINE, "Write key=value")
        words[key] = value
    path = words.get("conf") or conf
    content = flat(config.read_yaml(path, "Name a configuration: conf=FILE")) if path else {}
    typed = {key: _parsed(key, text, _DEFAULTS.get(key)) for key, text in words.items()}

    result, where = Conf(_DEFAULTS), str(path or COMMAND_LINE)
    if not any(key.partition(".")[0] == "augmentations" for key in content):
        result |= flat({"augmentations": AUGMENTATIONS})
    for values, place in ((content, where), (flat(typed), COMMAND_LINE)):
        result |= checked(_renamed(values, place), _KNOWN, place)
    if preset := config.CONFIGS.get(result.get("model.name", "")):
        result = Conf({**preset.keys(), **result, "model.name": preset.name})
    result["conf"] = str(path)
    result |= result.model.keys()
    _check(result, where)
    return result


def split_options(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options of an evaluation among key=value, and the others; qslen= is the default."""
    options, others = dict(_EVALUATION), ["fabric.ngpus=1", "fabric.nnodes=1"]
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in options:
            others.append(f"fabric.{text}" if key in ("ngpus", "nnodes") else text)
        elif value not in ("", "null"):
            default = {key: 0.0 if _EVALUATION[key] is None else _EVALUATION[key]}
            options |= checked({key: _parsed(key, value, default[key])}, default, COMMAND_LINE)
    if not options["checkpoint"]:
        raise MillraceError("no checkpoint is named", COMMAND_LINE, "Write checkpoint=FILE")
    _check_limits(options, COMMAND_LINE)
    return {**options, "partition": split_name(options["partition"])}, others


def _parsed(key: str, text: str, default: Any) -> Any:
    try:
        return text if isinstance(default, str) else config.parse_value(text)
    except yaml.YAMLError:
        problem = f"{key} has the value {text!r}"
        raise MillraceError(problem, COMMAND_LINE, "Write it as in YAML") from None


def _renamed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """data.splits is path.splits, splits have several names, a folder stands for the files in it, and
    augmentations of waveforms are skipped."""
    result, skipped = {}, {}
    for key, value in values.items():
        if match := re.fullmatch(r"(?:path|data)\.splits\.(\w+)", key):
            result[f"path.splits.{split_name(match[1])}"] = value
        elif key in ("path.splits", "data.splits") and isinstance(value, str):
            if not (files := split_files(value)):
                problem = f"{key} is {value}, where no file is called train, valid or test"
                raise MillraceError(problem, where, "Name a folder with the files of the splits")
            result |= {f"path.splits.{name}": file for name, file in files.items()}
        elif key.startswith("augmentations.") and (name := key.split(".")[1]) in _WAVEFORM:
            skipped[name] = value
        else:
            result[key] = value
    if skipped:
        log.info("augmentations of waveforms are skipped: %s", ", ".join(skipped))
    return result


def _check_limits(values: Mapping[str, Any], where: str) -> None:
    for key, value in values.items():
        least, most = _LIMITS.get(key, (0, math.inf))
        numbers = [
            each for each in (value if isinstance(value, list) else [value]) if not isinstance(each, str)
        ]
        if not all(least <= each <= most for each in numbers if each is not None):
            remedy = f"Set it to {least:g} or more" + (f", {most:g} at most" if most < math.inf else "")
            raise MillraceError(f"{key} is {value}", where, remedy)


def _check(conf: Conf, where: str) -> None:
    if conf["data.input"] != "cqt":
        problem = f"data.input is {conf['data.input']}: this trainer reads features, not audio"
        remedy = "Make features of your audio (python -m millrace.music.create_features), then set it to cqt"
        raise MillraceError(problem, where, remedy)
    for key, among in _CHOICES.items():
        if conf.get(key, among[0]) not in among:
            raise MillraceError(f"{key} is {conf[key]!r}", where, f"Set it to {' or '.join(among)}")
    _check_limits(conf, where)
    for key in ("augmentations.timestretch.r", "augmentations.pitchtranspose.r"):
        if len(r := conf.get(key, [0, 0])) != 2 or r[0] > r[1]:
            raise MillraceError(f"{key} is {r}", where, "Give the least and the greatest value")
    monitor = conf.section("training")["monitor"]
    if monitor["mode"] != ("max" if monitor["quantity"] == "m_MAP" else "min"):
        problem = "training.monitor has quantity {quantity} and mode {mode}".format(**monitor)
        raise MillraceError(problem, where, "The best m_MAP is the max, of all others it is the min")
    if not re.fullmatch(r"flat|plateau_[1-9]\d*", schedule := conf["training.optim.sched"]):
        problem = f"training.optim.sched is {schedule}"
        raise MillraceError(problem, where, "Set it to plateau_N (evaluations of patience) or flat")
    if conf["data.audiolen"] < conf.model.shingling_len:
        problem = f"data.audiolen is {conf['data.audiolen']:g} s, less than a shingle"
        raise MillraceError(problem, where, f"Set it to {conf.model.shingling_len:g} or more")
