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

# Imported when it is first used: torch alone takes a second.
_MODULES = {
    "FeatureIndex": "millrace.music.features.index",
    "HDF5Record": "millrace.image.records.dataset",
    "open_loader": "millrace.asr.planning.loader",
    "open_tars": "millrace.tars.loader",
}


def __getattr__(name: str) -> Any:
    if name == "audit":
        return importlib.import_module("millrace.audit")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
