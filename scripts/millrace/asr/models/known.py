"""Which models there are by name, how many parameters they have, and whether the config's exists;
the workflow's parse runs it, so without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# module below millrace.asr.models, class, names
MODELS = (
    ("ctc", "CtcModel", ("ctc",)),
    ("qwen.model", "QwenModel", ("qwen3-asr-tiny", "qwen3-asr-0.6b", "qwen3-asr-1.7b")),
    ("hf.ctc", "HfCtcModel", ()),
    ("hf.seq2seq", "Seq2SeqModel", ()),
)
_MILLIONS = {"qwen3-asr-0.6b": 782.0, "qwen3-asr-1.7b": 2038.0}
NAMES = tuple(name for _, _, names in MODELS for name in names)


def millions(model: str) -> float:
    """Millions of parameters of a model, or of one in a folder: what its weights may hold, at two
    bytes."""
    if not Path(model).is_dir():
        return _MILLIONS.get(model, 10.0)
    return sum(path.stat().st_size for path in Path(model).glob("*.safetensors")) / 2e6


def problems(section: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with `model` and `model_path` of the config's section."""
    name = section["model"]
    folder = Path(section["model_path"] or section["model"])
    if (folder / "config.json").is_file() or (not section["model_path"] and name in NAMES):
        return
    if folder.is_dir() or section["model_path"]:
        kind = "a folder without config.json" if folder.is_dir() else "no folder"
        yield f"model_path: {folder} is {kind}. Give one with config.json and weights"
        return
    known = f"known are {', '.join(NAMES)}; model_path takes a folder with a model"
    yield f"model: there is no model {name!r}; {known}"
