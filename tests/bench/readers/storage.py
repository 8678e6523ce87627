"""What the machine gives to the best of readers: the same bytes, not handed to anybody. The floor of the
benchmark."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.bench.readers.peers import Member


def cold_reads(members: Sequence[Member], depth: int = 16) -> Iterator[int]:
    """Sizes of members read past the page cache (O_DIRECT), `depth` at a time: the device's own rate.

    Raises OSError where the file system has no O_DIRECT.
    """
    yield from _reads(members, os.O_DIRECT, depth)


def warm_reads(members: Sequence[Member], threads: int) -> Iterator[int]:
    """Sizes of members copied out of the page cache into one buffer a thread, which stays in the processor's
    cache."""
    yield from _reads(members, 0, threads)


def _reads(members: Sequence[Member], flags: int, threads: int) -> list[int]:
    page = mmap.PAGESIZE
    # O_DIRECT wants offsets, sizes and addresses in whole blocks; a page is a multiple of any.
    spans = [
        (member.offset // page * page, -(-(member.offset + member.size) // page) * page) for member in members
    ]
    largest = max(end - first for first, end in spans)
    descriptors = {tar: os.open(tar, os.O_RDONLY | flags) for tar in {member.tar for member in members}}

    def read(share: int) -> None:
        view = memoryview(mmap.mmap(-1, largest))
        for member, (first, end) in zip(members[share::threads], spans[share::threads], strict=True):
            os.preadv(descriptors[member.tar], [view[: end - first]], first)

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    return [member.size for member in members]
