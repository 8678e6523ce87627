"""Which folders a corpus' audio may come from: an alignment file, which is not trusted, names any
path."""

from __future__ import annotations

import os
from collections.abc import Iterable


class AudioOutside(Exception):
    """An audio file that lies outside of the folders that audio may come from; its text names
    both."""


class AudioRoots:
    """Folders that audio may lie in, at any depth, once the links of its path are followed."""

    def __init__(self, folders: Iterable[str | os.PathLike]) -> None:
        self.folders = sorted({os.path.realpath(folder) for folder in folders})
        # The folders as they begin a path: with one slash at the end, also the root of the file
        # system.
        self._beginnings = tuple(os.path.join(folder, "") for folder in self.folders)
        self._real_folders: dict[str, str] = {}

    def hold(self, real: str) -> bool:
        """Whether the file at `real`, a path without links, lies in one of the folders."""
        return real.startswith(self._beginnings)

    def real(self, path: str) -> str:
        """The path of a file without links; its folder, which most files share, is followed
        once."""
        folder, name = os.path.split(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        real = os.path.join(self._real_folders[folder], name)
        if os.path.islink(real):
            return os.path.realpath(real)
        return real

    def outside(self, path: str, real: str) -> AudioOutside:
        """What is wrong with a file that they do not hold, and what to do about it."""
        leads = "" if real == path else f" leads to {real}, which"
        problem = f"{path}{leads} lies outside of the folders that audio may come from"
        remedy = f"add {os.path.dirname(real)}, or a folder above it, to speech.audio_roots"
        return AudioOutside(
            f"{problem}. If it belongs to the corpus, {remedy} (by hand: --audio-roots)"
        )
