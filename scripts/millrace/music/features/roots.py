"""Which files lie where: features below their roots, what pointers of the JSONL mean, files of splits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from millrace.common.errors import MillraceError

SPLITS = ("train", "valid", "test")
_SPLIT_NAMES = {"val": "valid", "validation": "valid", "verify": "test"}
H5_ENDINGS = (".h5", ".hdf5", ".hdf")
# Where the published tree has its folders of .mm files below the root that a user names.
_MM_BASES = ("", "cqt", "magnitude_cqt/cqt", "*/magnitude_cqt/cqt")


class Root:
    """A folder below which features lie. Names count exactly, also on file systems that ignore case."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._names, self.chunk = cache(self._list), cache(self._chunk)

    def _list(self, folder: str) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self.path / folder))
        except OSError:
            return frozenset()

    def has(self, relative: str) -> bool:
        """Whether the file is there; each folder is listed once."""
        folder, _, name = relative.rpartition("/")
        return name in self._names(folder) and (not folder or self.has(folder))

    def resolve(self, pointer: str) -> str | None:
        r"""The path below this root that a pointer from any machine means, or None.

        `D:\old\place\a.h5`, `/dead/place/a.h5` and `../a.h5` all lead to `a.h5`, or to `place/a.h5` if
        that exists: the longest end of the pointer wins.
        """
        parts = [part for part in re.split(r"[\\/]+", pointer) if part not in ("", ".")]
        while parts and (parts[0] == ".." or re.fullmatch(r"[A-Za-z]:", parts[0])):
            parts = parts[1:]
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        return next((end for end in ends if ".." not in end.split("/") and self.has(end)), None)

    def _chunk(self, pointer: str | int) -> str | None:
        """The HDF5 file that `h5_chunk` means (a name, a path, or the number in its name), or None.

        Raises MillraceError if a number fits several files.
        """
        if isinstance(pointer, str) and not re.fullmatch(r"\d+", pointer.strip()):
            return self.resolve(pointer)
        numbers = ((file, re.search(r"(\d+)\.\w+$", file)) for file in self.h5_files())
        files = [file for file, digits in numbers if digits and int(digits[1]) == int(pointer)]
        if len(files) > 1:
            problem = f"chunk {pointer} may be {files[0]} or {files[1]}"
            raise MillraceError(problem, str(self.path), "Give h5_chunk as a file name")
        return files[0] if files else None

    def places(self, kind: str) -> list[str]:
        """HDF5 files (kind h5) or folders of .mm files."""
        return self.h5_files() if kind == "h5" else self.mm_folders()

    def h5_files(self) -> list[str]:
        """All HDF5 files at the root and one folder below, sorted."""
        names = sorted(self._names(""))
        below = (f"{name}/{inner}" for name in names for inner in sorted(self._names(name)))
        return [name for name in [*names, *below] if name.lower().endswith(H5_ENDINGS)]

    def mm_folders(self) -> list[str]:
        """All folders of two characters that may hold .mm files, below the places of the published tree."""
        bases = [place for base in _MM_BASES for place in (self.path.glob(base) if base else [self.path])]
        folders = {
            os.path.relpath(entry.path, self.path).replace(os.sep, "/")
            for base in bases
            if base.is_dir()
            for entry in os.scandir(base)
            if len(entry.name) == 2 and entry.is_dir()
        }
        return sorted(folders)


def split_name(name: str) -> str:
    """train, valid or test, which the files also call val and verify. Raises MillraceError for others."""
    if (known := _SPLIT_NAMES.get(name, name)) not in SPLITS:
        raise MillraceError(f"no split is called {name}", remedy=f"Use {', '.join(SPLITS)}, val or verify")
    return known


def split_files(places: str | Mapping[str, str]) -> dict[str, str]:
    """The file of each split: of {split: file}, or of a folder with train.json, light.json.val and so on."""
    if isinstance(places, Mapping):
        return {split_name(name): path for name, path in places.items()}
    files: dict[str, str] = {}
    for path in sorted(Path(places).iterdir()) if Path(places).is_dir() else []:
        name = path.name.removesuffix(".json").rpartition(".")[2]
        split = _SPLIT_NAMES.get(name, name)
        if split in SPLITS and path.is_file():
            if split in files:
                problem = f"{files[split]} and {path.name} may both be {split}"
                raise MillraceError(problem, str(places), "Set music.splits to {train: FILE, valid: FILE}")
            files[split] = str(path)
    return {split: files[split] for split in SPLITS if split in files}
