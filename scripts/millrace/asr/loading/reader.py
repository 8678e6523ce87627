"""Read members of tars by address, ahead where storage is cold: how many reads are announced, and
whether a tar has changed since it was indexed, or is a copy."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from millrace.asr.tars.paths import REBUILD
from millrace.asr.tars.stamp import digest
from millrace.common.errors import MillraceError
from millrace.common.loading.bad_samples import SampleError
from millrace.common.loading.open_files import OpenFiles
from millrace.common.machine.memory import keep_freed_memory

log = logging.getLogger("millrace")
_LOOKAHEAD = 64  # requests under way
_PROBES = 4  # reads of one byte that show whether a hop is cached already
_ADVICE_BYTES = 1 << 20  # the kernel cuts one WILLNEED to its largest request

# The address of a member: the path of its tar (or a key of `tars`), offset and size in bytes.
Request = tuple[str | int, int, int]


class TarState(NamedTuple):
    """A tar as it was when it was indexed; `size` (bytes) and `mtime_ns` are None if that was not
    recorded.

    `root` is the folder that a relative path was resolved from, "" if the path was absolute.
    `digest` is `stamp.digest`, "" if it was not recorded.
    """

    path: str
    size: int | None = None
    mtime_ns: int | None = None
    root: str = ""
    digest: str = ""


class Tars(Protocol):
    """A mapping to TarState, of what a request names tars by."""

    def __getitem__(self, tar: Any, /) -> TarState: ...


class _OpenTar(NamedTuple):
    """A descriptor, and size and mtime_ns of the tar when it was opened."""

    descriptor: int
    state: tuple[int, int]

    def close(self) -> None:
        os.close(self.descriptor)


class ReadError(SampleError):
    """Bytes that cannot be read, of a tar that the message names.

    Reasons: tar_missing, short_read, bad_address, io_error.
    """


_SILENT = (OSError, ReadError, MillraceError, AttributeError, OverflowError, ValueError, TypeError)


class IndexedTarReader:
    """Gives the bytes of tar members whose addresses are known, in any order, without scanning a
    tar.

        reader = IndexedTarReader(max_open_tars=64)
        for raw in reader.read_many([("a.tar", 512, 31_044), ("b.tar", 1536, 8_192)]):
            ...  # bytes, or the ReadError of this request

    `tars` maps the key in a request to its TarState; a tar that is not as recorded is refused with
    MillraceError when it is opened, and one that is overwritten while it is open at the next call.
    A copy, whose time alone differs, is read, and the log says so once. Without `tars` the key is
    the path. At most `max_open_tars` file descriptors are open, each process has its own (fork and
    pickling are safe); threads of a process take turns.
    """

    def __init__(self, max_open_tars: int = 64, tars: Tars | None = None) -> None:
        self.max_open_tars = max_open_tars
        self.tars = tars
        self.copies = _Copies()
        self._files = OpenFiles(
            partial(_open, tars, self.copies), max_open_tars, close_inherited=True
        )
        keep_freed_memory()

    @property
    def opened(self) -> int:
        """How often this process has opened a tar."""
        return self._files.opened

    def read(self, tar: str | int, offset: int, size: int) -> bytes:
        """The `size` bytes at `offset` of `tar`. Raises ReadError; MillraceError if the tar has
        changed."""
        if offset < 0 or size < 0:
            raise self._error(
                "bad_address", tar, f"no member can have offset {offset} and size {size}"
            )
        with self._files.lock:
            return self._read(tar, offset, size)

    def _read(self, tar: str | int, offset: int, size: int) -> bytes:
        try:
            descriptor = self._files.get(tar).descriptor
            self._check_unchanged(tar)
            raw = os.pread(descriptor, size, offset)
            while len(raw) < size:  # a signal, or a read beyond 2 GiB
                more = os.pread(descriptor, size - len(raw), offset + len(raw))
                if not more:
                    break
                raw += more
        except OverflowError:
            raise self._error(
                "bad_address", tar, f"offset {offset} or size {size} is absurd"
            ) from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                remedy = "Lower max_open_tars or raise `ulimit -n`"
                raise MillraceError(
                    "too many open files", _state(self.tars, tar).path, remedy
                ) from error
            # A stale handle is closed: the next read opens the tar anew.
            with contextlib.suppress(OSError):
                self._files.drop(tar)
            raise self._error("io_error", tar, str(error.strerror)) from error
        if len(raw) < size:
            problem = f"ends after {len(raw)} of the {size} bytes at offset {offset}"
            raise self._error("short_read", tar, problem)
        return raw

    def read_many(self, requests: Iterable[Request]) -> Iterator[bytes | ReadError]:
        """Yield for each request, in order, its bytes or the ReadError.

        They are read in hops; the next hop is announced to the kernel before this one is read.
        """
        # Both hops' tars stay open, so that announcing and reading open each tar once.
        hop = max(1, min(_LOOKAHEAD, self.max_open_tars) // 2)
        source = iter(requests)
        ready = list(islice(source, hop))
        self.will_need(ready)
        while ready:
            following = list(islice(source, hop))
            self.will_need(following)
            yield from self.read_announced(ready)
            ready = following

    def read_announced(self, requests: Sequence[Request]) -> list[bytes | ReadError]:
        """For each request, in order, its bytes or the ReadError, of what `will_need` was told."""
        with self._files.lock:
            for tar in {request[0] for request in requests}:
                self._check_unchanged(tar)
            # Reading does not make a tar recent: those announced after it are the ones still to be
            # read.
            raws = _read_open(self._files.own, requests)
        return [
            self._read_alone(request) if raw is None else raw
            for request, raw in zip(requests, raws, strict=True)
        ]

    def _read_alone(self, request: Request) -> bytes | ReadError:
        try:
            return self.read(*request)
        except ReadError as error:
            return error

    def will_need(self, requests: Sequence[Request]) -> None:
        """Announce reads to the kernel in the order (tar, offset), so that they are under way
        together.

        If the bytes are cached already, it costs a few one-byte probes. Never fails: reading shows
        what is wrong with a tar.
        """
        if requests and hasattr(os, "posix_fadvise"):
            with self._files.lock:
                self._announce(requests)

    def _announce(self, requests: Sequence[Request]) -> None:
        step = max(1, len(requests) // _PROBES)
        if all(map(self._cached, requests[::step])):
            return
        # Keys are all numbers or all paths; str() sorts them, should they be mixed, all the same.
        for tar, offset, size in sorted(
            requests, key=lambda request: (str(request[0]), request[1])
        ):
            with contextlib.suppress(*_SILENT):
                descriptor = self._files.get(tar).descriptor
                for start in range(offset, offset + size, _ADVICE_BYTES):
                    length = min(_ADVICE_BYTES, offset + size - start)
                    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close all descriptors; the reader can be used again."""
        self._files.close()

    def _check_unchanged(self, tar: str | int) -> None:
        """Refuse an open tar that has been overwritten in place: one fstat, a microsecond."""
        file = self._files.own.get(tar)
        if file is not None:
            now = os.fstat(file.descriptor)
            if (now.st_size, now.st_mtime_ns) != file.state:
                raise _changed(_state(self.tars, tar).path, file.state, now)

    def _error(self, reason: str, tar: str | int, problem: str) -> ReadError:
        return ReadError(reason, f"{_state(self.tars, tar).path}: {problem}")

    def _cached(self, request: Request) -> bool:
        """Whether the first byte is in the page cache (False on file systems that do not say)."""
        tar, offset, size = request
        try:
            descriptor = self._files.get(tar).descriptor
            return size <= 0 or os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except _SILENT:
            return False

    def __reduce__(self) -> tuple:
        return IndexedTarReader, (self.max_open_tars, self.tars)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _read_open(
    files: Mapping[Hashable, _OpenTar], requests: Sequence[Request]
) -> list[bytes | None]:
    """One positioned read each; None if a tar is not open or gives too few bytes."""
    # Per member of warm data this loop is what Python costs: nothing is called but pread.
    pread = os.pread
    raws: list[bytes | None] = []
    for tar, offset, size in requests:
        try:
            raw = pread(files[tar].descriptor, size, offset)
        except (KeyError, OSError, OverflowError):
            raws.append(None)
            continue
        raws.append(raw if len(raw) == size else None)
    return raws


def _state(tars: Tars | None, tar: str | int) -> TarState:
    if tars is None:
        return TarState(str(tar))
    return tars[tar]


def _open(tars: Tars | None, copies: _Copies, tar: str | int) -> _OpenTar:
    """Open a tar; MillraceError if it is not the one that was indexed, nor a copy of it."""
    recorded = _state(tars, tar)
    path = recorded.path
    root = recorded.root
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP):
            raise
        message = f"{path}: {error.strerror}"
        if error.errno == errno.ENOENT:
            message = f"{path} does not exist"
            if root:
                message += f" (paths are resolved from {root}; see tar_root)"
            elif tars is not None:
                message += (
                    "; if the tars were moved, name the new folder (for open_loader: tar_root)"
                )
        raise ReadError("tar_missing", message) from error
    now = os.fstat(descriptor)
    try:
        if not _is_as_recorded(recorded, descriptor, now):
            raise _changed(path, (recorded.size, recorded.mtime_ns), now)
    except (OSError, MillraceError):
        os.close(descriptor)
        raise
    if recorded.mtime_ns not in (None, now.st_mtime_ns):
        copies.tell(path)
    return _OpenTar(descriptor, (now.st_size, now.st_mtime_ns))


def _is_as_recorded(recorded: TarState, descriptor: int, now: os.stat_result) -> bool:
    """Whether this is the tar that was indexed, or a copy of it: with another time, but the same
    content."""
    if recorded.size not in (None, now.st_size):
        return False
    if recorded.mtime_ns in (None, now.st_mtime_ns):
        return True
    return recorded.digest != "" and recorded.digest == digest(descriptor, now.st_size)


class _Copies:
    """The one line of a reader about tars that are copies of those that were indexed."""

    def __init__(self) -> None:
        self.is_told = False

    def tell(self, path: str) -> None:
        """Log the line, unless it was logged."""
        if not self.is_told:
            self.is_told = True
            text = (
                "%s, and perhaps other tars, is a copy of the one that was indexed: its time alone"
                " differs"
            )
            log.warning(text, path)


def _changed(
    path: str, recorded: tuple[int | None, int | None], now: os.stat_result
) -> MillraceError:
    """The error for a tar that is neither the one that was recorded nor a copy of it."""
    sizes = f"size {recorded[0]} then, {now.st_size} bytes now"
    times = f"mtime_ns {recorded[1]} then, {now.st_mtime_ns} now"
    if recorded[0] == now.st_size:
        times += "; no copy either, as its content differs"
    problem = (
        f"the tar has changed since it was indexed ({sizes}; {times}): its addresses may point"
        " anywhere"
    )
    remedy = (
        f"{REBUILD}. If the tars that were indexed lie elsewhere, give their folder as tar_root"
    )
    return MillraceError(problem, path, remedy)
