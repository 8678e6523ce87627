"""An image folder in ImageFolder's order: which files are images and of which class (also of a flat
val), and which folders are refused. Imported by every parse: nothing heavy."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.common.errors import MillraceError, counted
from millrace.common.loading import links

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


@dataclass(frozen=True)
class _Split:
    """The images of a split by class, each (path, size, mtime_ns); and files that are left out."""

    name: str
    classes: dict[str, list[tuple[str, int, int]]]
    left_out: list[str]


def read_tree(root: str | os.PathLike) -> ImageTree:
    """List the images below `root`. Raises MillraceError for what is no such folder."""
    root = Path(root)
    _check_folders(root)
    val = validation_folder(root)
    splits = [_read_split(root, name) for name in ("train", val)]
    train_classes, val_classes = (split.classes.keys() for split in splits)
    if not train_classes & val_classes:
        shown = " and ".join(_shown(sorted(split.classes)) for split in splits)
        problem = f"train/ and {val}/ share no class: {shown}"
        raise MillraceError(problem, str(root), "Name them alike")

    classes = sorted(train_classes | val_classes)
    labels = {name: label for label, name in enumerate(classes)}
    rows = {split.name: _labelled(split, labels) for split in splits}
    for of_split in rows.values():
        _check_names(path for path, *_ in of_split)
    return ImageTree(root, classes, rows, _notes(splits, classes))


def _check_folders(root: Path) -> None:
    """Raise MillraceError for what is no folder, or holds no train/."""
    if (root / "train").is_dir():
        return
    problem = "holds no train/" if root.is_dir() else "is no folder"
    raise MillraceError(problem, str(root), f"Expected: {EXPECTED}")


def validation_folder(root: str | os.PathLike) -> str:
    """`val` or `validation`, whichever a folder has. Raises MillraceError without one, or with
    both."""
    names = [name for name in VALIDATION if Path(root, name).is_dir()]
    if len(names) == 1:
        return names[0]
    problem = "holds both val/ and validation/" if names else "holds neither val/ nor validation/"
    remedy = "One of them is read: bring it, or move the other away"
    raise MillraceError(problem, os.fspath(root), remedy)


def _read_split(root: Path, name: str) -> _Split:
    """The images of a split. Raises MillraceError for one without images, and for empty classes."""
    place = root / name
    left_out: list[str] = []
    classes: dict[str, list[tuple[str, int, int]]] = {}
    loose = []
    for entry in os.scandir(place):
        if _is_class(entry):
            classes[entry.name] = _images(f"{place}/{entry.name}", entry.name, left_out)
        else:
            loose.append(entry.name)
    loose.sort()

    has_images = any(classes.values())
    if name != "train" and loose and not has_images:
        classes = _flat(root, name, loose)
        loose = [file for file in loose if not _is_image(file)]
    elif not has_images:
        raise MillraceError("holds no images", str(place), f"Expected: {EXPECTED}")

    empty = sorted(each for each, images in classes.items() if not images)
    if empty:
        words = f"classes without images: {_shown(empty)} ({len(empty)} of {len(classes)})"
        raise MillraceError(words, str(place), "Bring their images, or remove the folders")
    return _Split(name, classes, [*loose, *left_out])


def _is_class(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a split is a folder. Raises MillraceError for a link to itself."""
    try:
        return entry.is_dir()
    except OSError as error:
        raise MillraceError(str(error.strerror), entry.path, "Mend or remove it") from None


def _labelled(split: _Split, labels: dict[str, int]) -> list[Row]:
    """The rows of a split, class after class."""
    rows = []
    for name in sorted(split.classes):
        rows += [(*image, labels[name]) for image in split.classes[name]]
    return rows


def _check_names(names: Iterable[str]) -> None:
    """Raise MillraceError for a name that cannot stand in a line of a partition file."""
    for name in names:
        is_utf8 = name.encode(errors="replace") == name.encode(errors="surrogateescape")
        if "\n" in name or "\r" in name or not is_utf8:
            problem = "a name that is not UTF-8, or holds a line break"
            raise MillraceError(problem, repr(name), "Rename it")


def _notes(splits: Sequence[_Split], classes: list[str]) -> list[str]:
    """What a person is told: files that are left out, classes that a split lacks."""
    notes = []
    why = "as they lie in no class, or their names end like no image's"
    for split in splits:
        if split.left_out:
            count = counted(len(split.left_out), "file")
            notes.append(f"{count} of {split.name}/ left out, {why}: {_shown(split.left_out)}")
    for split in splits:
        missing = [name for name in classes if name not in split.classes]
        if missing:
            count = f"{len(missing)} of {len(classes)} classes"
            notes.append(f"{count} not in {split.name}/: {_shown(missing)}")
    return notes


def _shown(names: list[str]) -> str:
    text = ", ".join(names[:5])
    if len(names) > 5:
        text += ", ..."
    return text.encode(errors="backslashreplace").decode()


def _images(folder: str, relative: str, left_out: list[str]) -> list[tuple[str, int, int]]:
    """(path, size, mtime_ns) of the images below `folder`, whose path in the split's is `relative`,
    by the paths of their folders, then by their names; other files are added to `left_out`."""
    places = []
    for place, names in links.walk(folder):
        below = f"{relative}{place[len(folder) :]}"
        places.append((below, place, sorted(names)))

    images = []
    for below, place, names in sorted(places):
        for name in names:
            if _is_image(name):
                images.append((f"{below}/{name}", *_stat(f"{place}/{name}")))
            else:
                left_out.append(f"{below}/{name}")
    return images


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


def _stat(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            return (status.st_size, status.st_mtime_ns)
        return (-1, 0)
    except OSError:
        return -1, 0


def _flat(root: Path, val: str, names: list[str]) -> dict[str, list[tuple[str, int, int]]]:
    """The images of a flat val: line n of synset_labels.txt is the class of the n-th name."""
    images = [name for name in names if _is_image(name)]
    path = root / LABELS
    if not path.is_file():
        problem = f"{len(images)} images that lie in no class" if images else "holds no images"
        remedy = f"Bring {LABELS} beside train/, line n for the n-th name. {EXPECTED}"
        raise MillraceError(problem, str(root / val), remedy)
    if images != sorted(images, key=_by_numbers):
        problem = f"the numbers in names differ in length ({images[0]})"
        remedy = "Rename them with leading zeros, or make class folders"
        raise MillraceError(f"{problem}, so the n-th name is ambiguous", str(root / val), remedy)

    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError:
        raise MillraceError("is not UTF-8", str(path), "Save it as UTF-8") from None
    labels = [line.strip() for line in lines]
    remedy = "Line n is the class of the n-th name: mend it"
    if "" in labels:
        raise MillraceError(f"line {labels.index('') + 1} is blank", str(path), remedy)
    if len(labels) != len(images):
        words = f"{len(labels)} lines for {len(images)} images of {val}/"
        raise MillraceError(words, str(path), remedy)

    classes: dict[str, list] = {}
    for label, name in zip(labels, images, strict=True):
        classes.setdefault(label, []).append((name, *_stat(f"{root}/{val}/{name}")))
    return classes


def _by_numbers(name: str) -> str:
    """What sorts names by the numbers in them: 9 before 10."""
    return re.sub(r"\d+", lambda number: number[0].zfill(30), name)
