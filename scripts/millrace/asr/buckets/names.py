"""Names of members that differ in their spelling only: the other Unicode form, and the nearest
name."""

from __future__ import annotations

import bisect
import difflib
import posixpath
import unicodedata
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests import columns as mc


def with_unicode_forms(members: pa.Table) -> pa.Table:
    """`members` (tar, name, ...) of whole tars, and again under its other form, NFC or NFD, what
    has one.

    A form that is a name in that tar, or that of two names, stays out: only what is unambiguous
    matches.
    """
    if mc.joined(members["name"]).isascii():
        return members
    odd = pc.indices_nonzero(pc.match_substring_regex(members["name"], r"[^\x00-\x7f]"))
    names, tars = (members[column].take(odd).to_pylist() for column in ("name", "tar"))
    known = set(zip(tars, names, strict=True))
    rows: dict[tuple[int, bytes], dict[bytes, int]] = {}
    for at, tar, name in zip(odd.to_pylist(), tars, names, strict=True):
        for form in ("NFC", "NFD"):
            text = unicodedata.normalize(form, name.decode(errors="surrogateescape"))
            rows.setdefault((tar, text.encode(errors="surrogateescape")), {})[name] = at
    rows = {key: ats for key, ats in rows.items() if len(ats) == 1 and key not in known}
    again = members.take(pa.array([at for ats in rows.values() for at in ats.values()], pa.int64()))
    forms = pa.array([name for _, name in rows], members["name"].type)
    return pa.concat_tables(
        [members, again.set_column(again.column_names.index("name"), "name", forms)]
    )


class Names:
    """The names in one tar, to find the nearest to one that is not there."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self.names = sorted(name.decode(errors="replace") for name in names)
        self.stems = {_stem(name): name for name in self.names}

    def nearest(self, name: str) -> str:
        """A name that differs in folder, suffix or case, else one of similar letters, else ""."""
        at = bisect.bisect(self.names, name)
        near = self.names[max(at - 250, 0) : at + 250]
        return self.stems.get(_stem(name)) or next(
            iter(difflib.get_close_matches(name, near, 1)), ""
        )


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0].casefold()
