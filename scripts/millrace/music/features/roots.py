"""Which files lie where: features below their roots, what pointers of the JSONL mean on this
machine, how files of splits may be called."""

from __future__ import annotations

import os
import re
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
H5_ENDINGS = (".h5", ".hdf5")
_PUBLISHED = "magnitude_cqt/cqt"  # where the published tree has its folders of .mm files
_MAX_NAME = 200


class Root:
    """A folder below which features lie. Names count exactly, also on file systems that ignore
    case."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        # Each folder is listed once, each pointer followed once.
        self._names = cache(self._list)
        self.places = cache(self._places)
        self.find = cache(self._find)

    def _list(self, folder: str) -> dict[str, bool]:
        """Names in a folder, and whether each is a folder."""
        try:
            with os.scandir(self.path / folder) as entries:
                return {os.path.join(folder, entry.name): entry.is_dir() for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            problem = f"cannot be listed ({error.strerror})"
            raise MillraceError(
                problem, str(self.path / folder), "Allow reading the folder"
            ) from None

    def _folders(self, folder: str) -> list[str]:
        return [path for path, is_folder in self._names(folder).items() if is_folder]

    def _places(self, kind: str) -> dict[str, None]:
        """HDF5 files, also one folder below, or folders of .mm files, of two characters; sorted.

        Raises MillraceError if one cannot name a partition.
        """
        if kind == "h5":
            names = [path for folder in ("", *self._folders("")) for path in self._names(folder)]
            places = [path for path in names if _is_h5(path)]
        else:
            trees = [f"{folder}/{_PUBLISHED}" for folder in self._folders("")]
            above = ["", "cqt", _PUBLISHED, *trees]
            names = [path for folder in above for path in self._folders(folder)]
            places = [path for path in names if len(os.path.basename(path)) == 2]
        for path in places:
            if not path.isprintable() or len(quote(path, safe="")) > _MAX_NAME:
                problem = f"the path {path!a} is too long or not printable"
                raise MillraceError(problem, str(self.path), "Rename it")
        return dict.fromkeys(sorted(places))

    def _find(self, kind: str, pointer: str) -> str | None:
        r"""The HDF5 file (kind h5), or the .mm file in one of the folders (mm), that a pointer of
        any machine means, or None.

        `D:\old\place\a.h5`, `/dead/place/a.h5` and `../a.h5` all lead to `a.h5`, or to
        `place/a.h5`.
        """
        parts = re.split(r"[\\/]+", pointer.strip())
        for start in range(len(parts)):
            end = "/".join(parts[start:])
            folder = os.path.dirname(end)
            is_mm = kind == "mm" and folder in self.places("mm") and end in self._names(folder)
            if is_mm or (kind == "h5" and end in self.places("h5")):
                return end

        # A bare name of a file that lies one folder below.
        places = self.places("h5") if kind == "h5" else ()
        named = [file for file in places if os.path.basename(file) == parts[-1]]
        return named[0] if len(named) == 1 else None


def _is_h5(path: str) -> bool:
    """Whether a file is named like HDF5, and is none that macOS writes beside it."""
    return path.lower().endswith(H5_ENDINGS) and not os.path.basename(path).startswith("._")


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
