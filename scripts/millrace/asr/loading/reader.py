"""Read members of tars by address: one positioned read each, few open files, lookahead for cold storage."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from millrace.asr.tars.paths import REBUILD
from millrace.common.errors import MillraceError
from millrace.common.machine.memory import keep_freed_memory

_PROBES = 4  # reads of one byte that tell whether a window is cached already
_ADVICE_BYTES = 1 << 20  # the kernel cuts one WILLNEED to its largest request


class Request(NamedTuple):
    """The address of a member's bytes: `tar` is a path (or a key of `tars`), `offset` and `size` are in
    bytes."""

    tar: str | int
    offset: int
    size: int


class TarState(NamedTuple):
    """A tar as it was when it was indexed. `size` (bytes) and `mtime_ns` are None where that was not
    recorded."""

    path: str
    size: int | None = None
    mtime_ns: int | None = None


class ReadError(Exception):
    """Bytes that cannot be read. The message names the tar.

    Reasons: tar_missing, short_read, bad_address, io_error.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(reason, message)

    def __str__(self) -> str:
        return self.args[1]


_SILENT = (OSError, ReadError, MillraceError, AttributeError, OverflowError, ValueError, TypeError)


class IndexedTarReader:
    """Members of any number of tars through at most `max_open_tars` file descriptors.

    `tars` maps the key in a request to its TarState; a tar whose size or mtime differs from what was recorded
    is refused with MillraceError when it is opened. Without `tars` the key is the path. Descriptors are
    opened per process (fork and pickling are safe); within a process one thread calls at a time.

    `threads` share the reads of `read_many`. Copying out of the page cache is bound by one core's memory
    bandwidth, so that a process with cores to spare reads faster with several; DataLoader workers use all
    cores with one each.
    """

    def __init__(
        self,
        max_open_tars: int = 64,
        tars: Mapping[str | int, TarState] | None = None,
        lookahead: int = 64,
        threads: int = 1,
    ) -> None:
        if max_open_tars < 1 or lookahead < 0 or threads < 1:
            raise ValueError("max_open_tars and threads must be at least 1 and lookahead at least 0")
        self.max_open_tars, self.lookahead, self.tars, self.threads = max_open_tars, lookahead, tars, threads
        self._pool: ThreadPoolExecutor | None = None
        self._descriptors: OrderedDict[str | int, int] = OrderedDict()
        self._pid = os.getpid()
        self.opened = 0  # how often a tar was opened
        keep_freed_memory()

    def read(self, tar: str | int, offset: int, size: int) -> bytes:
        """The `size` bytes at `offset` of `tar`. Raises ReadError; MillraceError where the tar has
        changed."""
        return self._read(tar, offset, size)

    def read_many(self, requests: Iterable[Request | tuple]) -> Iterator[bytes | ReadError]:
        """Yield for each request, in order, its bytes or the ReadError, with `lookahead` requests under way.

        Requests are taken in hops of half the lookahead. The reads of the next hop are announced to the
        kernel in the order (tar, offset) before this hop is read, unless they are found in the page cache.
        """
        # Both hops' tars stay open, so that announcing and reading open each tar once.
        hop = max(1, min(self.lookahead, self.max_open_tars) // 2)
        source = iter(requests)
        ready = list(islice(source, hop))
        self.will_need(ready)
        while ready:
            following = list(islice(source, hop))
            self.will_need(following)
            # Reading does not make a tar recent: those announced after it are the ones still to be read.
            descriptor = self._own_descriptors().get
            raws = _preads(descriptor, ready) if self.threads == 1 else self._shared_preads(descriptor, ready)
            for (tar, offset, size), raw in zip(ready, raws, strict=True):
                if raw is not None:
                    yield raw
                    continue
                try:
                    yield self._read(tar, offset, size)
                except ReadError as error:
                    yield error
            ready = following

    def _shared_preads(self, descriptor: Callable, requests: list[Request | tuple]) -> list[bytes | None]:
        """As _preads, by all threads. Returns when all have read, so that no descriptor is closed under a
        thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "read")
        # Neighbours go to one thread each in turn, so that sizes even out.
        shares = [
            self._pool.submit(lambda part: list(_preads(descriptor, part)), requests[first :: self.threads])
            for first in range(1, self.threads)
        ]
        raws: list[bytes | None] = [None] * len(requests)
        raws[:: self.threads] = _preads(descriptor, requests[:: self.threads])
        for first, share in enumerate(shares, 1):
            raws[first :: self.threads] = share.result()
        return raws

    def will_need(self, requests: Sequence[Request | tuple]) -> None:
        """Announce reads to the kernel in the order (tar, offset), so that they are under way together.

        Costs a few one-byte probes where the bytes are cached already. Never fails: what is wrong with a tar
        shows when it is read.
        """
        if not self.lookahead or not requests or not hasattr(os, "posix_fadvise"):
            return
        step = max(1, len(requests) // _PROBES)
        if all(map(self._cached, requests[::step])):
            return
        # Keys are all numbers or all paths; str() sorts them, should they be mixed, all the same.
        for tar, offset, size in sorted(requests, key=lambda request: (str(request[0]), request[1])):
            with contextlib.suppress(*_SILENT):
                descriptor = self._descriptor(tar)
                for start in range(offset, offset + size, _ADVICE_BYTES):
                    length = min(_ADVICE_BYTES, offset + size - start)
                    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close all descriptors and end the threads; the reader can be used again."""
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown()
        self._pool = None
        for descriptor in self._own_descriptors().values():
            os.close(descriptor)
        self._descriptors.clear()

    def _read(self, tar: str | int, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0:
            raise ReadError(
                "bad_address", f"{self._state(tar).path}: no member can have offset {offset} and size {size}"
            )
        try:
            descriptor = self._descriptor(tar)
            raw = os.pread(descriptor, size, offset)
            while len(raw) < size:  # a signal, or a read beyond 2 GiB
                more = os.pread(descriptor, size - len(raw), offset + len(raw))
                if not more:
                    break
                raw += more
        except OverflowError:
            raise ReadError(
                "bad_address", f"{self._state(tar).path}: offset {offset} or size {size} is absurd"
            ) from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise MillraceError(
                    "too many open files", self._state(tar).path, "Lower max_open_tars or raise `ulimit -n`"
                ) from error
            # A stale handle is not kept: the next read opens the tar anew.
            with contextlib.suppress(KeyError, OSError):
                os.close(self._own_descriptors().pop(tar))
            raise ReadError("io_error", f"{self._state(tar).path}: {error.strerror}") from error
        if len(raw) < size:
            message = f"{self._state(tar).path}: ends after {len(raw)} of the {size} bytes at offset {offset}"
            raise ReadError("short_read", message)
        return raw

    def _descriptor(self, tar: str | int) -> int:
        descriptors = self._own_descriptors()
        descriptor = descriptors.get(tar)
        if descriptor is not None:
            descriptors.move_to_end(tar)
            return descriptor
        descriptor = self._open(self._state(tar))
        while len(descriptors) >= self.max_open_tars:
            os.close(descriptors.popitem(last=False)[1])
        descriptors[tar] = descriptor
        return descriptor

    def _open(self, state: TarState) -> int:
        try:
            descriptor = os.open(state.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
                raise ReadError("tar_missing", f"{state.path}: {error.strerror}") from error
            raise
        self.opened += 1
        found = os.fstat(descriptor)
        pairs = ((state.size, found.st_size), (state.mtime_ns, found.st_mtime_ns))
        if any(recorded is not None and recorded != now for recorded, now in pairs):
            os.close(descriptor)
            raise MillraceError(
                f"the tar has changed since it was indexed (size {state.size} then, {found.st_size} bytes now; "
                f"mtime_ns {state.mtime_ns} then, {found.st_mtime_ns} now): its addresses may point anywhere",
                where=state.path,
                remedy=REBUILD,
            )
        return descriptor

    def _state(self, tar: str | int) -> TarState:
        return TarState(str(tar)) if self.tars is None else self.tars[tar]

    def _cached(self, request: Request | tuple) -> bool:
        """Whether the first byte is in the page cache (some file systems do not tell: False)."""
        tar, offset, size = request
        if size <= 0:
            return True
        try:
            return os.preadv(self._descriptor(tar), [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except _SILENT:
            return False

    def _own_descriptors(self) -> OrderedDict[str | int, int]:
        if self._pid != os.getpid():
            # The parent's descriptors are shared open files: closed here, they stay open there.
            for descriptor in self._descriptors.values():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            self._descriptors, self._pool = OrderedDict(), None  # the parent's threads did not come along
            self._pid, self.opened = os.getpid(), 0
        return self._descriptors

    def __getstate__(self) -> dict:
        return {name: getattr(self, name) for name in ("max_open_tars", "tars", "lookahead", "threads")}

    def __setstate__(self, state: dict) -> None:
        self.__init__(**state)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _preads(descriptor: Callable, requests: Iterable[Request | tuple]) -> Iterator[bytes | None]:
    """One read each, through the descriptors that are open; None where that did not give all bytes."""
    pread = os.pread
    for tar, offset, size in requests:
        opened = descriptor(tar)
        raw = None
        if opened is not None and size > 0:
            with contextlib.suppress(OSError, OverflowError):
                raw = pread(opened, size, offset)
        yield raw if raw is not None and len(raw) == size else None
