"""JSON and JSON lines as people really write them: what is repaired (BOM, NaN, tabs in texts), and
which lines are cut, too long or in another encoding."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from millrace.common import atomic
from millrace.common.errors import Damaged, Unusable

# Bytes of a line; lists of a clique's versions, or of words, take some hundred kilobytes.
LONGEST_LINE = 16 << 20
# Lists and objects take 80 bytes of memory each, and of a file at least two: from this size on, a
# file with one in 16 bytes is no text with numbers, and would take 30 times its size.
_LARGE = 4 << 20
_BYTES_PER_LIST = 16
_DEEPEST = 254  # lists and objects in each other that orjson writes; it reads more
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class BadJson(Unusable, ValueError):
    """The text is not JSON."""


def loads(raw: bytes) -> tuple[Any, list[str]]:
    """Parse one JSON document; return it and the repairs that were needed: `json_bom`,
    `json_control`, `json_nan`.

    Raises BadJson with reason `json_empty`, `json_encoding` or `json_damaged` and
    the place of the damage.
    """
    repairs: list[str] = []
    if raw[:3] == b"\xef\xbb\xbf":
        raw = raw[3:]
        repairs = ["json_bom"]
    if not raw.strip(b" \t\r\n\0"):
        raise BadJson("json_empty", "nothing but blanks or zero bytes, if anything")
    lists = raw.count(b"[") + raw.count(b"{")
    if len(raw) > _LARGE and lists * _BYTES_PER_LIST > len(raw):
        problem = f"{len(raw) >> 20} MiB that hold {lists:,} lists and objects, and little else"
        raise BadJson("json_damaged", problem)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as strict:
        if strict.msg.startswith("unexpected end of data"):
            place = f"line {strict.lineno}, column {strict.colno}"
            raise BadJson("json_damaged", f"cut off at {place}: what follows is missing") from None
        value, repairs = _loads_leniently(raw, repairs, strict)
    if lists > _DEEPEST:
        _check_depth(value)
    return value, repairs


def _check_depth(value: Any) -> None:
    """Raise BadJson for what could not be written again."""
    try:
        orjson.dumps(value)
    except TypeError:
        problem = f"lists and objects lie in each other, more than {_DEEPEST} deep"
        raise BadJson("json_damaged", problem) from None


def _loads_leniently(raw: bytes, repairs: list[str], strict: ValueError) -> tuple[Any, list[str]]:
    """What orjson refuses and json reads: NaN and Infinity, line breaks within texts."""
    text = _text(raw, strict)
    constants: list[str] = []

    def constant(name: str) -> float:
        constants.append(name)
        return float(name.replace("Infinity", "inf"))

    def real(digits: str) -> float:
        value = float(digits)
        if math.isfinite(value):
            return value
        return constant("-Infinity" if value < 0 else "Infinity")

    parse = partial(json.loads, parse_constant=constant, parse_float=real, parse_int=_integer)
    has_controls = False
    try:
        try:
            value = parse(text)
        except json.JSONDecodeError as error:
            # A line break or tab typed into a string.
            has_controls = error.msg.startswith("Invalid control character")
            value = parse(text, strict=False)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise BadJson("json_damaged", f"not valid JSON, or nested too deeply ({strict})") from None
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        problem = f"{half} stands alone in a text: half a character, which no UTF-8 file can hold"
        raise BadJson("json_damaged", problem) from None
    except ValueError as lenient:
        place = lenient if isinstance(lenient, json.JSONDecodeError) else strict
        raise BadJson("json_damaged", f"not valid JSON ({place})") from None
    if has_controls:
        repairs = [*repairs, "json_control"]
    if constants:
        repairs = [*repairs, "json_nan"]
    return value, repairs


def _text(raw: bytes, strict: ValueError) -> str:
    """The text of a document in UTF-8; raises BadJson for other encodings."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        is_json = raw.lstrip()[:1] in (b"{", b"[") or raw[:2] in _UTF_16
        if is_json and error.reason != "unexpected end of data":
            problem = f"not in UTF-8 (byte {error.start}); convert the file to UTF-8"
            raise BadJson("json_encoding", problem) from None
        raise BadJson("json_damaged", f"not valid JSON ({strict})") from None


def _integer(text: str) -> int | float:
    # As orjson does: a whole number beyond 64 bits is a float.
    if len(text) <= 20:
        value = int(text)
        if -(2**63) <= value < 2**64:
            return value
    return float(text)


def read(path: str | os.PathLike) -> Any:
    """Read a JSON file that Millrace wrote itself; raises Damaged (a ValueError) if it is none
    now."""
    try:
        return orjson.loads(Path(path).read_bytes())
    except orjson.JSONDecodeError as error:
        raise Damaged(path, error) from None


def read_or(default: Any, path: str | os.PathLike) -> Any:
    """Read such a file that can be made anew: `default` if it is missing or damaged."""
    try:
        return read(path)
    except (FileNotFoundError, ValueError):
        return default


def lines(
    path: str | os.PathLike, advance: Callable[[int], object] = lambda size: None
) -> Iterator[tuple[int, Any | BadJson, list[str]]]:
    """Yield (row number from 1, value or BadJson, repairs) for every line that is not blank.

    A line that is too long to be a record is damaged JSON too, and is not held. `advance` gets the
    bytes of each line.
    """
    with open(path, "rb") as handle:
        for number, raw in enumerate(_lines(handle), 1):
            advance(len(raw))
            if len(raw) > LONGEST_LINE:
                problem = (
                    f"the line is longer than {LONGEST_LINE >> 20} MiB; is the file one JSON array?"
                )
                yield number, BadJson("json_damaged", problem), []
                continue
            if number == 1 and raw[:2] in _UTF_16:
                yield 1, BadJson("json_encoding", "the file is UTF-16; convert it to UTF-8"), []
                return
            if not (raw := raw.rstrip()):
                continue
            try:
                value, repairs = loads(raw)
                yield number, value, repairs
            except BadJson as bad:
                yield number, bad, []


def whole_lines(path: str | os.PathLike) -> list[Any]:
    """The lines of a log of ours, if there is one: a killed run may have cut its last one."""
    if not os.path.exists(path):
        return []
    return [value for _, value, _ in lines(path) if not isinstance(value, BadJson)]


def _lines(handle: BinaryIO) -> Iterator[bytes]:
    """The lines; of longer ones than LONGEST_LINE the beginning, which is longer than that."""
    while raw := handle.readline(LONGEST_LINE + 1):
        rest = raw
        while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
            rest = handle.readline(LONGEST_LINE + 1)
        yield raw


def write_lines(path: str | os.PathLike, rows: Iterable[Any]) -> None:
    """Write one compact JSON document a line, atomically, keys in the order given."""
    with atomic.replacing(path) as partial, open(partial, "wb") as handle:
        for row in rows:
            handle.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def canonical(value: Any) -> bytes:
    """Compact JSON with sorted keys: equal for values that differ only in key order or white
    space."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def digest(value: Any) -> str:
    """A short digest of a JSON value, the same whatever its key order."""
    return hashlib.sha256(canonical(value)).hexdigest()[:32]


def head_tail_digest(path: str, block: int = 65536) -> str:
    """Digest of a file's first and last `block` bytes: enough to tell files of equal size apart
    cheaply."""
    with open(path, "rb") as handle:
        seen = hashlib.sha256(handle.read(block))
        size = os.fstat(handle.fileno()).st_size
        handle.seek(max(size - block, min(block, size)))
        seen.update(handle.read(block))
    return seen.hexdigest()[:32]
