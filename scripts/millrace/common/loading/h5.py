"""HDF5 files for reading: through h5py, or their mapped bytes, with the locks that HDF5 takes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from typing import Any

from millrace.common.errors import MillraceError

_LOCKING = "HDF5_USE_FILE_LOCKING"
_LOCKING_WORDS = {"TRUE": "TRUE", "1": "TRUE", "FALSE": "FALSE", "0": "FALSE"}
_LOCK_REMEDY = f"Set {_LOCKING}=FALSE if nobody writes to it, or if its file system has no locks"
# What h5py raises of damaged files, of sizes that they state, and of types that it does not know.
UNREADABLE = (OSError, RuntimeError, LookupError, TypeError, ValueError, MemoryError, OverflowError)


class RawFile:
    """An open file, and its mapped bytes once they are wanted."""

    def __init__(self, path: str, lock: bool) -> None:
        self._map: mmap.mmap | None = None
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self.status = os.fstat(self.descriptor)
        try:
            if lock:
                _lock(self.descriptor, path)
        except BaseException:
            self.close()
            raise

    @property
    def descriptor(self) -> int:
        """For os.pread, os.fstat."""
        return self._file.fileno()

    @property
    def map(self) -> mmap.mmap:
        """All bytes of the file. Arrays made of it keep it mapped after `close`."""
        if self._map is None:
            self._map = mmap.mmap(self.descriptor, 0, prot=mmap.PROT_READ)
        return self._map

    def close(self) -> None:
        self._map = None
        self._file.close()


def locking() -> str:
    """How HDF5 locks files here: TRUE, FALSE or BEST_EFFORT (its default: locks unless there are
    none)."""
    value = os.environ.get(_LOCKING, "").upper()
    return _LOCKING_WORDS.get(value, "BEST_EFFORT")


def _lock(descriptor: int, path: str) -> None:
    """Take the shared lock that HDF5 takes for reading, so that nobody opens the file for
    writing."""
    if locking() == "FALSE":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        missing = error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
        if not (missing and locking() == "BEST_EFFORT"):
            raise refused_lock(path, error) from None


def refused_lock(path: str, error: OSError) -> MillraceError:
    """The error for a file that another program has locked, or whose file system has no locks."""
    problem = (
        f"the lock for reading was refused ({_LOCKING} is {locking()}; {error.strerror or error})"
    )
    return MillraceError(problem, path, f"A program may be writing to it. {_LOCK_REMEDY}")


def regular_file(path: str | os.PathLike) -> os.stat_result:
    """What the system says of a file. Raises OSError for what is none: a pipe would be waited
    for."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("no regular file, but a folder, pipe or device")
    return status


def is_swmr(path: str | os.PathLike) -> bool:
    """Whether a writer has the HDF5 file open for readers beside it (SWMR): a flag in its
    superblock."""
    with contextlib.suppress(OSError), open(path, "rb") as handle:
        head = handle.read(12)
        if head[:4] != b"\x89HDF" or len(head) < 12:
            return False
        return head[8] >= 3 and bool(head[11] & 4)
    return False


def open_h5(path: str) -> Any:
    """Open an HDF5 file for reading, also beside a writer that allows readers."""
    import h5py

    regular_file(path)
    try:
        return h5py.File(path, "r", swmr=is_swmr(path))
    except OSError as error:
        if "unable to lock" in str(error):
            raise refused_lock(path, error) from None
        raise


def values_of(dataset: Any, where: Any = ()) -> Any:
    """Values of a data set, all or those at `where`.

    Raises OSError that names the filter by which they are packed, if it is not installed: the
    library only says where it has looked for one.
    """
    import h5py

    try:
        return dataset[where]
    except OSError as error:
        creation = dataset.id.get_create_plist()
        codes = [creation.get_filter(place)[0] for place in range(creation.get_nfilters())]
        missing = [code for code in codes if not h5py.h5z.filter_avail(code)]
        if not missing:
            raise
        words = f"packed by filter {missing[0]}, which is not installed: set HDF5_PLUGIN_PATH "
        raise OSError(f"{words}to its folder, or unpack with h5repack -f NONE") from error
