"""Few open files per process: the least recent is closed, and a forked or spawned process opens its
own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from millrace.common.loading.arguments import whole


class _Closable(Protocol):
    def close(self) -> object: ...


Handle = TypeVar("Handle", bound=_Closable)


class OpenFiles(Generic[Handle]):
    """Handles by key, opened when first asked for by `open_file(key)`, at most `limit` at a time.

    What a parent process has open is closed in a child only with `close_inherited`: for HDF5 that
    would take the parent's lock away. Pickles without handles.
    """

    def __init__(
        self, open_file: Callable[[Any], Handle], limit: int, close_inherited: bool = False
    ) -> None:
        self.open_file = open_file
        self.limit = whole("the limit of open files", limit, least=1)
        self.close_inherited = close_inherited
        self._handles: OrderedDict[Hashable, Handle] = OrderedDict()
        self._inherited: list[Any] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self.opened = 0  # how often this process has opened a file

    @property
    def lock(self) -> threading.RLock:
        """To be held while a handle is used: another thread that opens a file may close this one,
        whose number another file has then."""
        self._leave_inherited()
        return self._lock

    def __len__(self) -> int:
        return len(self.own)

    @property
    def own(self) -> OrderedDict[Hashable, Handle]:
        """What this process has open; looking here makes no file recent."""
        self._leave_inherited()
        return self._handles

    def _leave_inherited(self) -> None:
        """In a process that was forked since: begin without what its parent has open."""
        if self._pid == os.getpid():
            return
        if self.close_inherited:
            for handle in self._handles.values():
                with contextlib.suppress(OSError):
                    handle.close()
        else:
            self._inherited.append(self._handles)
        self._handles = OrderedDict()
        self._lock = threading.RLock()  # a thread that is not here may have held it
        self._pid = os.getpid()
        self.opened = 0

    def get(self, key: Hashable) -> Handle:
        """The handle of a file, now the most recent one."""
        handles = self.own
        handle = handles.get(key)
        if handle is not None:
            handles.move_to_end(key)
            return handle
        # Room first, so that there are never more than `limit`.
        while len(handles) >= self.limit:
            handles.popitem(last=False)[1].close()
        handles[key] = handle = self.open_file(key)
        self.opened += 1
        return handle

    def drop(self, key: Hashable) -> None:
        """Close a file, if it is open."""
        handle = self.own.pop(key, None)
        if handle is not None:
            handle.close()

    def close(self) -> None:
        """Close all; they open again when asked for."""
        with self.lock:
            for key in list(self.own):
                self.drop(key)

    def __getstate__(self) -> dict:
        names = ("open_file", "limit", "close_inherited")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict) -> None:
        OpenFiles.__init__(self, **state)
