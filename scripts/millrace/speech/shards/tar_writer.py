"""Tar files whose bytes depend on names and contents only; the writer knows every member's offset.

Headers are ustar: mode 0644, uid, gid and mtime 0, no user names, regular files only. A PAX record
comes before a member whose name is longer than 100 bytes or not ASCII. The file ends with zeros up
to a multiple of 10,240 bytes (at least two blocks), as GNU tar and `tarfile` end it.
"""

from __future__ import annotations

import hashlib
import os

BLOCK = 512
RECORD = 20 * BLOCK
# Octal digits that fit into the size field of a ustar header: 8 GiB - 1.
MAX_USTAR_SIZE = 0o77777777777
_BUFFER = 1 << 20  # one call of the kernel per some samples

_MODE_IDS = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_TAIL = bytes(100) + b"ustar\x0000" + bytes(32) * 2 + b"0000000\0" * 2 + bytes(155) + bytes(12)
_TAIL_SUM = sum(_TAIL)
_ZEROS = bytes(BLOCK)


def _ustar(name: bytes, size: int, kind: bytes) -> bytes:
    """One 512-byte header; POSIX: the checksum is the sum of all bytes with its own field read as
    blanks."""
    head = name + bytes(100 - len(name)) + _MODE_IDS + b"%011o\0" % size + _MTIME
    checksum = sum(head) + 8 * 32 + kind[0] + _TAIL_SUM
    return head + b"%06o\0 " % checksum + kind + _TAIL


def member_header(name: str, size: int) -> bytes:
    """The header blocks of a regular file: 512 bytes, or more if a PAX record is needed."""
    raw = name.encode("utf-8")
    if not raw or b"\0" in raw or size > MAX_USTAR_SIZE:
        raise ValueError(f"{name!r} of {size} bytes cannot be a tar member")
    records = b""
    if len(raw) > 100 or not name.isascii():
        records += _pax_record(b"path", raw)
    if not records:
        return _ustar(raw, size, b"0")
    # Readers that know no PAX see the shortened name.
    short = name.encode("ascii", "replace")[:100]
    pax = _ustar(b"././@PaxHeader", len(records), b"x")
    padding = bytes(-len(records) % BLOCK)
    return pax + records + padding + _ustar(short, size, b"0")


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """`<length> <keyword>=<value>\\n`, where the length counts its own digits."""
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    if length != rest + len(str(length)):
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


def member_bytes(name_bytes: int, size: int) -> int:
    """Most bytes that a member takes in a tar, from the bytes of its name and of its body."""
    pax = 0 if name_bytes <= 100 else BLOCK + _blocks(name_bytes + 16)
    return pax + BLOCK + _blocks(size)


def member_size(name: str, size: int) -> int:
    """Bytes that a member takes in a tar, from its name and the bytes of its body."""
    return len(member_header(name, size)) + _blocks(size)


def _blocks(size: int) -> int:
    return size + -size % BLOCK


class TarWriter:
    """Write a tar file at `path`, member after member.

    Known once the file is closed: `size` (bytes), `sha256` (hexadecimal, of the whole file) and
    `member_sha256` (offset -> hexadecimal digest, of the members added with hashed=True). Leaving
    the context by an exception closes the file without an end mark: it is incomplete, `sha256`
    stays None, and the caller removes it (see `millrace.common.atomic`).
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.size = 0
        self.sha256: str | None = None
        self.member_sha256: dict[int, str] = {}
        self._file = open(path, "wb", _BUFFER)  # noqa: SIM115
        self._digest = hashlib.sha256()

    def add(self, name: str, body: bytes, hashed: bool = False) -> int:
        """Append a regular file; return the offset of its first body byte in the tar."""
        self._write(member_header(name, len(body)))
        offset = self.size
        if hashed:
            self.member_sha256[offset] = hashlib.sha256(body).hexdigest()
        self._write(body)
        self._write(_ZEROS[: -len(body) % BLOCK])
        return offset

    def _write(self, part: bytes) -> None:
        self._file.write(part)
        self._digest.update(part)
        self.size += len(part)

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, exc_type: type | None, *exc: object) -> None:
        with self._file:
            if exc_type is not None:
                return
            end = 2 * BLOCK
            end += -(self.size + end) % RECORD
            self._write(bytes(end))
            self.sha256 = self._digest.hexdigest()
