"""A scan of a tar's headers: whether it is whole, damaged, cut, compressed or no tar, what is
recovered behind damage, and which bytes a link has."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from millrace.asr.manifests.identity import bare_name
from millrace.asr.tars import chain as chain_walk
from millrace.asr.tars.chain import BLOCK, Chain, HeaderFile, header_in
from millrace.asr.tars.header import (
    BROKEN_LINK,
    FILE,
    HARD_LINK,
    MULTI_VOLUME,
    SPARSE,
    SYMLINK,
    CutMember,
    OddHeader,
    ZeroBlock,
    is_header,
)
from millrace.asr.tars.stamp import digest

CHAINS = 32
"""Chains of headers walked at once inside one tar: about the queue depth at which storage reads
fastest."""

FAILED = ("missing", "unreadable", "zero_length", "compressed", "not_a_tar", "changed")
PARTIAL = ("damaged", "truncated")
"""Statuses of tars without and with a part of an index; others: ok, empty, unterminated,
concatenated."""

FIRST_READS = 8  # headers read one by one before the tar is split
_PROBE_EVERY = 64  # reads between two looks at whether the tar is in the page cache
_CHUNK = 1 << 18
_LONGEST_END = 2 << 20  # bytes of zeros behind the last member; tar -b 2048 leaves up to 1 MiB
_MAX_NOTES = 12  # of the reason: a tar may be damaged in thousands of places
_ZEROS = bytes(_CHUNK)
_MAGICS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}
# Members without bytes that the reason counts.
_COUNTED = {
    SPARSE: "sparse members are not supported",
    BROKEN_LINK: "links lead to no file in this tar, or to another link",
    MULTI_VOLUME: "members continue in another volume",
}


@dataclass
class TarScan:
    """The members of a tar. The arrays are parallel and in the order of the tar, one row per
    member.

    `names` are raw bytes without a `./` prefix, `written` with it, if the tar has it; `offsets` and
    `sizes` (int64, bytes) are -1 and 0 if the member has no bytes to read, and those of the target
    for a link; `kinds` (uint8) says what it is (header.FILE ...); `recovered` (bool) marks what
    lies after damage. `status` is one word, `reason` what a person should know.
    """

    path: str
    size: int = -1
    mtime_ns: int = -1
    status: str = "ok"
    reason: str = ""
    names: list[bytes] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    kinds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    recovered: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    duplicates: int = 0
    last_header: int = 0
    digest: str = ""


def scan(path: str | os.PathLike, chains: int = CHAINS) -> TarScan:
    """Find all members of the tar at `path`, with up to `chains` chains at once. Never raises: see
    status."""
    name = os.fspath(path)
    before = (-1, -1)
    try:
        state = os.stat(path)
        before = (state.st_size, state.st_mtime_ns)
        if not stat.S_ISREG(state.st_mode):
            return TarScan(name, *before, "unreadable", "not a regular file")
        if not state.st_size:
            return TarScan(name, *before, "zero_length", "the file has no bytes")
        result = TarScan(name, *before)
        with contextlib.closing(HeaderFile(path)) as source:
            _Assembly(source, result).build(chains)
            result.digest = digest(source.fd, result.size)
            after = os.fstat(source.fd)
    except FileNotFoundError:
        return TarScan(name, *before, "missing", "no such file")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return TarScan(name, *before, "unreadable", reason)

    now = (after.st_size, after.st_mtime_ns)
    if now != before:
        return TarScan(name, *now, "changed", "it changed while it was read")
    return result


class _Assembly:
    """The chains of one tar, joined where they land on each other, and the odd places between
    them."""

    def __init__(self, source: HeaderFile, result: TarScan) -> None:
        self.source = source
        self.result = result
        self.names: list[bytes] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.odd: dict[int, tuple[int, bytes]] = {}
        self.recovered_from: int | None = None
        self.notes: list[str] = []
        self.flags: set[str] = set()

    def build(self, chains: int) -> None:
        waiting = self._walk(chains)
        first = waiting.pop(0)
        self._append(first, 0)
        position = first.position
        stop = first.stop
        while True:
            if stop is not None:
                after = self._odd_place(stop)
                if after is None:
                    break
                position = after
            elif position > self.source.total:
                self._note("truncated", "the file ends inside the padding of its last member")
                break
            elif position == self.source.total:
                text = "no end-of-archive mark: complete, or cut exactly between two members"
                self._note("unterminated", text)
                break
            # The landing check: a chain counts only from a header that the walk from the beginning
            # lands on.
            while waiting and (not waiting[0].starts or waiting[0].starts[-1] < position):
                waiting.pop(0)
            # No chain has it: walk on from here, to where the next chain begins.
            row = waiting[0].row_of(position) if waiting else None
            if row is not None:
                walk = waiting.pop(0)
            else:
                limit = self.source.total
                if waiting:
                    limit = next(start for start in waiting[0].starts if start >= position)
                walk = Chain(self.source, position, limit).run()
                row = 0
            self._append(walk, row)
            position = walk.position
            stop = walk.stop
        self._finish()

    def _walk(self, chains: int) -> list[Chain]:
        """Walk from the beginning; if the tar is not in the page cache, go on with more chains at
        once."""
        source = self.source
        first = Chain(source, 0, source.total)
        steps = first.steps()
        cold = False
        for count, (offset, _size) in enumerate(steps):
            cold = cold or not source.cached(offset)
            if count >= FIRST_READS:
                first.silent = _PROBE_EVERY
            if cold and count >= FIRST_READS and chains > 1:
                first.silent = 0
                walks = chain_walk.split(first, chains)
                if len(walks) > 1:
                    chain_walk.run_together(source, [steps, *(walk.steps() for walk in walks[1:])])
                    return walks
                first.silent = source.total
                chains = 1
        return [first]

    def _append(self, chain: Chain, row: int) -> None:
        base = len(self.names) - row
        self.names += chain.names[row:] if row else chain.names
        self.offsets += chain.offsets[row:] if row else chain.offsets
        self.sizes += chain.sizes[row:] if row else chain.sizes
        self.odd.update((base + at, odd) for at, odd in chain.odd.items() if at >= row)
        if chain.starts[row:]:
            self.result.last_header = chain.starts[-1]

    def _odd_place(self, stop: OddHeader) -> int | None:
        """Where to go on after what stopped the walk, or None at the end."""
        if isinstance(stop, CutMember) and self.source.total >= BLOCK:
            self._note("truncated", str(stop))
            return None
        if isinstance(stop, ZeroBlock):
            return self._after_zero_block(stop.offset)
        if not self.names:
            self._note_bad_start(stop)
            return None
        self._note("damaged", str(stop))
        return self._go_on_at(self._next_header(stop.offset + BLOCK))

    def _after_zero_block(self, position: int) -> int | None:
        """Zeros are the end of the archive; or another archive follows, or a header was zeroed."""
        after = self._after_zeros(position)
        if after is None:
            zeros = self.source.total - position
            if zeros > _LONGEST_END:
                text = f"{zeros:,} bytes of zeros at its end, as of a copy that was not finished"
                self._note("truncated", text)
            return None
        if is_header(self.source.pread(BLOCK, after)):
            self._note("concatenated", f"another archive begins at byte {after:,}")
            return after
        self._note("damaged", f"no header at byte {position:,} but zeros and data")
        return self._go_on_at(self._next_header(after))

    def _note_bad_start(self, stop: OddHeader) -> None:
        """The file does not begin with a member."""
        head = self.source.pread(BLOCK, 0)
        for magic, kind in _MAGICS.items():
            if head.startswith(magic):
                remedy = "unpack it, only a plain tar can be read by address"
                self._note("compressed", f"compressed with {kind}: {remedy}")
                return
        self._note("not_a_tar", f"no tar begins here: {stop}")

    def _go_on_at(self, header: int | None) -> int | None:
        """Note what comes after damage; returns `header`, where it begins."""
        if header is None:
            self.notes.append("nothing readable after it")
        elif self.recovered_from is None:
            self.recovered_from = len(self.names)
            self.notes.append(f"members from byte {header:,} on are marked recovered")
        return header

    def _note(self, flag: str, text: str) -> None:
        self.flags.add(flag)
        self.notes.append(text)

    def _after_zeros(self, position: int) -> int | None:
        """The first block after `position` which is not all zeros; None if only zeros follow."""
        size = 4096
        while position < self.source.total:
            window = self.source.pread(size, position)
            if not _ZEROS.startswith(window):
                return position + (len(window) - len(window.lstrip(b"\0"))) // BLOCK * BLOCK
            position += len(window)
            size = _CHUNK
        return None

    def _next_header(self, position: int) -> int | None:
        """The next header after damage."""
        while position < self.source.total:
            at = header_in(self.source.pread(_CHUNK, position))
            if at is not None:
                return position + at
            position += _CHUNK
        return None

    def _finish(self) -> None:
        result = self.result
        count = len(self.names)
        if len(self.notes) > _MAX_NOTES:
            self.notes[_MAX_NOTES:] = [f"{len(self.notes) - _MAX_NOTES:,} more places like these"]
        result.names, result.written = [bare_name(name) for name in self.names], self.names
        result.offsets = np.array(self.offsets, np.int64)
        result.sizes = np.array(self.sizes, np.int64)
        result.kinds = np.full(count, FILE, np.uint8)
        result.recovered = np.zeros(count, bool)
        if self.recovered_from is not None:
            result.recovered[self.recovered_from :] = True
        _resolve_links(result, self.odd)
        result.duplicates = count - len(set(result.names))
        if result.duplicates:
            self.notes.append(
                f"{result.duplicates:,} names stand there more than once: the last one counts"
            )
        odd = Counter(kind for kind in result.kinds.tolist() if kind > SYMLINK)
        self.notes += [f"{odd[kind]:,} {text}" for kind, text in _COUNTED.items() if odd[kind]]
        if not count and not self.flags:
            self._note("empty", "a tar without members")
        order = (*FAILED, *PARTIAL, "concatenated", "unterminated", "empty")
        result.status = next((flag for flag in order if flag in self.flags), "ok")
        result.reason = "; ".join(self.notes)


def _resolve_links(result: TarScan, odd: dict[int, tuple[int, bytes]]) -> None:
    """Fill in place the rows in `odd` (row -> (kind, link)): a link to a file gets that file's
    bytes, others none."""
    names = result.names
    offsets = result.offsets
    sizes = result.sizes
    kinds = result.kinds
    for row, entry in odd.items():
        kinds[row] = entry[0]
        offsets[row] = -1
        sizes[row] = 0
    links = {row: entry for row, entry in odd.items() if entry[0] in (HARD_LINK, SYMLINK)}
    if not links:
        return
    rows_of = defaultdict(list)
    for row, name in enumerate(names):
        rows_of[os.path.normpath(name)].append(row)

    for row, (kind, link) in links.items():
        path = _from_folder_of(names[row], link) if kind == SYMLINK else link
        targets = rows_of.get(os.path.normpath(path), [])
        # A hard link points back; of several members of that name the last counts.
        target = next((at for at in reversed(targets) if kind == SYMLINK or at < row), row)
        if kinds[target] == FILE:
            offsets[row], sizes[row] = offsets[target], sizes[target]
        else:
            kinds[row] = BROKEN_LINK


def _from_folder_of(name: bytes, link: bytes) -> bytes:
    return b"/".join(part for part in (os.path.dirname(name), link) if part)
