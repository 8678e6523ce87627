"""Content as digests, so that samples and batches of two processes can be compared."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from os import PathLike
from typing import Any

import torch

DEPTH = 12
# What says by its repr all that it holds.
TEXTS = (
    str,
    bytes,
    PathLike,
    date,
    time,
    timedelta,
    Decimal,
)
# What gives its content whole: arrays and images; rows and tables of pandas.
CONTENT = ("tobytes", "to_numpy")
# How default_collate stores a number of a sample, and so a row of the batch.
NUMBERS = {
    bool: ("bool", "<?"),
    int: ("int64", "<q"),
    float: ("float64", "<d"),
}


def digest(value: Any) -> str:
    """16 hex digits of what a value holds: equal contents, equal digests, in any process."""
    state = hashlib.blake2b(digest_size=8)
    _feed(state, value, DEPTH)
    return state.hexdigest()


def fields(sample: Any) -> dict[str, str]:
    """Digests of a sample's fields by name or place, and of the whole under ""."""
    digests = {name: digest(part) for name, part in members(sample)}
    if digests:
        whole = digest(sorted(digests.items()))
    else:
        whole = digest(sample)
    return {"": whole, **digests}


def rows(batch: Any) -> list[dict[str, str]] | None:
    """Digests of the samples that a batch was stacked from, along the first dimension of all its
    parts, as `fields` gives them for the samples themselves; None if the batch is not made so."""
    lengths = set(_lengths(batch, DEPTH))
    if len(lengths) != 1 or None in lengths:
        return None
    length = lengths.pop() or 0
    return [fields(_row(batch, number)) for number in range(length)]


def _lengths(part: Any, depth: int) -> Iterator[int | None]:
    """The first extent of each tensor, array and list of values in a batch; None for what has
    none."""
    if is_array(part):
        yield part.shape[0] if len(part.shape) else None
    elif _is_column(part):
        yield len(part)
    elif isinstance(part, (Mapping, list, tuple)) and depth:
        for _, value in members(part):
            yield from _lengths(value, depth - 1)
    else:
        yield None


def is_array(part: Any) -> bool:
    """Whether it is a tensor of torch or an array of NumPy."""
    return isinstance(part, torch.Tensor) or (hasattr(part, "dtype") and has(part, "tobytes"))


def has(value: Any, *methods: str) -> bool:
    """Whether it has one of these methods. A dict may answer any name that it lacks with None."""
    return any(callable(getattr(value, name, None)) for name in methods)


def _is_column(part: Any) -> bool:
    """Whether it is a list of one text or number for each sample."""
    if not isinstance(part, (list, tuple)):
        return False
    return all(isinstance(value, (str, bytes, *NUMBERS)) for value in part)


def _row(part: Any, number: int) -> Any:
    if is_array(part) or _is_column(part):
        return part[number]
    if isinstance(part, Mapping):
        return {name: _row(value, number) for name, value in part.items()}
    values = [_row(value, number) for value in part]
    if hasattr(part, "_fields"):
        return type(part)(*values)
    return values


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a mapping, a sequence or an object, by name or place; nothing for a single
    value."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name), part
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield str(place), part
    elif has(value, *CONTENT) or isinstance(value, (torch.Tensor, type, PathLike)):
        return
    else:
        for name, part in [*_slots(value), *attributes(value).items()]:
            if not callable(part):
                yield str(name), part


def attributes(value: Any) -> Mapping[str, Any]:
    """What an object has in its `__dict__`; nothing if it has none, or says that of another object,
    as llvmlite's library does behind each function of numba."""
    held = getattr(value, "__dict__", None)
    return held if isinstance(held, Mapping) else {}


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a class with `__slots__`, as `dataclass(slots=True)` makes it, that are set."""
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if not name.startswith("__") and hasattr(value, name):
                yield name, getattr(value, name)


def walk_tensors(
    value: Any, path: str = "", depth: int = DEPTH
) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in a value, with their paths, such as `("labels.0", tensor)`."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth:
        for name, part in members(value):
            yield from walk_tensors(part, f"{path}.{name}" if path else name, depth - 1)


def _feed(state: Any, value: Any, depth: int) -> None:
    kind = type(value)
    if kind in NUMBERS and _is_short(value):
        # A number is the tensor that default_collate makes of it, an array below too: a batch
        # compares with the samples it is made of.
        dtype, layout = NUMBERS[kind]
        state.update(f"tensor torch.{dtype} ()".encode())
        state.update(struct.pack(layout, value))
    elif isinstance(value, (bool, int, float, complex, type(None), *TEXTS)):
        state.update(f"{kind.__name__} {value!r}".encode())
    else:
        _feed_object(state, _plain(value), depth)


def _feed_object(state: Any, value: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        state.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        state.update(tensor_bytes(value))
    elif is_array(value):
        # A numpy.memmap is an ndarray after pickling: the class does not matter.
        state.update(f"tensor torch.{value.dtype} {tuple(value.shape)}".encode())
        state.update(value.tobytes())
    elif has(value, "tobytes"):  # images: their bytes say more than their attributes
        size = getattr(value, "shape", getattr(value, "size", ""))
        state.update(f"buffer {getattr(value, 'mode', '')} {size}".encode())
        state.update(value.tobytes())
    elif isinstance(value, (set, frozenset)):
        state.update(repr(sorted(map(repr, value))).encode())
    elif depth:
        # default_collate makes lists of tuples.
        name = "list" if type(value) is tuple else type(value).__qualname__
        state.update(f"{name} (".encode())
        for name, part in members(value):
            state.update(f"{name}:".encode())
            _feed(state, part, depth - 1)
        state.update(b")")


def _plain(value: Any) -> Any:
    """A value whose bytes say what it holds: the parts of a nested tensor, the array of a table."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return value.unbind()
    if has(value, "to_numpy"):
        value = value.to_numpy()
    # The bytes of objects are addresses.
    are_objects = is_array(value) and getattr(value.dtype, "hasobject", False)
    return value.tolist() if are_objects else value


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its values lie in memory as an array: it is not sparse, nor on a device."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The values of a tensor, and the places of a sparse one's; nothing of one on a device."""
    if tensor.layout is torch.sparse_coo:
        whole = tensor.detach().coalesce()
        return tensor_bytes(whole.indices()) + tensor_bytes(whole.values())
    if not is_plain(tensor) or not tensor.numel():
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())


def _is_short(number: float) -> bool:
    """Whether it fits 64 bits."""
    return type(number) is not int or -(2**63) <= number < 2**63
