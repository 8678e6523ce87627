"""The files of a saved model: config.json and model.safetensors, as transformers names them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import nn

from millrace.common import atomic
from millrace.common.errors import MillraceError

CONFIG, WEIGHTS, OPTIONS = "config.json", "model.safetensors", "millrace_options.json"

# Files of a model folder that decide what a step costs; weights do not.
_CONFIGS = ("*config*.json", "*options*.json", "tokenizer.json", "vocab.json", "chat_template*", "*.model")


def write_model(folder: str | Path, config: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    """Write both files, the weights first: a folder with a config is whole."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    atomic.write_bytes(Path(folder) / WEIGHTS, save(tensors))
    atomic.write_json(Path(folder) / CONFIG, dict(config))


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json, which has a model_type; raises MillraceError for what is no model."""
    path = Path(folder) / CONFIG
    try:
        config = orjson.loads(path.read_bytes())
    except OSError as error:
        raise MillraceError(
            f"there is no model here ({error.strerror})",
            where=str(folder),
            remedy=f"Give a folder with {CONFIG} and the weights; nothing is fetched from a hub",
        ) from error
    except orjson.JSONDecodeError as error:
        raise MillraceError(
            f"this is not JSON ({error})", where=str(path), remedy="Copy the model again"
        ) from error
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str) or not model_type:
        raise MillraceError(
            f"model_type is {model_type!r}", where=str(path), remedy="Give another model folder"
        )
    return config


def read_weights(folder: str | Path, model: nn.Module) -> None:
    """Load model.safetensors into `model`; raises MillraceError if it does not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / WEIGHTS
    try:
        model.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise MillraceError(
            f"the weights cannot be loaded ({first})", where=str(path), remedy="Save it again"
        ) from error


@contextlib.contextmanager
def saving(folder: str | Path) -> Iterator[Path]:
    """Yield a folder beside `folder`; on a clean exit its files replace those of the same name, config.json
    last."""
    folder = Path(folder)
    quieten()
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(
        tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.resolve().parent)
    )
    try:
        yield partial
        for path in sorted(partial.rglob("*"), key=lambda path: (path.name == CONFIG, path)):
            if path.is_file():
                target = folder / path.relative_to(partial)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_options(folder: str | Path) -> dict[str, Any]:
    """What a model was saved with that transformers has no place for; nothing if it comes from elsewhere."""
    try:
        return orjson.loads((Path(folder) / OPTIONS).read_bytes())
    except FileNotFoundError:
        return {}


def load_local(kind: Any, folder: str | Path, **options: Any) -> Any:
    """`kind.from_pretrained(folder)`, without a hub; raises MillraceError if files are missing or do not
    fit."""
    quieten()
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, **options)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise MillraceError(
            f"{kind.__name__} cannot be loaded ({first})",
            where=str(folder),
            remedy="Copy the whole model folder again: weights, configuration, tokenizer and preprocessor",
        ) from error


def quieten() -> None:
    """No progress bars and notes of transformers in our logs; errors stay."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def model_digest(model: str, options: Mapping[str, Any]) -> str:
    """Digest of a model's name and options, or of its folder's configuration and tokenizer files."""
    folder = Path(model)
    digest = hashlib.sha256(json.dumps([folder.name, dict(options)], sort_keys=True).encode())
    if folder.is_dir():
        for path in sorted({path for pattern in _CONFIGS for path in folder.glob(pattern) if path.is_file()}):
            digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
