"""Which files lie where: features below their roots, what pointers of the JSONL mean, files of
splits."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

from millrace.common.errors import MillraceError

SPLITS = ("train", "valid", "test")
_SPLIT_NAMES = {
    "val": "valid",
    "validation": "valid",
    "verify": "test",
}
H5_ENDINGS = (".h5", ".hdf5", ".hdf")
_PUBLISHED = "magnitude_cqt/cqt"  # where the published tree has its folders of .mm files
_LEVELS = 5  # of folders in which HDF5 files are looked for
_MAX_NAME = 200


class Root:
    """A folder below which features lie. Names count exactly, also on file systems that ignore
    case."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        # Each folder is listed once, each pointer followed once.
        self._names = cache(self._list)
        self.places = cache(self._places)
        self._h5 = cache(self._h5_file)

    def _list(self, folder: str) -> dict[str, bool]:
        """Names in a folder, and whether each is a folder; a link to a folder above it is none."""
        here = os.path.join(os.path.realpath(self.path / folder), "")

        def is_folder(entry: os.DirEntry) -> bool:
            if entry.is_symlink():
                return os.path.isdir(entry) and not here.startswith(
                    os.path.join(os.path.realpath(entry), "")
                )
            return entry.is_dir()

        try:
            with os.scandir(here) as entries:
                return {entry.name: is_folder(entry) for entry in entries}
        except PermissionError as error:
            raise MillraceError(
                "cannot be listed", error.filename, "Allow reading the folder"
            ) from None
        except OSError:
            return {}

    def _folders(self, folder: str) -> list[str]:
        return [
            os.path.join(folder, name)
            for name, is_folder in self._names(folder).items()
            if is_folder
        ]

    def _places(self, kind: str) -> dict[str, None]:
        """HDF5 files or folders of .mm files, sorted. Raises MillraceError if one cannot name a
        partition."""
        places = []
        folders = [""]
        if kind == "h5":  # at any of the first levels, but what macOS writes beside a file
            for _ in range(_LEVELS):
                paths = [
                    os.path.join(folder, name) for folder in folders for name in self._names(folder)
                ]
                places += [
                    path
                    for path in paths
                    if path.lower().endswith(H5_ENDINGS) and "/._" not in f"/{path}"
                ]
                folders = [path for folder in folders for path in self._folders(folder)]
        else:  # of two characters, also where the published tree has them
            folders += [
                "cqt",
                _PUBLISHED,
                *(f"{folder}/{_PUBLISHED}" for folder in self._folders("")),
            ]
            paths = [path for folder in folders for path in self._folders(folder)]
            places = [path for path in paths if len(os.path.basename(path)) == 2]
        for path in places:
            if not path.isprintable() or len(quote(path, safe="")) > _MAX_NAME:
                problem = f"the path {path!a} is too long or not printable"
                raise MillraceError(problem, str(self.path), "Rename it")
        return dict.fromkeys(sorted(places))

    def _ends(self, pointer: str) -> list[str]:
        r"""Paths below this root that a pointer from any machine may mean, the longest first.

        `D:\old\place\a.h5`, `/dead/place/a.h5` and `../a.h5` all lead to `a.h5`, or to
        `place/a.h5`.
        """
        parts = [part for part in re.split(r"[\\/]+", pointer) if part not in ("", ".")]
        return ["/".join(parts[start:]) for start in range(len(parts))]

    def find(self, kind: str, pointer: str) -> str | None:
        """The HDF5 file (kind h5), or the .mm file in one of the folders (mm), that a pointer
        means, or None."""
        if kind == "h5":
            return self._h5(pointer)
        for end in self._ends(pointer):
            folder, _, name = end.rpartition("/")
            if folder in self.places("mm") and name in self._names(folder):
                return end
        return None

    def _h5_file(self, pointer: str) -> str | None:
        """A name, or a path."""
        places = self.places("h5")
        ends = self._ends(pointer.strip())
        for end in ends:
            if end in places:
                return end
        names = [file for file in places if os.path.basename(file) in ends[-1:]]
        return names[0] if len(names) == 1 else None


def regular_file(path: str | os.PathLike) -> os.stat_result:
    """What the system says of a file. Raises OSError for what is none: a pipe would be read for
    ever."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        words = "no regular file, but a folder, pipe or device"
        raise OSError(errno.EINVAL, words)
    return status


def split_name(name: str) -> str:
    """train, valid or test, which the files also call val and verify. Raises MillraceError for
    others."""
    if (known := _SPLIT_NAMES.get(name, name)) not in SPLITS:
        raise MillraceError(
            f"no split is called {name}", remedy=f"Use {', '.join(SPLITS)}, val or verify"
        )
    return known


def split_files(places: str | Mapping[str, str]) -> dict[str, str]:
    """The file of each split: of {split: file}, or of a folder with train.json, light.json.val and
    so on."""
    if isinstance(places, Mapping):
        return {split_name(name): path for name, path in places.items()}
    files: dict[str, str] = {}
    for path in sorted(Path(places).iterdir()) if Path(places).is_dir() else []:
        name = path.name.removesuffix(".json").rpartition(".")[2]
        split = _SPLIT_NAMES.get(name, name)
        if split in SPLITS and path.is_file():
            if split in files:
                problem = f"{files[split]} and {path.name} may both be {split}"
                raise MillraceError(
                    problem, str(places), "Set music.splits to {train: FILE, valid: FILE}"
                )
            files[split] = str(path)
    return {split: files[split] for split in SPLITS if split in files}
