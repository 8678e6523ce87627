"""Millrace: the steps and libraries of a Snakemake workflow for machine-learning training data."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace import audit
    from millrace.asr.planning.loader import open_loader
    from millrace.image.records.dataset import HDF5Record
    from millrace.music.features.index import FeatureIndex
    from millrace.tars.loader import open_tars

if sys.platform == "win32":
    raise ImportError("Millrace needs Linux: on Windows run it in WSL (wsl --install)")

__all__ = ["FeatureIndex", "HDF5Record", "audit", "open_loader", "open_tars"]

# Module and extra of each name. Imported when it is first used: torch alone takes a second.
_MODULES = {
    "FeatureIndex": ("millrace.music.features.index", "music"),
    "HDF5Record": ("millrace.image.records.dataset", "image"),
    "open_loader": ("millrace.asr.planning.loader", "asr"),
    "open_tars": ("millrace.tars.loader", "asr"),
}


def __getattr__(name: str) -> Any:
    if name == "audit":
        return importlib.import_module("millrace.audit")
    if name not in _MODULES:
        raise AttributeError(f"module 'millrace' has no attribute {name!r}")
    from millrace.common import extras

    module, extra = _MODULES[name]
    with extras.needed(extra, f"millrace.{name}"):
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
