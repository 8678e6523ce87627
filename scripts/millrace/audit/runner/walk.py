"""What an object holds, at any depth: items, attributes, bound arguments, and what its functions
name."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from millrace.audit.runner.digest import CONTENT, attributes, has, members

ITEMS = 64  # of a list show what more would show
PLAIN = (
    str,
    bytes,
    int,
    float,
    type(None),
    torch.Tensor,
)
NAMES = (type, ModuleType)
FOREIGN = ("torch", "torchvision", "albumentations", "PIL", "numpy", "cv2", "datasets")
BOUND = {
    partial: ("func", "args", "keywords"),
    MethodType: ("__self__", "__func__"),
}

Held = list[tuple[str, Any]]  # names or places, and objects


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
            continue
        if id(value) in seen or isinstance(value, NAMES) or not _answers(value):
            continue
        seen.add(id(value))
        yield path, value
        for step, part in parts(value, code):
            queue.append((f"{path}.{step}" if path else step, part))


def parts(value: Any, code: bool = False) -> Held:
    """What an object itself holds, by name or place; nothing for arrays and images."""
    kind = type(value)
    if isinstance(value, PLAIN + NAMES) or not _answers(value) or has(value, *CONTENT):
        return []
    if isinstance(value, (dict, list, tuple)):
        return list(islice(members(value), ITEMS))
    if isinstance(value, FunctionType):
        return _named(value) if code else []

    slots: Iterable[str] = getattr(kind, "__slots__", ())
    names = BOUND.get(kind) or slots
    held = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    held += attributes(value).items()
    for base in kind.__mro__ if code else ():
        held += _of_class(base)
    return held


def _of_class(kind: type) -> Held:
    """What a class holds for all its objects, and what its methods name."""
    held: Held = []
    for name, part in {} if _is_foreign(kind) else vars(kind).items():
        if isinstance(part, FunctionType):
            held += _named(part) if name != "__init__" else []
        elif not name.startswith("__"):
            held.append((name, part))
    return held


def _is_foreign(thing: type | FunctionType) -> bool:
    package = (thing.__module__ or "").partition(".")[0]
    return package in FOREIGN or package in sys.stdlib_module_names


def _answers(value: Any) -> bool:
    """Whether attributes can be asked for: MONAI's stand-ins for missing packages raise."""
    try:
        hasattr(value, "tobytes")
    except Exception:
        return False
    return True


def _named(function: FunctionType) -> Held:
    """What a function names: its defaults, and those of its closure and of its module's globals."""
    if _is_foreign(function):
        return []
    scope = function.__globals__
    names = function.__code__
    arguments = names.co_varnames[: names.co_argcount]
    defaults = function.__defaults__ or ()
    held = list(zip(reversed(arguments), reversed(defaults), strict=False))
    held += (function.__kwdefaults__ or {}).items()
    for name, cell in zip(names.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():  # an empty one raises
            held.append((name, cell.cell_contents))
    return held + [(name, scope[name]) for name in names.co_names if name in scope]
