"""The floor of the benchmark: what the machine gives to the best of readers, the bytes alone."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.bench.readers.peers import Member


def reads(members: Sequence[Member], cold: bool, cores: int) -> Iterator[int]:
    """Sizes of members, read into one buffer a thread once the first is asked for.

    `cold`: past the page cache (O_DIRECT), 16 at a time: the device's own rate; OSError if the file
    system has none. Else a thread per core copies out of the page cache, into what stays in the
    processor's cache.
    """
    flags, threads = (os.O_DIRECT, 16) if cold else (0, cores)
    page = mmap.PAGESIZE
    # O_DIRECT wants offsets, sizes and addresses in whole blocks; a page is a multiple of any.
    spans = [
        (member.offset // page * page, -(-(member.offset + member.size) // page) * page)
        for member in members
    ]
    largest = max(end - first for first, end in spans)
    descriptors = {
        tar: os.open(tar, os.O_RDONLY | flags) for tar in {member.tar for member in members}
    }

    def read(share: int) -> None:
        view = memoryview(mmap.mmap(-1, largest))
        for member, (first, end) in zip(
            members[share::threads], spans[share::threads], strict=True
        ):
            os.preadv(descriptors[member.tar], [view[: end - first]], first)

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
    yield from (member.size for member in members)
