"""The folder of a saved model: config.json and weights as transformers names them, refused if it
brings code; and which of its files tell a calibration from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from torch import Tensor, nn

from millrace.common import atomic
from millrace.common.errors import MillraceError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
OPTIONS = "millrace_options.json"

# Files of a model folder that decide what a step costs; weights do not.
_CONFIGS = (
    "*config*.json",
    "*options*.json",
    "tokenizer.json",
    "vocab.json",
    "chat_template*",
    "*.model",
)


def write_model(folder: str | Path, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
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
        problem = f"there is no model here ({error.strerror})"
        remedy = f"Give a folder with {CONFIG} and the weights; nothing is fetched from a hub"
        raise MillraceError(problem, str(folder), remedy) from error
    except orjson.JSONDecodeError as error:
        problem = f"this is not JSON ({error})"
        raise MillraceError(problem, str(path), "Copy the model again") from error
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        problem = f"model_type is {model_type!r}"
        raise MillraceError(problem, str(path), "Give another model folder")
    return config


def refuse_code(folder: str | Path) -> None:
    """Raise MillraceError for a model folder that brings Python code of its own (`auto_map`)."""
    for path in sorted(Path(folder).glob("*.json")):
        try:
            content = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            continue  # who reads the file says what is wrong with it
        if isinstance(content, dict) and "auto_map" in content:
            problem = (
                "`auto_map` asks to run Python code that comes with the model, which is never done"
            )
            remedy = (
                "Take a model that transformers itself knows, or remove `auto_map` if this one is"
            )
            raise MillraceError(problem, str(path), remedy)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The weights of a .safetensors file, by name. Raises MillraceError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _not_loaded(path, error) from error


def read_weights(folder: str | Path, model: nn.Module) -> None:
    """Load model.safetensors into `model`; raises MillraceError if it does not fit."""
    path = Path(folder) / WEIGHTS
    try:
        model.load_state_dict(read_tensors(path))
    except RuntimeError as error:
        raise _not_loaded(path, error) from error


def _not_loaded(path: Path, error: Exception) -> MillraceError:
    words = " ".join(str(error).split())[:300]
    problem = f"the weights cannot be loaded ({words})"
    return MillraceError(problem, str(path), "Copy or save the whole model folder again")


def model_digest(model: str, options: Mapping[str, Any]) -> str:
    """Digest of a model's name and options, or of its folder's configuration and tokenizer
    files."""
    folder = Path(model)
    named = json.dumps([folder.name, dict(options)], sort_keys=True)
    digest = hashlib.sha256(named.encode())
    if folder.is_dir():
        files: set[Path] = set()
        for pattern in _CONFIGS:
            files.update(folder.glob(pattern))
        for path in sorted(files):
            if path.is_file():
                digest.update(f"\0{path.name}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
