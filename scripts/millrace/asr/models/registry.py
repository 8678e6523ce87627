"""Make or load the model that a run names: one by its name, with random weights, or what a folder
holds, by its `model_type`; which options are refused.

A new model is a subclass of AsrModel in a file of its own, and a line in `known.MODELS`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from millrace.asr.models.base import AsrModel
from millrace.asr.models.folder import OPTIONS, read_config, refuse_code
from millrace.asr.models.known import MODELS, NAMES
from millrace.common.errors import MillraceError


def build(
    name: str | Path, options: Mapping[str, Any] | None, transcripts: Iterable[str]
) -> AsrModel:
    """The model of that name, its vocabulary from the training `transcripts`; or what a folder
    holds.

    Options of `ctc`: those of CtcConfig, `case_fold` and `punctuation`; of Qwen3-ASR:
    QwenOptions. Weights are drawn from torch's generator; transcripts may come in any
    order. Raises MillraceError for an unknown name, a folder without a whole model, and unknown
    options.
    """
    name = str(name)
    options = dict(options or {})
    for module, kind, names in MODELS:
        if name in names:
            model = _class(module, kind)
            _check(options, model.option_types, name)
            return model.create(name, options, transcripts)
    return load(name, options)


def load(folder: str | os.PathLike, options: Mapping[str, Any] | None = None) -> AsrModel:
    """The model saved in `folder`, by this project or by transformers; nothing is fetched.

    `options` replace saved ones of Qwen3-ASR. Raises MillraceError for a folder without a whole
    model.
    """
    folder = Path(folder)
    if not folder.is_dir():
        problem = f"there is neither a model named {str(folder)!r} nor a folder of that name"
        remedy = "Give a folder that holds a model (nothing is fetched from a hub), or one of "
        raise MillraceError(problem, remedy=remedy + ", ".join(NAMES))
    model_type = read_config(folder)["model_type"]
    refuse_code(folder)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported

    # One class after the other: our own model is read without importing transformers' models.
    known: set[str] = set()
    for module, kind, _ in MODELS:
        model = _class(module, kind)
        if model_type in model.model_types:
            chosen = _saved_options(folder) | dict(options or {})
            _check(chosen, model.folder_option_types, str(folder))
            return model.from_pretrained(folder, chosen)
        known.update(model.model_types)
    problem = f"model_type {model_type!r} is no speech recogniser that can be trained here"
    remedy = f"Choose a model of one of the types {', '.join(sorted(known))}"
    raise MillraceError(problem, str(folder), remedy)


def _saved_options(folder: Path) -> dict[str, Any]:
    """What transformers has no place for; models from elsewhere have none."""
    path = folder / OPTIONS
    if not path.exists():
        return {}
    options = orjson.loads(path.read_bytes())
    options.pop("padding_side", None)  # of version 0.4.0: it decided the speed of training alone
    return options


def _class(module: str, kind: str) -> type[AsrModel]:
    return getattr(importlib.import_module(f"millrace.asr.models.{module}"), kind)


def _check(options: Mapping[str, Any], allowed: Mapping[str, str], name: str) -> None:
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        known = ", ".join(sorted(allowed)) or "none"
        raise MillraceError(
            f"{name} has no option {', '.join(unknown)}", remedy=f"Its options are: {known}"
        )
    for option, value in options.items():
        kind = type(value).__name__
        wanted = allowed[option]
        is_number = kind == "int" and wanted in ("float", "bool")
        if kind != wanted and not is_number:
            problem = f"{option} of {name} is {value!r}"
            raise MillraceError(problem, "model_options", f"Give a {wanted}")
