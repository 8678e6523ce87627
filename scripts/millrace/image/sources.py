"""The image lane's sources: an image folder. Imported by every parse, so nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.workflow.built import Items, unsaid
from millrace.common.workflow.sources import Contents, SourcesMissing, Tables, misplaced
from millrace.image.records.deal import deal, in_order
from millrace.image.records.folder import EXPECTED, Row, read_tree
from millrace.image.records.options import RecordOptions

# Keys whose effect is said otherwise, or that no job reads.
QUIET_KEYS = {"raw_data_dir", "partition_images"}
REMEDY = "run `snakemake image_fetch_demo` for the demo, or set image.raw_data_dir"
DEMO_ROOT = Path("resources/image/demo")


@dataclass
class Settings:
    """What of the lane's config decides on partitions."""

    raw_data_dir: str
    partition_images: int
    records: Mapping[str, Any]


class Order:
    """The ids of train's images, for ever once a run has started: path number n, from 0, is record
    n."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind, self.added = path, kind, list[str]()
        self.saved = path.read_text().split("\n")[:-1] if path.exists() else []

    def apply(self, rows: list[Row], seed: int) -> list[Row]:
        """The rows by id; their order is `added` if it is new."""
        if self.kind != "sorted":
            rows = in_order(rows, seed, self.saved[1:] if self.saved[:1] == [self.kind] else [])
        lines = [self.kind, *(row[0] for row in rows)]
        self.added = lines if lines != self.saved else []
        return rows

    def content(self) -> bytes:
        """What the file is to hold."""
        return "\n".join([*(self.added or self.saved), ""]).encode()


def collect(settings: Settings, folder: Path, table: Tables) -> Contents:
    """Partitions hold the images of some record files, in their order; `splits` all that belongs to
    a split.

    Raises SourcesMissing without an image folder, MillraceError for one that is no such folder.
    """
    options = RecordOptions(**settings.records)
    options.check("image.records")
    root = Path(settings.raw_data_dir)
    _check_root(root)
    tree = read_tree(root, bool(options.allow_empty))

    blocks = {
        split: _blocks(split, options.files(split, len(rows)), len(rows), settings.partition_images)
        for split, rows in tree.rows.items()
    }
    groups = {split: [block.name for block in of_split] for split, of_split in blocks.items()}
    splits = {
        split: options.of_split(tree, split) | {"partitions": names}
        for split, names in groups.items()
    }
    kind = f"seed {options.seed}" if options.shuffle else "sorted"
    order = Order(folder / "index/train.txt", kind)

    def partitions() -> Iterator[tuple[str, dict]]:
        contents.assignment = order
        for split, rows in tree.rows.items():
            ordered = order.apply(rows, options.seed) if split == "train" else rows
            is_shuffled = bool(options.shuffle) and split == "train"
            plans = list(deal(split, ordered, options.files(split, len(rows)), is_shuffled))
            facts = {key: splits[split][key] for key in ("split", "folder", "pixels")}
            for block in blocks[split]:
                files = [plan.as_dict() for plan in plans[block.first : block.end]]
                yield block.name, facts | {"files": files}

    records = folder.parent / "records"
    reports = (str(records / "partitions/{}.json"),)
    items = Items("image", _images, _replaced, reports, _split_of)
    # The order of an earlier run decides too.
    decided = os.stat(order.path).st_mtime_ns if order.saved else 0
    contents = Contents(
        None,
        partitions(),
        groups,
        state=jsonl.digest([asdict(settings), tree.classes, tree.rows, decided]),
        total=sum(map(len, tree.rows.values())),
        notes=tree.notes,
        others={"splits": splits},
        items={"": items, "splits": unsaid([f"{records}/{{}}/records.json"])},
        then="the index",
    )
    return contents


class _Block(NamedTuple):
    """A partition: record files `first` to `end` - 1 of a split."""

    name: str
    first: int
    end: int


def _blocks(split: str, files: int, images: int, partition_images: int) -> list[_Block]:
    """The partitions of a split, each of about so many images, in whole files."""
    size = max(1, round(partition_images * files / images))
    starts = range(0, files, size)
    return [
        _Block(f"{split}-{number:05d}", start, start + size) for number, start in enumerate(starts)
    ]


def _check_root(root: Path) -> None:
    """Raise SourcesMissing without an image folder."""
    if (root / "train").is_dir():
        return
    if root != DEMO_ROOT:
        raise SourcesMissing(misplaced("image.raw_data_dir", root, EXPECTED, "train"))
    if not root.exists():
        raise SourcesMissing(f"no images at {root}", pristine=True)
    words = misplaced("image.raw_data_dir", root, EXPECTED, "train")
    raise SourcesMissing(f"{words}. For the demo run `snakemake image_fetch_demo`")


def _replaced(old: Any, new: Any) -> list[str]:
    return ["replaced"]


def _split_of(partition: str) -> str:
    return partition.rpartition("-")[0]


def _images(content: Mapping) -> dict[str, str]:
    rows = (row.split(" ", 3) for plan in content["files"] for row in plan["rows"])
    return {f"{content['split']}/{path}": f"{size} {mtime}" for _, size, mtime, path in rows}
