"""The recognisers by name: our small CTC model, Qwen3-ASR, and what transformers has, from folders or
random."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from millrace.asr.models.base import AsrModel
from millrace.asr.models.files import quieten, read_config
from millrace.common.errors import MillraceError

# Random weights, made without a hub. Everything else is a folder.
NAMES = (
    "ctc",
    "qwen3-asr-tiny",
    "qwen3-asr-0.6b",
    "qwen3-asr-1.7b",
    *(
        f"{family}-tiny-random"
        for family in (
            "whisper",
            "wav2vec2",
            "wav2vec2-bert",
            "wav2vec2-conformer",
            "hubert",
            "wavlm",
            "unispeech",
        )
    ),
)
_RANDOM = "-tiny-random"
_CTC_TEXT = ("case_fold", "punctuation")


def build(
    name: str | Path, options: Mapping[str, Any] | None = None, transcripts: Iterable[str] = ()
) -> AsrModel:
    """The model of that name, its vocabulary from the training `transcripts`; or what a folder holds.

    Options of `ctc`: those of CtcConfig and `case_fold`, `punctuation`, `spec_augment`; of Qwen3-ASR:
    QwenOptions. Weights are drawn from torch's generator, the same for the same seed; transcripts may come in
    any order. Raises MillraceError for an unknown name, a folder without a whole model, and unknown options.
    """
    name, options = str(name), dict(options or {})
    if name == "ctc":
        return _ctc(options, transcripts)
    quieten()
    if name in NAMES and name.startswith("qwen3-asr-"):
        from millrace.asr.models.qwen.model import QwenModel, QwenOptions

        return QwenModel.random(
            name.removeprefix("qwen3-asr-"), transcripts, _options(QwenOptions, options, name)
        )
    if name in NAMES:
        _options(None, options, name)
        return _random(name.removesuffix(_RANDOM), transcripts)
    return load(name, options)


def load(folder: str | Path, options: Mapping[str, Any] | None = None) -> AsrModel:
    """The model saved in `folder`, by this project or by transformers; nothing is fetched.

    `options` replace saved ones of Qwen3-ASR. Raises MillraceError for a folder without a whole model.
    """
    folder, options = Path(folder), dict(options or {})
    if not folder.is_dir():
        raise MillraceError(
            f"there is neither a model named {str(folder)!r} nor a folder of that name",
            remedy=f"Give a folder that holds a model (nothing is fetched from a hub), or one of {', '.join(NAMES)}",
        )
    config = read_config_of(folder)
    kind = config["model_type"]
    if kind == "millrace_ctc":
        from millrace.asr.models.ctc import CtcModel

        _options(None, options, str(folder))
        return CtcModel.from_pretrained(folder)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if kind == "qwen3_asr":
        from millrace.asr.models.files import read_options
        from millrace.asr.models.qwen.model import QwenModel, QwenOptions

        return QwenModel.from_pretrained(
            folder, _options(QwenOptions, read_options(folder) | options, str(folder))
        )
    _options(None, options, str(folder))
    return _transformers(folder, config)


def read_config_of(folder: Path) -> dict[str, Any]:
    """config.json of a model that can be trained here, as far as that file tells."""
    config = read_config(folder)
    if "thinker_config" in config:
        raise MillraceError(
            "this is Qwen3-ASR in the layout of the qwen-asr package",
            where=str(folder),
            remedy="Take the folder that transformers reads (its name ends in -hf)",
        )
    return config


def _transformers(folder: Path, config: Mapping[str, Any]) -> AsrModel:
    from transformers.models.auto import modeling_auto

    from millrace.asr.models.hf.ctc import FAMILIES, HfCtcModel

    kind, architecture = config["model_type"], "".join(config.get("architectures") or [])
    seq2seq = kind in modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    if kind in FAMILIES and not architecture.endswith("ForConditionalGeneration"):
        return HfCtcModel.from_pretrained(folder)
    if seq2seq:
        from millrace.asr.models.hf.seq2seq import Seq2SeqModel

        return Seq2SeqModel.from_pretrained(folder)
    raise MillraceError(
        f"model_type {kind!r} is no speech recogniser that can be trained here",
        where=str(folder),
        remedy=f"Choose a model with CTC ({', '.join(FAMILIES)}), an encoder-decoder such as whisper, or qwen3_asr",
    )


def _ctc(options: dict[str, Any], transcripts: Iterable[str]) -> AsrModel:
    from millrace.asr.models.ctc import CtcConfig, CtcModel
    from millrace.asr.models.labels import Characters
    from millrace.asr.models.spec_augment import SpecAugment

    allowed = {
        field.name: field.type for field in fields(CtcConfig) if field.name not in ("vocabulary", "augment")
    }
    _check(options, allowed | dict.fromkeys((*_CTC_TEXT, "spec_augment"), "bool"), "ctc")
    text = {key: options.pop(key) for key in _CTC_TEXT if key in options}
    augment = SpecAugment() if options.pop("spec_augment", False) else None
    vocabulary = Characters.from_transcripts(transcripts, **text)
    return CtcModel(CtcConfig(vocabulary=vocabulary, augment=augment, **options))


def _random(kind: str, transcripts: Iterable[str]) -> AsrModel:
    if kind == "whisper":
        from millrace.asr.models.hf.seq2seq import Seq2SeqModel

        return Seq2SeqModel.random(transcripts)
    from millrace.asr.models.hf.ctc import HfCtcModel

    with tempfile.TemporaryDirectory() as folder:
        return HfCtcModel.random(kind, transcripts, folder)


def _options(kind: type | None, options: dict[str, Any], name: str) -> Any:
    _check(options, {field.name: field.type for field in fields(kind)} if kind else {}, name)
    return kind(**options) if kind else None


def _check(options: Mapping[str, Any], allowed: Mapping[str, str], name: str) -> None:
    """`allowed`: the type of every option, as annotations name it."""
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        known = ", ".join(sorted(allowed)) or "none"
        raise MillraceError(f"{name} has no option {', '.join(unknown)}", remedy=f"Its options are: {known}")
    for option, value in options.items():
        kind = type(value).__name__
        if kind != allowed[option] and (kind, allowed[option]) not in (("int", "float"), ("int", "bool")):
            raise MillraceError(
                f"{option} of {name} is {value!r}", where="model_options", remedy=f"Give a {allowed[option]}"
            )
