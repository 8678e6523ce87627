"""Tar headers: one member's group of header blocks (GNU, PAX, USTAR, V7) as name, offset and
size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import adler32

BLOCK = 512
MAX_EXTENDED_BYTES = 1 << 26
"""An extended header (long name, PAX records) above this is taken for damage."""
MAX_BODY_BYTES = 1 << 62
"""A member above this is damage too: where it ends is no address (base-256 fields hold up to 88 bits)."""

# Kinds of members. Those up to SYMLINK have bytes to read.
FILE, HARD_LINK, SYMLINK, DIRECTORY, SPARSE, BROKEN_LINK, SPECIAL, MULTI_VOLUME, CUT = range(9)

_RECORD = re.compile(rb"(\d+) ([^=]+)=")
_GLOBAL_KEYS = frozenset((b"path", b"linkpath", b"size", b"GNU.sparse.name", b"GNU.sparse.major"))
_SPARSE_KEYS = frozenset(
    (b"GNU.sparse.map", b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.major")
)

Fetch = Callable[[int, int], bytes]
Records = dict[bytes, bytes]


class OddHeader(Exception):
    """The walk cannot go on at `offset`; subclasses say why."""

    def __init__(self, offset: int, text: str) -> None:
        self.offset, self.text = offset, text
        super().__init__(f"{text} at byte {offset:,}")


class ZeroBlock(OddHeader):
    """A block of zeros: the end of the archive, or of its first part."""


class BadHeader(OddHeader):
    """Not a tar header: wrong checksum, or a field that is no number."""


class CutHeader(OddHeader):
    """The file ends inside a header."""


class CutBody(OddHeader):
    """The file ends inside a body; `group` is the member which lost its end."""

    group: Group


@dataclass(slots=True)
class Group:
    """One member: raw `name` and `link`, `offset` and `size` of its bytes, `after`: the next
    group."""

    kind: int
    name: bytes
    link: bytes
    offset: int
    size: int
    after: int


@dataclass(slots=True)
class _Extended:
    """What the extended headers before a header say about it; the first to say it wins, as in
    `tarfile`."""

    name: bytes | None = None
    link: bytes | None = None
    records: Records = field(default_factory=dict)


def number(raw: bytes) -> int | None:
    """A numeric field: octal, or base-256 if its first bit is set. None if it is neither."""
    digits = raw.rstrip(b"\0 ")
    if digits.isdigit():
        return int(digits, 8) if not digits.translate(None, b"01234567") else None
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
    """Whether the sum over the header, its checksum field taken as 8 spaces, is the one it records.

    As `tarfile` and GNU tar do, the sum over signed bytes of some old writers is accepted too.
    """
    field = block[148:156]
    recorded = number(field)
    # The low half of adler32 is 1 + the sum of the bytes if that is below 65521: this is mostly
    # enough.
    if (adler32(block) & 0xFFFF) - 1 - sum(field) + 8 * 32 == recorded:
        return True
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if recorded == unsigned:
        return True
    high = sum(1 for byte in block[:148] + block[156:] if byte > 127)
    return high > 0 and recorded == unsigned - 256 * high


def is_header(block: bytes) -> bool:
    """Whether the block is a tar header of any dialect, going by its checksum."""
    return len(block) == BLOCK and block[0:148].strip(b"\0") != b"" and checksum_matches(block)


def rounded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def read_group(fetch: Fetch, start: int, total: int, shared: Records) -> tuple[Group | None, int]:
    """Read the member whose header group starts at `start`; `fetch(offset, size)` is short only at
    the end.

    Returns the member, or None if only a global PAX header stood there, and the offset of the next
    group. `shared` holds the global PAX records which matter and is updated. `total`: size of the
    file in bytes. Raises OddHeader.
    """
    position, extended = start, _Extended()
    while True:
        block = fetch(position, BLOCK)
        if len(block) < BLOCK:
            raise CutHeader(start, "the file ends inside a header")
        if not checksum_matches(block):
            if not block.strip(b"\0"):
                if position > start:
                    raise BadHeader(start, "an extended header without a member after it")
                raise ZeroBlock(start, "a block of zeros")
            raise BadHeader(
                start, f"bad checksum {'of' if position == start else 'after'} a header"
            )
        typeflag = block[156:157]
        if typeflag not in b"LKxXg":
            return _member(fetch, block, position, start, total, extended, shared)
        size = number(block[124:136])
        if size is None or not 0 <= size <= MAX_EXTENDED_BYTES:
            raise BadHeader(start, "an extended header of an impossible size")
        payload = fetch(position + BLOCK, rounded(size))[:size]
        if len(payload) < size:
            raise CutHeader(start, "the file ends inside an extended header")
        position += BLOCK + rounded(size)
        if typeflag == b"L":
            extended.name = _text(payload) if extended.name is None else extended.name
        elif typeflag == b"K":
            extended.link = _text(payload) if extended.link is None else extended.link
        else:
            records = _records(payload, start)
            if typeflag == b"g":
                shared.update((key, records[key]) for key in _GLOBAL_KEYS & records.keys())
                # Any global header ends its group, so that every member's own group starts at its
                # own header.
                if position - BLOCK - rounded(size) == start:
                    return None, position
            else:
                if b"path" in records and extended.name is None:
                    extended.name = records[b"path"].rstrip(b"/")
                if b"linkpath" in records and extended.link is None:
                    extended.link = records[b"linkpath"]
                extended.records = {**records, **extended.records}


def _text(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _records(payload: bytes, start: int) -> Records:
    """PAX records `length key=value\\n`; values stay bytes, so any hdrcharset comes back as
    written."""
    records, at = {}, 0
    while match := _RECORD.match(payload, at):
        length = int(match[1]) if len(match[1]) < 12 else 0
        if at + length > len(payload) or at + length <= match.end():
            raise BadHeader(start, "a PAX record of an impossible length")
        records[match[2]] = payload[match.end() : at + length - 1]
        at += length
    return records


def _member(
    fetch: Fetch,
    block: bytes,
    at: int,
    start: int,
    total: int,
    extended: _Extended,
    shared: Records,
) -> tuple[Group, int]:
    typeflag, magic = block[156:157], block[257:265]
    name, link = _text(block[:100]), _text(block[157:257]) if typeflag in b"12" else b""
    records = {**shared, **extended.records} if shared else extended.records
    old_sparse = typeflag == b"S"
    directory = typeflag == b"5" or (typeflag == b"\0" and name.endswith(b"/"))
    name = name.rstrip(b"/") if directory else name
    # GNU's own header has other fields where POSIX has the prefix; star's is shorter.
    if magic[:5] == b"ustar" and magic != b"ustar  \0" and block[345] and not old_sparse:
        name = _text(block[345:476] if block[508:512] == b"tar\0" else block[345:500]) + b"/" + name
    if extended.name is not None:
        name = extended.name
    elif b"path" in shared:
        name = shared[b"path"].rstrip(b"/")
    if records:
        name = records.get(b"GNU.sparse.name", name)
    link = shared.get(b"linkpath", link) if extended.link is None else extended.link
    size = number(block[124:136])
    if (digits := records.get(b"size")) is not None:
        size = int(digits) if digits.isdigit() and len(digits) < 20 else None
    if size is None or size < 0:
        raise BadHeader(start, "a size which is no number")
    if size > MAX_BODY_BYTES:
        raise BadHeader(start, "a size which no file can have")
    data = at + BLOCK
    if old_sparse:
        more = block[482]
        while more:
            extra = fetch(data, BLOCK)
            if len(extra) < BLOCK:
                raise CutHeader(start, "the file ends inside a sparse header")
            data, more = data + BLOCK, extra[504]
    skipped = 0
    if directory or typeflag in b"12346":
        if size and _has_body(fetch, data, size, total):
            skipped = rounded(size)
        name = name.rstrip(b"/") if directory else name
        kind = DIRECTORY if directory else {b"1": HARD_LINK, b"2": SYMLINK}.get(typeflag, SPECIAL)
        if kind == HARD_LINK and skipped:
            kind = FILE  # with bytes of its own, whether its target is there or not
        else:
            size = 0
    elif old_sparse or (records and _SPARSE_KEYS & records.keys()):
        kind = SPARSE
    else:
        # As POSIX asks (and tarfile does), an unknown type is a regular file.
        kind = MULTI_VOLUME if typeflag == b"M" else SPECIAL if typeflag in b"VDN" else FILE
    after = data + (skipped or rounded(size))
    group = Group(kind, name, link, data, size, after)
    if data + size > total:
        error = CutBody(start, "the file ends inside the body of a member")
        error.group = group
        raise error
    return group, after


def _has_body(fetch: Fetch, data: int, size: int, total: int) -> bool:
    """Whether the `size` bytes which a directory or a link speaks of are there.

    Most writers mean none (POSIX: what a directory may take up; a link's target), but pax -o
    linkdata and old ones write them. As libarchive does: not if a header follows at once; and only
    if one follows behind them.
    """
    behind = data + rounded(size)
    if behind > total or not fetch(data, BLOCK).strip(b"\0") or is_header(fetch(data, BLOCK)):
        return False
    block = fetch(behind, BLOCK)
    return not block.strip(b"\0") or is_header(block)
