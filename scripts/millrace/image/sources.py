"""The image lane's sources: an image folder. Imported by every parse, so nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    if not (root / "train").is_dir():
        if root == DEMO_ROOT and not root.exists():
            raise SourcesMissing(f"no images at {root}", pristine=True)
        demo = ". For the demo run `snakemake image_fetch_demo`" if root == DEMO_ROOT else ""
        raise SourcesMissing(misplaced("image.raw_data_dir", root, EXPECTED, "train") + demo)
    tree = read_tree(root, bool(options.allow_empty))
    # Name, first file and end of the partitions of a split.
    blocks: dict[str, list[tuple[str, int, int]]] = {}
    for split, rows in tree.rows.items():
        files = options.files(split, len(rows))
        each = max(1, round(settings.partition_images * files / len(rows)))
        blocks[split] = [
            (f"{split}-{n:05d}", at, at + each) for n, at in enumerate(range(0, files, each))
        ]
    groups = {split: [name for name, *_ in of] for split, of in blocks.items()}
    splits = {
        split: options.of_split(tree, split) | {"partitions": names}
        for split, names in groups.items()
    }
    is_shuffled = bool(options.shuffle)
    order = Order(folder / "index/train.txt", f"seed {options.seed}" if is_shuffled else "sorted")

    def partitions() -> Iterator[tuple[str, dict]]:
        contents.assignment = order
        for split, rows in tree.rows.items():
            rows = order.apply(rows, options.seed) if split == "train" else rows
            files = options.files(split, len(rows))
            plans = list(deal(split, rows, files, is_shuffled and split == "train"))
            facts = {key: splits[split][key] for key in ("split", "folder", "pixels")}
            for name, start, stop in blocks[split]:
                yield name, facts | {"files": [plan.as_dict() for plan in plans[start:stop]]}

    outputs = (str(folder.parent / "records/partitions/{}.json"),)
    items = Items(
        "image", _images, lambda *_: ["replaced"], outputs, lambda name: name.rpartition("-")[0]
    )
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
        items={"": items, "splits": unsaid([f"{folder.parent}/records/{{}}/records.json"])},
        then="the index",
    )
    return contents


def _images(content: Mapping) -> dict[str, str]:
    rows = (row.split(" ", 3) for plan in content["files"] for row in plan["rows"])
    return {f"{content['split']}/{path}": f"{size} {mtime}" for _, size, mtime, path in rows}
