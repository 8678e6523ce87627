"""Chains of tar headers: the walk from header to header, how much it reads at a time, and how many
such walks go at once, in how many threads."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from struct import Struct
from zlib import adler32

from millrace.asr.tars.header import (
    BLOCK,
    FILE,
    CutMember,
    GroupReader,
    OddHeader,
    is_header,
)

PAGE = 4096
# Dense tars (members below a page) are read in windows of up to this many bytes.
MAX_WINDOW = 16 * PAGE
SEARCH_SHARE = 0.05  # of the pages of all headers: what finding the starts of chains may cost
MEMBERS_PER_CHAIN = 8  # at least, or a chain is not worth its start
# Chains in one thread overlap by announced reads, at a third of the CPU; several threads overlap
# even if a file system ignores announcements. Both are tried for so many rounds, and the faster
# goes on.
CHAIN_THREADS = 1, 8
_TRIED_ROUNDS = 8

# name, size, its end, checksum, typeflag, magic, first byte of the prefix
_fields = Struct("100s24x11sB12x8sc100x6s82xB").unpack_from
_SPACES = 8 * 32


class HeaderFile:
    """A tar opened for reading headers: positioned reads without readahead.

    `bytes_read` counts the bytes they ask for, in whole pages as the kernel fetches them.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.bytes_read = 0
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.total = os.fstat(self.fd).st_size
        self._advise(0, 0, "POSIX_FADV_RANDOM")

    def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes at `offset`, fewer only at the end of the file."""
        data = os.pread(self.fd, size, offset)
        self.bytes_read += ((offset + size - 1) // PAGE - offset // PAGE + 1) * PAGE
        while len(data) < size and offset + len(data) < self.total:
            more = os.pread(self.fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def announce(self, offset: int, size: int) -> None:
        """Ask the kernel to begin reading these bytes; does not wait for them."""
        self._advise(offset, size, "POSIX_FADV_WILLNEED")

    def cached(self, offset: int) -> bool:
        """Whether the byte at `offset` can be read without waiting; False if unknown."""
        try:
            return os.preadv(self.fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except (OSError, AttributeError):
            return False

    def _advise(self, offset: int, size: int, advice: str) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(self.fd, offset, size, getattr(os, advice))

    def close(self) -> None:
        os.close(self.fd)


class Chain:
    """The members from one header to the next, until `limit` (a group's offset) or an odd place.

    `starts`, `names`, `offsets` and `sizes` are parallel, one entry per member; `odd` maps a row to
    (kind, link) if the member is no plain file. Afterwards `position` is where the next group
    should be, and `stop` what stood there (None: nothing odd, the limit was reached; also at the
    exact end of the file). A chain runs in one thread and has its own count of bytes.
    """

    def __init__(self, source: HeaderFile, position: int, limit: int) -> None:
        # A copy of the open file: the same descriptor, another count.
        self.source = copy(source)
        self.position = position
        self.limit = limit
        self.source.bytes_read = 0
        self.silent = 0  # how many reads `steps` makes between two that it yields before
        self.search_to = position  # before the walk, look for a header up to here
        self.starts: list[int] = []
        self.names: list[bytes] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.odd: dict[int, tuple[int, bytes]] = {}
        self.next: Chain | None = None
        self.stop: OddHeader | None = None
        self._window = b""  # what was read last
        self._at = 0  # its place
        self._rows_before = 0  # members before that window
        self._span = PAGE  # bytes of a window where headers are dense
        self._want = BLOCK  # bytes that the header group before this one took

    def steps(self) -> Generator[tuple[int, int], None, None]:
        """Walk; before each read that leaves the window, yield its (offset, size) to be
        announced."""
        is_found = True
        if self.search_to > self.position:
            is_found = yield from self._search()
        if is_found:
            yield from self._walk()

    def _walk(self) -> Generator[tuple[int, int], None, None]:
        total, pread = self.source.total, self.source.pread
        names, starts, offsets, sizes = self.names, self.starts, self.offsets, self.sizes
        position, quiet = self.position, 0
        window, low, high = b"", 0, 0  # what was read last, its place and its end
        while position < self.limit:
            if position + BLOCK > high:
                if position >= total:
                    break
                size = self._read_size(position, low, high)
                if quiet:
                    quiet -= 1
                else:
                    yield position, size
                    quiet = self._after_announcement()
                window, low = pread(size, position), position
                high = low + len(window)
                if len(window) < BLOCK:
                    self.stop = CutMember(position, "the file ends inside a header")
                    break
            member = common_header(window, position - low)
            data = position + BLOCK
            if member is not None and data + member[1] <= total:
                starts.append(position)
                names.append(member[0])
                offsets.append(data)
                sizes.append(member[1])
                position = data + ((member[1] + 511) & -512)
                continue
            self._window, self._at = window, low
            after = self._after_odd_group(position)
            if after is None:
                break
            position, window, low = after, self._window, self._at
            high = low + len(window)
        self.position = position

    def _after_announcement(self) -> int:
        """Take over what the chains know meanwhile; how many reads are not announced now."""
        if self.next is not None:
            self.limit = self.next.begin
        return self.silent

    def _read_size(self, position: int, low: int, high: int) -> int:
        """Bytes to read at `position`, after a window from `low` to `high`: where that is near, to
        the end of the page.

        A wide window only where headers are as dense as pages, and only out of pages saved so far:
        never more than a page per header in all.
        """
        if position - high >= PAGE:
            return self._want
        rows = len(self.starts)
        touched = -(-high // PAGE) - low // PAGE
        saved = rows * PAGE - self.source.bytes_read
        if rows - self._rows_before >= touched and saved >= 2 * self._span:
            self._span = min(2 * self._span, MAX_WINDOW)
        else:
            self._span = PAGE
        self._rows_before = rows
        return max(self._span - position % PAGE, self._want)

    def _after_odd_group(self, position: int) -> int | None:
        """Take in the group at `position`, whatever it is; the place of the next, or None if the
        walk stops here."""
        try:
            group, after = GroupReader(self._fetch, position, self.source.total).read()
        except OddHeader as error:
            self.stop = error
            return None
        if group is not None:
            if group.kind != FILE:
                self.odd[len(self.starts)] = (group.kind, group.link)
            self.names.append(group.name)
            self.starts.append(position)
            self.offsets.append(group.offset)
            self.sizes.append(group.size)
            self._want = min(group.offset - position, PAGE)
        return after

    @property
    def begin(self) -> int:
        """Where the chain before this one must land: the first group, or where the search for it
        began."""
        return self.starts[0] if self.starts else self.position

    def run(self) -> Chain:
        """Walk to the end without announcing anything."""
        for _ in self.steps():
            pass
        return self

    def row_of(self, position: int) -> int | None:
        """The row whose group starts at `position`."""
        row = bisect_left(self.starts, position)
        return row if row < len(self.starts) and self.starts[row] == position else None

    def _fetch(self, offset: int, size: int) -> bytes:
        at = offset - self._at
        if at < 0 or at + size > len(self._window):
            end = max(offset + size, offset - offset % PAGE + PAGE)
            self._window = self.source.pread(end - offset, offset)
            self._at = offset
            at = 0
        return self._window[at : at + size]

    def _search(self) -> Generator[tuple[int, int], None, bool]:
        """Look from `position` up to `search_to` for a header."""
        position = self.position
        while position < min(self.search_to, self.source.total):
            yield position, PAGE
            window = self.source.pread(PAGE, position)
            at = header_in(window)
            if at is not None:
                self.position = position + at
                return True
            position += PAGE
        return False


def common_header(window: bytes, at: int) -> tuple[bytes, int] | None:
    """Name and size of the file whose header lies at `at`, if the header is of the common kind, in
    few instructions; None for all others, which are left to `GroupReader`."""
    name, digits, end, check, typeflag, magic, prefix = _fields(window, at)
    octal = check[:6]
    if typeflag != b"0" or (prefix and magic != b"ustar\0"):
        return None
    if end > 32 or not digits.isdigit() or not octal.isdigit():
        return None
    try:
        # The low half of adler32 is 1 + the sum of the bytes (if that is below 65521).
        byte_sum = (adler32(window[at : at + BLOCK]) & 0xFFFF) - 1
        if byte_sum - sum(check) + _SPACES != int(octal, 8):
            return None
        size = int(digits, 8)
    except ValueError:  # 8 and 9 are no octal digits
        return None
    cut = name.find(b"\0")
    name = name if cut < 0 else name[:cut]
    if prefix:
        name = window[at + 345 : at + 500].partition(b"\0")[0] + b"/" + name
    return name, size


def header_in(window: bytes) -> int | None:
    """The first of the aligned blocks in `window` that is a header, by its checksum."""
    for at in range(0, len(window) - BLOCK + 1, BLOCK):
        # Few blocks of sound have digits there: a quick look first.
        has_digits = window[at + 148 : at + 154].strip(b" \0").isdigit()
        if has_digits and is_header(window[at : at + BLOCK]):
            return at
    return None


def split(first: Chain, count: int) -> list[Chain]:
    """`first` and up to `count` - 1 more chains over what is left of the file, at even distances.

    The number is cut so that finding their starts stays a small share of the bytes of the headers
    themselves.
    """
    source = first.source
    seen = len(first.starts)
    if not seen:
        return [first]
    here = first.starts[-1]
    mean = max((here - first.starts[0]) / max(seen - 1, 1), BLOCK)
    left = source.total - here
    pages = SEARCH_SHARE * left / mean
    count = min(count, int(pages / (mean / 2 / PAGE + 1)), int(left / mean / MEMBERS_PER_CHAIN))
    chains = [first]
    for part in range(1, count):
        begin = (here + left * part // count) // PAGE * PAGE
        chain = Chain(source, begin, source.total)
        chain.search_to = begin + int(min(8 * mean, left / count)) + PAGE
        chains[-1].next = chain
        chains.append(chain)
    return chains


def run_together(source: HeaderFile, walks: list[Iterator[tuple[int, int]]]) -> None:
    """Walk all chains at once: every round announces each chain's next read, then uses what has
    arrived."""
    rates = {}
    for threads in CHAIN_THREADS:
        started = time.perf_counter()
        reads = len(walks) * _TRIED_ROUNDS
        walks = _run(source, walks, threads, range(_TRIED_ROUNDS))
        rates[threads] = reads / (time.perf_counter() - started)
    _run(source, walks, max(rates, key=rates.__getitem__), itertools.count())


def _run(
    source: HeaderFile, walks: list[Iterator[tuple[int, int]]], threads: int, rounds: Iterable[int]
) -> list[Iterator[tuple[int, int]]]:
    """Go so many rounds, or to the end; returns the walks that are not at their end."""

    def interleave(walks: list[Iterator[tuple[int, int]]]) -> list[Iterator[tuple[int, int]]]:
        for _ in rounds:
            going = []
            for walk in walks:
                if ahead := next(walk, None):
                    source.announce(*ahead)
                    going.append(walk)
            walks = going
            if not walks:
                break
        return walks

    parts = [part for part in (walks[number::threads] for number in range(threads)) if part]
    if len(parts) < 2:
        return interleave(walks)
    with ThreadPoolExecutor(len(parts)) as pool:
        return [walk for left in pool.map(interleave, parts) for walk in left]
