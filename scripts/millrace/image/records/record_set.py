"""A set of record files (a split, or a produced epoch), and its index `records.json`, written last:
whether it is whole, and whether train and val have the same classes."""

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
    RecordFile,
    Shape,
    multiset_digest,
    shape_of,
)

INDEX = "records.json"
LENGTHS = "length.npy"
# What an index says beside the fields of its set.
_SAME = {"version": 1, "layout": "fixed", "exif": "ignore"}
_MOST_CLASSES = 1_000_000  # each has a count in memory, also if no record is of it
_NUMBERED = re.compile(r".+-\d+-of-(\d+)\.h5")


@dataclass(frozen=True)
class RecordSet:
    """The record files of a split, in their order.

        records = RecordSet.open("results/image/records", "train")
        file, record = records.locate(12345)

    `split` is what the files' names begin with. `classes` are in sorted order over train and val; a
    label is the number of its class; `counts`: records of each. `size` is (H, W) of all images,
    `seed` shuffled the conversion. A produced epoch has its number in `epoch`, else 0,
    `pool` files shuffled together, and in `source` the `ids_digest` of what it was made from: the
    multiset digest of all records' ids, which are their numbers in the converted set, 0 to N - 1,
    whatever file and epoch they lie in.
    """

    folder: Path
    split: str
    classes: list[str]
    files: list[RecordFile]
    counts: list[int]
    size: tuple[int, int]
    seed: int = 0
    epoch: int = 0
    pool: int = 0
    ids_digest: str = ""
    source: str = ""
    has_index: bool = field(default=True, compare=False)

    @classmethod
    def open(cls, root: str | os.PathLike, folder: str = "train") -> RecordSet:
        """The set in `root`/`folder` (train, val, validation, train_3).

        Without an index (files of the original) the files are opened and counted. Raises
        MillraceError for what is missing, incomplete or of a layout that is not read.
        """
        place = Path(root, folder)
        if not place.is_dir():
            problem = "there is no such folder"
            raise MillraceError(problem, str(place), "Make it with millrace.image.create_records")
        if (place / INDEX).exists():
            records = cls._indexed(place)
        else:
            records = cls._counted(place)
        records._check_lengths()
        return records

    @classmethod
    def _indexed(cls, place: Path) -> RecordSet:
        """The set of an index, all of whose files are there."""
        with own_file(place / INDEX):
            content = jsonl.read(place / INDEX)
            same = {name: content.pop(name) for name in _SAME}
            if same != _SAME:
                problem = f"was written by another version of Millrace ({same})"
                raise MillraceError(problem, str(place / INDEX), "Convert again")
            content["files"] = [RecordFile(**each) for each in content["files"]]
            content["size"] = tuple(content["size"])
            records = cls(place, **content)

        missing = {file.name for file in records.files}.difference(os.listdir(place))
        if missing:
            problem = f"{len(missing)} of its {len(records.files)} files are missing"
            remedy = "Bring them, or convert again: the others are kept"
            raise MillraceError(f"{problem}: {min(missing)}", str(place), remedy)
        return records

    @classmethod
    def _counted(cls, place: Path) -> RecordSet:
        """A set without an index: its files in sorted order."""
        files: list[RecordFile] = []
        sizes: dict[tuple[int, int], None] = {}
        counts = Counter[int]()
        for path in sorted(place.glob("*.h5")):
            shape, labels = _opened(path)
            files.append(RecordFile(path.name, shape.records, path.stat().st_size))
            sizes[shape.size] = None
            counts.update(labels)
        if not files:
            problem = f"there is no {INDEX} and no *.h5"
            raise MillraceError(problem, str(place), "Is it being written?")
        _check_whole(files, place)
        size, *others = sizes
        if others:
            problem = f"holds images of different sizes, {size} and {others[0]}"
            raise MillraceError(problem, str(place), "Keep each size in a folder of its own")

        totals = [counts[label] for label in range(max(counts, default=-1) + 1)]
        classes = [str(label) for label in range(len(totals))]
        split = files[0].name.partition("-")[0]
        digest = multiset_digest([np.arange(sum(totals))])
        return cls(place, split, classes, files, totals, size, ids_digest=digest, has_index=False)

    def _check_lengths(self) -> None:
        """Raise MillraceError if `length.npy` is there and says something else."""
        path = self.folder / LENGTHS
        if not path.exists():
            return
        try:
            lengths = np.ravel(np.load(path)).tolist()
        except (ValueError, EOFError):
            lengths = ["nothing that can be read"]
        if lengths != self.lengths.tolist():
            shown = f"{lengths[:3]}..., the files hold {self.lengths[:3].tolist()}..."
            problem = f"says {shown} ({len(self.files)} files in sorted order)"
            raise MillraceError(problem, str(path), "Delete it: records are then counted")

    def write(self, is_scratch: bool = False) -> None:
        """Write `length.npy` and then the index, each whole; `is_scratch` as for RecordWriter."""
        write = Path.write_bytes if is_scratch else atomic.write_bytes
        buffer = io.BytesIO()
        np.save(buffer, self.lengths)
        write(self.folder / LENGTHS, buffer.getvalue())
        content = dataclasses.asdict(self) | _SAME
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
    from millrace.common.loading.h5 import UNREADABLE, open_h5, values_of

    try:
        with open_h5(str(path)) as h5:
            if "facts" in h5:
                problem = f"{INDEX} is missing: these records are not finished"
                remedy = "Wait for their writer, or start it again"
                raise MillraceError(problem, str(path.parent), remedy)
            shape = shape_of(h5, path)
            labels = values_of(h5["labels"])
            # Filters that are not installed are missed when values are read.
            values_of(h5["images"], np.s_[:1])
    except UNREADABLE as error:
        problem = f"cannot be read ({first_line(error)})"
        raise MillraceError(problem, str(path), "Write it again, or move it away") from None
    for label in (labels.min(initial=0), labels.max(initial=0)):
        if not 0 <= label < _MOST_CLASSES:
            remedy = f"Give labels from 0 to {_MOST_CLASSES - 1:,}"
            raise MillraceError(f"has the label {label}", str(path), remedy)
    return shape, labels.tolist()


def _check_whole(files: list[RecordFile], place: Path) -> None:
    """Raise MillraceError if the names of files say that they are of another number."""
    for file in files:
        name = _NUMBERED.fullmatch(file.name)
        if name and int(name[1]) != len(files):
            problem = f"{len(files)} record files that are not one whole set ({file.name})"
            remedy = "Bring what is missing, and move away what is of another set"
            raise MillraceError(problem, str(place), remedy)


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
