"""An image folder: its classes and images in ImageFolder's order. Imported by every parse: nothing heavy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from millrace.common.errors import MillraceError

# ImageFolder's, in any case.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
VALIDATION = ("val", "validation")
LABELS = "synset_labels.txt"
EXPECTED = f"train/<class>/<images> and val/ (or validation/) likewise, or val/<images> with {LABELS}"
# Path from the split's folder, size, mtime_ns, label. A link to nowhere has size -1.
Row = tuple[str, int, int, int]


@dataclass
class ImageTree:
    """`classes` are in sorted order over train and val; `rows` of each split in ImageFolder's order."""

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
    splits = {}
    for name in ("train", *val):
        # A class is a folder; its images follow in the order of their folders' paths, then of their names.
        with os.scandir(root / name) as entries:
            splits[name] = {each.name: _images(each.path, each.name) for each in entries if each.is_dir()}
    splits[val[0]] = splits[val[0]] or _flat(root, val[0])
    labels = {name: label for label, name in enumerate(sorted(set().union(*splits.values())))}
    tree = ImageTree(root, list(labels), {})
    for name, classes in splits.items():
        if not any(classes.values()):
            raise MillraceError("holds no images", str(root / name), f"Expected: {EXPECTED}")
        empty = sorted(each for each, rows in classes.items() if not rows)
        if empty and not allow_empty:
            words = f"classes without images: {_shown(empty)} ({len(empty)} of {len(classes)})"
            raise MillraceError(words, str(root / name), "Bring their images, or set allow_empty to 1")
        tree.rows[name] = [(*row, labels[each]) for each in sorted(classes) for row in classes[each]]
        if missing := [each for each in labels if each not in classes]:
            words = f"{len(missing)} of {len(labels)} classes not in {name}/: {_shown(missing)}"
            tree.notes.append(words)
        for path, *_ in tree.rows[name]:
            if "\n" in path or path.encode(errors="replace") != path.encode(errors="surrogateescape"):
                problem = "a name that is not UTF-8, or holds a line break"
                raise MillraceError(problem, repr(path), "Rename it")
    return tree


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _images(folder: str, relative: str) -> list[tuple[str, int, int]]:
    """(path, size, mtime_ns) of the images below `folder`, whose path in the split's is `relative`."""

    def refuse(error: OSError) -> None:
        raise error

    return [
        (f"{relative}{place[len(folder) :]}/{name}", *_stat(f"{place}/{name}"))
        for place, _, names in sorted(os.walk(folder, onerror=refuse, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(EXTENSIONS)
    ]


def _stat(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    except OSError:
        return -1, 0


def _flat(root: Path, val: str) -> dict[str, list[tuple[str, int, int]]]:
    """The images of a flat val: line n of synset_labels.txt is the class of the n-th name."""
    images = sorted(name for name in os.listdir(root / val) if name.lower().endswith(EXTENSIONS))
    rows = [(name, *_stat(f"{root}/{val}/{name}")) for name in images]
    paths = [path for path in (root / LABELS, root / val / LABELS) if path.is_file()]
    if not paths:
        problem = f"{len(rows)} images that lie in no class" if rows else "holds no images"
        raise MillraceError(problem, str(root / val), f"Bring {LABELS}, line n for the n-th name. {EXPECTED}")
    names = [line.strip() for line in paths[0].read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if len(names) != len(rows):
        raise MillraceError(f"{len(names)} lines for {len(rows)} images of {val}/", str(paths[0]), "Mend it")
    classes: dict[str, list] = {}
    for name, row in zip(names, rows, strict=True):
        classes.setdefault(name, []).append(row)
    return classes
