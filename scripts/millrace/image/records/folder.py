"""An image folder: its classes and images in ImageFolder's order. Imported by every parse: nothing
heavy."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from millrace.common.errors import MillraceError, counted

# ImageFolder's, in any case.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
VALIDATION = ("val", "validation")
LABELS = "synset_labels.txt"
EXPECTED = (
    f"train/<class>/<images> and val/ (or validation/) likewise, or val/<images> with {LABELS}"
)
# Path from the split's folder, size, mtime_ns, label. No file (a link to nowhere, a pipe): size -1.
Row = tuple[str, int, int, int]


@dataclass
class ImageTree:
    """`classes` are in sorted order over train and val; `rows` of each split in ImageFolder's
    order."""

    root: Path
    classes: list[str]
    rows: dict[str, list[Row]]
    notes: list[str] = field(default_factory=list)


def read_tree(root: str | os.PathLike, allow_empty: bool = False) -> ImageTree:
    """List the images below `root`. Raises MillraceError for what is no such folder."""
    root = Path(root)
    val = [name for name in VALIDATION if (root / name).is_dir()]
    if not (root / "train").is_dir() or len(val) != 1:
        problem = "holds val/ and validation/" if len(val) == 2 else "holds no train/ or no val/"
        problem = problem if root.is_dir() else "is no folder"
        raise MillraceError(problem, str(root), f"Expected: {EXPECTED}")
    splits, notes = {}, []
    for name in ("train", *val):
        place, skipped = root / name, list[str]()
        # A class is a folder; its images follow in the order of their folders' paths, then of their
        # names.
        folders = {each.name: each.is_dir() for each in os.scandir(place)}
        loose = sorted(each for each in folders if not folders[each])
        classes = {
            each: _images(f"{place}/{each}", each, skipped) for each in folders if folders[each]
        }
        if name != "train" and loose and not any(classes.values()):
            classes, loose = _flat(root, name, loose), []
        splits[name] = classes
        if not any(classes.values()):
            raise MillraceError("holds no images", str(place), f"Expected: {EXPECTED}")
        empty = sorted(each for each, rows in classes.items() if not rows)
        if empty and not allow_empty:
            words = f"classes without images: {_shown(empty)} ({len(empty)} of {len(classes)})"
            raise MillraceError(words, str(place), "Bring their images, or set allow_empty to 1")
        if skipped := [*loose, *skipped]:
            why = "as they lie in no class, or their names end like no image's"
            notes.append(
                f"{counted(len(skipped), 'file')} of {name}/ left out, {why}: {_shown(skipped)}"
            )
    labels = {name: label for label, name in enumerate(sorted(set().union(*splits.values())))}
    if not splits["train"].keys() & splits[val[0]].keys():
        shown = " and ".join(_shown(sorted(classes)) for classes in splits.values())
        raise MillraceError(
            f"train/ and {val[0]}/ share no class: {shown}", str(root), "Name them alike"
        )
    tree = ImageTree(root, list(labels), {}, notes)
    for name, classes in splits.items():
        tree.rows[name] = [
            (*row, labels[each]) for each in sorted(classes) for row in classes[each]
        ]
        if missing := [each for each in labels if each not in classes]:
            notes.append(
                f"{len(missing)} of {len(labels)} classes not in {name}/: {_shown(missing)}"
            )
        for path in (*labels, *(row[0] for row in tree.rows[name])):
            is_utf8 = path.encode(errors="replace") == path.encode(errors="surrogateescape")
            if "\n" in path or "\r" in path or not is_utf8:
                problem = "a name that is not UTF-8, or holds a line break"
                raise MillraceError(problem, repr(path), "Rename it")
    if hidden := [each for each in labels if each[0] == "."]:
        notes.append(f"hidden folders are classes too: {_shown(hidden)}")
    return tree


def _shown(names: list[str]) -> str:
    text = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return text.encode(errors="backslashreplace").decode()


def _images(folder: str, relative: str, skipped: list[str]) -> list[tuple[str, int, int]]:
    """(path, size, mtime_ns) of the images below `folder`, whose path in the split's is `relative`;
    other files are added to `skipped`."""

    def refuse(error: OSError) -> None:
        raise error

    rows, places = [], []
    for place, _, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = Path(os.path.realpath(place)) if os.path.islink(place) else None
        if real and any(
            Path(os.path.realpath(each)).is_relative_to(real) for each in Path(place).parents
        ):
            raise MillraceError(
                "a link to a folder that it lies in", place, "Remove it: it has no end"
            )
        places.append((f"{relative}{place[len(folder) :]}", place, names))
    for below, place, names in sorted(places):
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS):
                rows.append((f"{below}/{name}", *_stat(f"{place}/{name}")))
            else:
                skipped.append(f"{below}/{name}")
    return rows


def _stat(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
        return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (-1, 0)
    except OSError:
        return -1, 0


def _flat(root: Path, val: str, names: list[str]) -> dict[str, list[tuple[str, int, int]]]:
    """The images of a flat val: line n of synset_labels.txt is the class of the n-th name."""
    images = [name for name in names if name.lower().endswith(EXTENSIONS)]
    paths = [path for path in (root / LABELS, root / val / LABELS) if path.is_file()]
    if not paths:
        problem = f"{len(images)} images that lie in no class" if images else "holds no images"
        raise MillraceError(
            problem, str(root / val), f"Bring {LABELS}, line n for the n-th name. {EXPECTED}"
        )
    if images != sorted(
        images, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(30), name)
    ):
        problem = (
            f"the numbers in names differ in length ({images[0]}), so the n-th name is ambiguous"
        )
        raise MillraceError(
            problem, str(root / val), "Rename them with leading zeros, or make class folders"
        )
    try:
        lines = paths[0].read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise MillraceError("is not UTF-8", str(paths[0]), "Save it as UTF-8") from None
    if len(labels := [line.strip() for line in lines if line.strip()]) != len(images):
        words = f"{len(labels)} lines for {len(images)} images of {val}/"
        raise MillraceError(words, str(paths[0]), "Line n is the class of the n-th name: mend it")
    classes: dict[str, list] = {}
    for label, name in zip(labels, images, strict=True):
        classes.setdefault(label, []).append((name, *_stat(f"{root}/{val}/{name}")))
    return classes
