"""What an object holds, at any depth: items, attributes, bound arguments, and what its functions
name."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from millrace.audit.runner.digest import members

ITEMS = 64  # of a list show what more would show
PLAIN, NAMES = (str, bytes, int, float, type(None), torch.Tensor), (type, ModuleType)
FOREIGN = ("torch", "torchvision", "albumentations", "PIL", "numpy", "cv2", "datasets")
BOUND = {partial: ("func", "args", "keywords"), MethodType: ("__self__", "__func__")}


def walk(
    root: Any, name: str = "", limit: int = 3000, code: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield (path, object) for all that an object holds, the nearest first; paths such as
    `data.steps.0`.

    `code`: also for closures, and globals that functions name. `limit`: of objects that are looked
    into.
    """
    queue = deque([(name, root)])
    seen: set[int] = set()
    while queue and len(seen) < limit:
        path, value = queue.popleft()
        if isinstance(value, PLAIN):
            yield path, value
        elif id(value) not in seen and not isinstance(value, NAMES):
            seen.add(id(value))
            yield path, value
            queue.extend(
                (f"{path}.{step}" if path else step, part) for step, part in parts(value, code)
            )


def parts(value: Any, code: bool = False) -> list[tuple[str, Any]]:
    """What an object itself holds, by name or place; nothing for arrays and images."""
    if isinstance(value, PLAIN + NAMES) or hasattr(value, "tobytes"):
        return []
    if isinstance(value, (dict, list, tuple)):
        return list(islice(members(value), ITEMS))
    if isinstance(value, FunctionType):
        return _named(value) if code else []
    slots: Iterable[str] = getattr(type(value), "__slots__", ())
    names = BOUND.get(type(value)) or slots
    held = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    held += getattr(value, "__dict__", {}).items()
    for method in ("__getitem__", "__iter__", "__call__") if code else ():
        function = getattr(type(value), method, None)
        held += _named(function) if isinstance(function, FunctionType) else []
    return held


def _named(function: FunctionType) -> list[tuple[str, Any]]:
    if (function.__module__ or "").partition(".")[0] in FOREIGN:
        return []
    scope, names = function.__globals__, function.__code__
    cells = zip(names.co_freevars, function.__closure__ or (), strict=True)
    held = [
        (name, cell.cell_contents) for name, cell in cells if cell != CellType()
    ]  # an empty one raises
    return held + [(name, scope[name]) for name in names.co_names if name in scope]
