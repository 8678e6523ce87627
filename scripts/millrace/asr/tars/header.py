"""One tar header of any dialect (GNU, PAX, USTAR, V7) as name, kind, offset and size: which of its
fields count, and what is damage."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import adler32

BLOCK = 512
MAX_EXTENDED_BYTES = 1 << 26
"""An extended header (long name, PAX records) above this is taken for damage."""
MAX_GROUP = 16
"""A member with more headers than this is damage: behind damage each is read again."""
MAX_BODY_BYTES = 1 << 62
"""A member above this is damage too: where it ends is no address (base-256 fields hold up to 88
bits)."""

# Kinds of members. Those up to SYMLINK have bytes to read.
FILE, HARD_LINK, SYMLINK, DIRECTORY, SPARSE, BROKEN_LINK, SPECIAL, MULTI_VOLUME = range(8)
# By the type in a header; all others are files.
_KINDS = {
    b"1": HARD_LINK,
    b"2": SYMLINK,
    b"3": SPECIAL,
    b"4": SPECIAL,
    b"5": DIRECTORY,
    b"6": SPECIAL,
    b"D": SPECIAL,
    b"M": MULTI_VOLUME,
    b"N": SPECIAL,
    b"S": SPARSE,
    b"V": SPECIAL,
}
_DEVICES = b"346"

_RECORD = re.compile(rb"(\d+) ([^=]+)=")
# What no global header may say of all members after it, nor two headers differently of one.
_OF_ONE_MEMBER = frozenset((b"path", b"linkpath", b"size"))
_SPARSE_KEYS = frozenset(
    (b"GNU.sparse.map", b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.major")
)

Fetch = Callable[[int, int], bytes]
Records = dict[bytes, bytes]


class OddHeader(Exception):
    """The walk cannot go on at `offset`; subclasses say why."""

    def __init__(self, offset: int, text: str) -> None:
        self.offset = offset
        self.text = text
        super().__init__(f"{text} at byte {offset:,}")


class ZeroBlock(OddHeader):
    """A block of zeros: the end of the archive, or of its first part."""


class BadHeader(OddHeader):
    """Not a tar header: wrong checksum, or a field that is no number."""


class CutMember(OddHeader):
    """The file ends inside a header or a body."""


@dataclass(slots=True)
class Group:
    """One member: raw `name` and `link`, `offset` and `size` of its bytes."""

    kind: int
    name: bytes
    link: bytes
    offset: int
    size: int


def number(raw: bytes) -> int | None:
    """A numeric field: octal, or base-256 if its first bit is set. None if it is neither."""
    if raw[0] & 0x80:
        if raw[0] not in (0x80, 0xFF):
            return None
        value = int.from_bytes(raw[1:], "big")
        return value if raw[0] == 0x80 else value - (1 << 8 * (len(raw) - 1))
    digits = raw.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    return int(digits, 8) if digits.isdigit() and not digits.translate(None, b"01234567") else None


def checksum_matches(block: bytes) -> bool:
    """Whether the sum over the header, its checksum field taken as 8 spaces, is the one it
    records."""
    field = block[148:156]
    recorded = number(field)
    if recorded is None:
        return False
    byte_sum = recorded - 8 * 32 + sum(field)
    # The low half of adler32 is 1 + the sum of the bytes, modulo 65521: in one call.
    return adler32(block) & 0xFFFF == (1 + byte_sum) % 65521


def is_header(block: bytes) -> bool:
    """Whether the block is a tar header of any dialect, going by its checksum."""
    return len(block) == BLOCK and block[0:148].strip(b"\0") != b"" and checksum_matches(block)


def rounded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


@dataclass(slots=True)
class GroupReader:
    """Reads the group that starts at `start`: extended headers, and the header of the member that
    they are about.

    `fetch(offset, size)` is short only at the end; `total`: size of the file in bytes. `records`
    are what extended headers say; a GNU long name or link is the record of that name.
    """

    fetch: Fetch
    start: int
    total: int
    records: Records = field(default_factory=dict)

    def read(self) -> tuple[Group | None, int]:
        """The member, or None if only a global PAX header stood there, and the offset of the next
        group. Raises OddHeader."""
        position = self.start
        for _ in range(MAX_GROUP):
            block = self._header(position)
            typeflag = block[156:157]
            if typeflag not in b"LKxXg":
                return self._member(block, position)
            payload = self._payload(block, position)
            after = position + BLOCK + rounded(len(payload))
            if typeflag != b"g":
                self._extend(typeflag, payload)
            else:
                if _OF_ONE_MEMBER & _records(payload, self.start).keys():
                    raise BadHeader(self.start, "a global header with a path or size")
                # It ends its group, so that every member's own group starts at its own header.
                if position == self.start:
                    return None, after
            position = after
        raise BadHeader(self.start, f"more than {MAX_GROUP} headers of one member")

    def _header(self, position: int) -> bytes:
        block = self.fetch(position, BLOCK)
        if len(block) < BLOCK:
            raise CutMember(self.start, "the file ends inside a header")
        if checksum_matches(block):
            return block
        is_first = position == self.start
        if block.strip(b"\0"):
            raise BadHeader(self.start, f"bad checksum {'of' if is_first else 'after'} a header")
        if is_first:
            raise ZeroBlock(self.start, "a block of zeros")
        raise BadHeader(self.start, "an extended header without a member after it")

    def _payload(self, block: bytes, position: int) -> bytes:
        """What stands in an extended header."""
        size = number(block[124:136])
        if size is None or not 0 <= size <= MAX_EXTENDED_BYTES:
            raise BadHeader(self.start, "an extended header of an impossible size")
        payload = self.fetch(position + BLOCK, rounded(size))[:size]
        if len(payload) < size:
            raise CutMember(self.start, "the file ends inside an extended header")
        return payload

    def _extend(self, typeflag: bytes, payload: bytes) -> None:
        """Take in a GNU long name (L) or link (K), or PAX records."""
        if typeflag == b"L":
            records = {b"path": _text(payload)}
        elif typeflag == b"K":
            records = {b"linkpath": _text(payload)}
        else:
            records = _records(payload, self.start)
            if b"path" in records:
                records[b"path"] = records[b"path"].rstrip(b"/")

        # Of two names tarfile takes the first, GNU tar the last.
        twice = _OF_ONE_MEMBER & records.keys() & self.records.keys()
        if any(records[key] != self.records[key] for key in twice):
            raise BadHeader(self.start, "two paths, links or sizes of one member")
        self.records |= records

    def _member(self, block: bytes, position: int) -> tuple[Group, int]:
        """The member whose own header lies at `position`, and the offset of the next group."""
        typeflag = block[156:157]
        kind = _kind(typeflag, block, self.records)
        name = self._name(block)
        size = self._size(block)
        link = self._link(block) if kind in (HARD_LINK, SYMLINK) else b""
        if kind == DIRECTORY:
            name = name.rstrip(b"/")

        data = position + BLOCK
        after = data + rounded(size)
        if kind in (DIRECTORY, HARD_LINK, SYMLINK) or typeflag in _DEVICES:
            # What they say of a size is what a directory may take up, or a link's target: as
            # tarfile, bytes behind them (pax -o linkdata) are taken for damage.
            size = 0
            after = data

        if data + size > self.total:
            raise CutMember(self.start, "the file ends inside the body of a member")
        return Group(kind, name, link, data, size), after

    def _name(self, block: bytes) -> bytes:
        if b"path" in self.records:
            return self.records[b"path"]
        name = _text(block[:100])
        # GNU's own header has other fields where POSIX has the prefix.
        is_posix = block[257:262] == b"ustar" and block[257:265] != b"ustar  \0"
        if is_posix and block[345] and block[156:157] != b"S":
            return _text(block[345:500]) + b"/" + name
        return name

    def _link(self, block: bytes) -> bytes:
        return self.records.get(b"linkpath", _text(block[157:257]))

    def _size(self, block: bytes) -> int:
        size = number(block[124:136])
        digits = self.records.get(b"size")
        if digits is not None:
            size = int(digits) if digits.isdigit() and len(digits) < 20 else None
        if size is None or size < 0:
            raise BadHeader(self.start, "a size which is no number")
        if size > MAX_BODY_BYTES:
            raise BadHeader(self.start, "a size which no file can have")
        return size


def _kind(typeflag: bytes, block: bytes, records: Records) -> int:
    """What a member is by its header. As POSIX asks (and tarfile does), an unknown type is a
    regular file."""
    if typeflag == b"\0" and _text(block[:100]).endswith(b"/"):
        return DIRECTORY
    kind = _KINDS.get(typeflag, FILE)
    if kind == FILE and records and _SPARSE_KEYS & records.keys():
        return SPARSE
    return kind


def _text(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _records(payload: bytes, start: int) -> Records:
    """PAX records `length key=value\\n`; values stay bytes, so any hdrcharset comes back as
    written."""
    records = {}
    at = 0
    while match := _RECORD.match(payload, at):
        length = int(match[1]) if len(match[1]) < 12 else 0
        if at + length <= match.end() or payload[at + length - 1 : at + length] != b"\n":
            raise BadHeader(start, "a PAX record of an impossible length")
        records[match[2]] = payload[match.end() : at + length - 1]
        at += length
    if payload[at:].strip(b"\0"):
        raise BadHeader(start, "PAX records that are none")
    return records
