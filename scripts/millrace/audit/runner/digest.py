"""Content as digests, so that samples and batches of two processes can be compared."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

DEPTH = 12


def digest(value: Any) -> str:
    """16 hex digits of what a value holds: equal contents, equal digests, in any process."""
    state = hashlib.blake2b(digest_size=8)
    _feed(state, value, DEPTH)
    return state.hexdigest()


def fields(sample: Any) -> dict[str, str]:
    """Digests of a sample's fields by name or place, and of the whole under ""."""
    parts = dict(members(sample))
    digests = {name: digest(value) for name, value in parts.items()}
    whole = digest(sorted(digests.items())) if parts else digest(sample)
    return {"": whole, **digests}


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a mapping, a sequence or an object, by name or place; nothing for a single value."""
    if isinstance(value, Mapping):
        yield from ((str(name), each) for name, each in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (list, tuple)):
        yield from ((str(place), each) for place, each in enumerate(value))
    elif (
        hasattr(value, "__dict__")
        and not isinstance(value, (torch.Tensor, type))
        and not hasattr(value, "tobytes")
    ):
        yield from ((str(name), each) for name, each in vars(value).items() if not callable(each))


def describe(value: Any) -> dict[str, Any]:
    """Type, and dtype and shape of a tensor or an array."""
    said: dict[str, Any] = {"type": f"{type(value).__module__}.{type(value).__qualname__}"}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        said |= {"dtype": str(value.dtype), "shape": [int(each) for each in value.shape]}
    elif isinstance(value, (str, bytes, list, tuple, dict)):
        said["length"] = len(value)
    return said


def walk_tensors(value: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in a value, with their paths, such as `("labels.0", tensor)`."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth:
        for name, each in members(value):
            yield from walk_tensors(each, f"{path}.{name}" if path else name, depth - 1)


def _feed(state: Any, value: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        state.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        if value.layout is torch.strided and value.device.type == "cpu" and value.numel():
            plain = value.detach().resolve_conj().resolve_neg().contiguous()
            state.update(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()))
    elif isinstance(value, (str, bytes, bool, int, float, complex, type(None))):
        state.update(f"{type(value).__name__} {value!r}".encode())
    elif hasattr(value, "tobytes"):  # arrays and images: their bytes say more than their attributes
        shape = getattr(value, "shape", getattr(value, "size", ""))
        # A numpy.memmap is an ndarray after pickling: the class does not matter.
        state.update(f"buffer {getattr(value, 'dtype', getattr(value, 'mode', ''))} {shape}".encode())
        state.update(value.tobytes())
    elif isinstance(value, (set, frozenset)):
        state.update(repr(sorted(map(repr, value))).encode())
    elif depth:
        state.update(f"{type(value).__qualname__} (".encode())
        for name, each in members(value):
            state.update(f"{name}:".encode())
            _feed(state, each, depth - 1)
        state.update(b")")
