"""What a sample is known by: its bare name in its tar, the tar's name wherever it lies, and a
64-bit id of both."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.common.hashing import hash_strings, mix

_PREFIX = re.compile(rb"(?:\./+)+")


def bare_name(name: bytes) -> bytes:
    """The name without its `./` prefix (the prefix, not the characters: `.hidden` stays)."""
    if not name.startswith(b"./") or len(name) == 2:
        return name
    if name[2] not in b"./":
        return name[2:]
    return _PREFIX.sub(b"", name, count=1)


def bare_names(names: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Member names without a `./` prefix, with `a/b` for `a//b` and `a/./b`; `.hidden` stays
    `.hidden`."""
    if pc.any(pc.starts_with(names, "./")).as_py():
        names = pc.replace_substring_regex(names, r"^(\./+)+", "")
    raw = _joined(names)
    if b"//" in raw or b"/./" in raw:
        names = pc.replace_substring_regex(names, r"/+(\./+)*", "/")
    return names


def with_unicode_forms(members: pa.Table) -> pa.Table:
    """`members` (tar, name, ...) of whole tars, and again under its other form, NFC or NFD, what
    has one.

    A form that is a name in that tar, or that of two names, stays out: only what is unambiguous
    matches.
    """
    if _joined(members["name"]).isascii():
        return members
    is_other = pc.match_substring_regex(members["name"], r"[^\x00-\x7f]")
    rows = pc.indices_nonzero(is_other)
    tars = members["tar"].take(rows).to_pylist()
    names = members["name"].take(rows).to_pylist()
    # Several members of one name are one: the last counts.
    row_of: dict[tuple[int, bytes], int] = {}
    for tar, name, row in zip(tars, names, rows.to_pylist(), strict=True):
        row_of[tar, name] = row

    forms = _unambiguous_forms(row_of)
    rows_of_forms = pa.array(list(forms.values()), pa.int64())
    again = members.take(rows_of_forms)
    column = members.column_names.index("name")
    other_names = pa.array([name for _, name in forms], members["name"].type)
    again = again.set_column(column, "name", other_names)
    return pa.concat_tables([members, again])


def _unambiguous_forms(row_of: dict[tuple[int, bytes], int]) -> dict[tuple[int, bytes], int]:
    """The rows of (tar, name), by the other Unicode forms of the names that mean one member
    only."""
    rows_of_form: dict[tuple[int, bytes], set[int]] = defaultdict(set)
    for (tar, name), row in row_of.items():
        text = name.decode(errors="surrogateescape")
        for form in ("NFC", "NFD"):
            normal = unicodedata.normalize(form, text)
            written = normal.encode(errors="surrogateescape")
            rows_of_form[tar, written].add(row)

    unambiguous = {}
    for place, rows in rows_of_form.items():
        if len(rows) == 1 and place not in row_of:
            unambiguous[place] = rows.pop()
    return unambiguous


def _joined(texts: pa.Array | pa.ChunkedArray) -> bytes:
    """All texts (or bytes) after each other: one search in it is ten times faster than a search in
    each."""
    array = texts
    if isinstance(texts, pa.ChunkedArray):
        array = texts.combine_chunks()
    _, offsets, body = array.buffers()
    if not len(array) or body is None:
        return b""

    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    kind = np.int64 if is_large else np.int32
    ends = np.frombuffer(offsets, kind)[array.offset :]
    first, last = ends[0], ends[len(array)]
    return memoryview(body)[first:last].tobytes()


def portable_names(tars: list[str]) -> list[str]:
    """Tar paths relative to the folder they share: moving that folder changes no identity."""
    folders = [os.path.dirname(path) for path in tars if path.startswith("/")]
    if not folders:
        return tars
    shared = os.path.commonpath(folders)
    names = []
    for path in tars:
        if path.startswith("/"):
            names.append(path.removeprefix(shared).lstrip("/"))
        else:
            names.append(path)
    return names


def sample_ids(tar_hashes: np.ndarray, members: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """uint64 ids of (tar, member): `tar_hashes` are of the tars' portable names, members are
    bare."""
    of_members = hash_strings(members)
    return mix(of_members + mix(tar_hashes))
