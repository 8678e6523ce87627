"""A set of record files (a split, or a produced epoch), and its index `records.json`, written
last."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError, first_line, own_file
from millrace.image.records.deal import file_name as file_name
from millrace.image.records.record_file import (
    FIXED,
    RecordFile,
    Shape,
    multiset_digest,
    shape_of,
)

INDEX = "records.json"
LENGTHS = "length.npy"
_VERSION = 1
_NUMBERED = re.compile(r"(.+)-\d+-of-(\d+)\.h5")


@dataclass(frozen=True)
class RecordSet:
    """The record files of a split, in their order.

        records = RecordSet.open("results/image/records", "train")
        file, record = records.locate(12345)

    `split` is what the files' names begin with. `classes` are in sorted order over train and val; a
    label is the number of its class; `counts`: records of each. `size` is (H, W) of the fixed
    layout, `seed` shuffled the conversion. A produced epoch has its number in `epoch`, else 0,
    `pool` files shuffled together, and in `source` the `ids_digest` of what it was made from: the
    multiset digest of all records' ids, which are their numbers in the converted set, 0 to N - 1,
    whatever file and epoch they lie in.
    """

    folder: Path
    split: str
    classes: list[str]
    files: list[RecordFile]
    counts: list[int]
    layout: str = FIXED
    size: tuple[int, int] | None = None
    exif: str = "ignore"
    seed: int = 0
    epoch: int = 0
    pool: int = 0
    ids_digest: str = ""
    source: str = ""
    has_index: bool = field(default=True, compare=False)

    @classmethod
    def open(cls, root: str | os.PathLike, folder: str = "train") -> RecordSet:
        """The set in `root`/`folder` (train, val, validation, train_3).

        Without an index (files of other programs) the files are opened and counted. Raises
        MillraceError for what is missing, incomplete or of a layout that is not read.
        """
        place = Path(root, folder)
        if not place.is_dir():
            raise MillraceError(
                "there is no such folder", str(place), "Make it with millrace.image.create_records"
            )
        if (place / INDEX).exists():
            with own_file(place / INDEX):
                content = jsonl.read(place / INDEX)
                if content.pop("version") != _VERSION:
                    words = "was written by another version"
                    remedy = "Convert again, or use that version"
                    raise MillraceError(f"{words} of Millrace", str(place / INDEX), remedy)
                content["files"] = [RecordFile(**each) for each in content["files"]]
                content["size"] = tuple(content["size"]) if content["size"] else None
                records = cls(place, **content)
            if missing := {file.name for file in records.files}.difference(os.listdir(place)):
                words = (
                    f"{len(missing)} of its {len(records.files)} files are missing: {min(missing)}"
                )
                raise MillraceError(
                    words, str(place), "Bring them, or convert again: the others are kept"
                )
            if len(records.counts) > len(records.classes):
                words = (
                    f"labels up to {len(records.counts) - 1}, but {len(records.classes)} classes"
                )
                raise MillraceError(words, str(place / INDEX), "Convert train and val together")
        else:
            records = cls._counted(place)
        if (place / LENGTHS).exists():
            try:
                lengths = np.ravel(np.load(place / LENGTHS)).tolist()
            except (ValueError, EOFError):
                lengths = ["nothing that can be read"]
            if lengths != records.lengths.tolist():
                shown = f"{lengths[:3]}..., the files hold {records.lengths[:3].tolist()}..."
                words = f"says {shown} ({len(records.files)} files in sorted order)"
                raise MillraceError(
                    words, str(place / LENGTHS), "Delete it: records are then counted"
                )
        return records

    @classmethod
    def _counted(cls, place: Path) -> RecordSet:
        """A set without an index: its files in sorted order."""
        files: list[RecordFile] = []
        kinds: dict[tuple[str, tuple[int, int] | None], None] = {}
        counts = Counter[int]()
        for path in sorted(place.glob("*.h5")):
            shape, labels = _opened(path)
            files.append(RecordFile(path.name, shape.records, path.stat().st_size))
            kinds[shape.layout, shape.size] = None
            counts.update(labels)
        if not files:
            problem = f"there is no {INDEX} and no *.h5"
            raise MillraceError(problem, str(place), "Is it being written?")
        _check_whole(files, place)
        kind, *others = kinds
        if others:
            words = f"holds files of different layouts, {kind} and {others[0]}"
            raise MillraceError(words, str(place), "Keep each layout in a folder of its own")

        totals = [counts[label] for label in range(max(counts, default=-1) + 1)]
        classes = [str(label) for label in range(len(totals))]
        split = files[0].name.partition("-")[0]
        layout, size = kind
        records = cls(place, split, classes, files, totals, layout, size, has_index=False)
        return dataclasses.replace(records, ids_digest=multiset_digest([np.arange(len(records))]))

    def write(self, is_scratch: bool = False) -> None:
        """Write `length.npy` and then the index, each whole; `is_scratch` as for RecordWriter."""
        write = Path.write_bytes if is_scratch else atomic.write_bytes
        buffer = io.BytesIO()
        np.save(buffer, self.lengths)
        write(self.folder / LENGTHS, buffer.getvalue())
        content = dataclasses.asdict(self) | {"version": _VERSION}
        del content["folder"], content["has_index"]
        write(self.folder / INDEX, atomic.json_bytes(content))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Records of each file."""
        return np.array([file.records for file in self.files], np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """Global index of each file's first record, and of the end: files + 1 numbers."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def path(self, file: int) -> Path:
        """Where a file lies."""
        return self.folder / self.files[file].name

    def locate(self, index: int) -> tuple[int, int]:
        """(file, record in it) of a global index. Raises IndexError beyond the last one."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, int(index - self.starts[file])


def _opened(path: Path) -> tuple[Shape, list[int]]:
    """What lies in a file of another program, and its labels."""
    from millrace.common.loading.h5 import open_h5

    try:
        with open_h5(str(path)) as h5:
            if "facts" in h5:
                words = f"{INDEX} is missing: these records are not finished"
                remedy = "Wait for their writer, or start it again"
                raise MillraceError(words, str(path.parent), remedy)
            shape = shape_of(h5, path)
            labels = h5["labels"][()]
    except OSError as error:
        words = f"cannot be read ({first_line(error)})"
        raise MillraceError(words, str(path), "Write it again, or move it away") from None
    if labels.min(initial=0) < 0:
        raise MillraceError(f"has the label {labels.min()}", str(path), "Labels count from 0")
    return shape, labels.tolist()


def _check_whole(files: list[RecordFile], place: Path) -> None:
    """Raise MillraceError if the names of files say that they are of another number."""
    names = (_NUMBERED.fullmatch(file.name) for file in files)
    sets = Counter(name.groups() for name in names if name)
    if any(len(files) != int(total) for _, total in sets):
        parts = (f"{count} of {int(total)} {name}" for (name, total), count in sets.items())
        words = f"{len(files)} record files that are not one whole set: {', '.join(parts)}"
        remedy = "Bring what is missing, and move away what is of another set"
        raise MillraceError(words, str(place), remedy)


def check_classes(train: RecordSet, val: RecordSet) -> None:
    """Raise MillraceError if labels of the two sets do not mean the same classes."""
    labels = []
    for records in (train, val):
        labels.append({label for label, count in enumerate(records.counts) if count})
    if train.has_index and val.has_index and train.classes != val.classes:
        problem = f"have {len(train.classes)} and {len(val.classes)} classes that differ"
    elif not labels[0] & labels[1]:
        ranges = " and ".join(f"{min(each)} to {max(each)}" for each in labels if each)
        problem = f"share no label ({ranges})"
    elif len(val.counts) > len(train.classes):
        problem = (
            f"labels of val go up to {len(val.counts) - 1}, train has {len(train.classes)} classes"
        )
    else:
        return
    remedy = "Convert both together: the labels must mean the same"
    raise MillraceError(problem, f"{train.folder} and {val.folder}", remedy)
