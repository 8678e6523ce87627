"""What tells one tar from another: size, time, and a digest of its content at some places."""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

# Where content is looked at: so many pages at even distances, and the end. tar fills up to 10 KB
# there with zeros, so that the end holds content too: a member that grew anywhere has moved it.
PLACES = 16
PAGE = 4096
END = 1 << 15


class Stamp(NamedTuple):
    """A tar as it was when it was indexed: bytes, time, and `digest` of its content at some
    places."""

    size: int | None = None
    mtime_ns: int | None = None
    digest: str = ""

    @classmethod
    def of(cls, path: str | os.PathLike) -> Stamp:
        """The stamp of a file as it is now. Raises OSError, and ValueError for a zero byte in the
        path."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            state = os.fstat(descriptor)
            return cls(state.st_size, state.st_mtime_ns, digest(descriptor, state.st_size))
        finally:
            os.close(descriptor)


def digest(descriptor: int, size: int) -> str:
    """sha256 of an open file of `size` bytes at PLACES places and its end, 96 KB at most: a copy's
    is equal.

    A file that was written anew with other content has another, unless what changed lies between
    the places and moved nothing behind it.
    """
    content = hashlib.sha256(size.to_bytes(8, "little"))
    for place in range(PLACES):
        content.update(os.pread(descriptor, PAGE, size * place // PLACES))
    content.update(os.pread(descriptor, END, max(size - END, 0)))
    return content.hexdigest()
