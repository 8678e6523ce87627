"""The image lane's sources: where the image folder is, and which record files form a partition.
Imported by every parse, so nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.workflow.differences import Items, unsaid
from millrace.common.workflow.partitions import Assignment
from millrace.common.workflow.sources import (
    Found,
    Partitions,
    SourcesMissing,
    Tables,
    Write,
    misplaced,
)
from millrace.image.records.deal import FilePlan
from millrace.image.records.folder import EXPECTED, Row, read_tree
from millrace.image.records.options import RecordOptions

# Keys whose effect is said otherwise, or that no job reads.
QUIET_KEYS = {"partition_images"}
REMEDY = "run `snakemake image_fetch_demo` for the demo, or set image.raw_data_dir"
DEMO_ROOT = Path("resources/image/demo")


@dataclass
class Settings:
    """What of the lane's config decides on partitions."""

    raw_data_dir: str
    partition_images: int
    records: Mapping[str, Any]


class _Block(NamedTuple):
    """A partition: some record files of a split."""

    name: str
    start: int  # its first file
    stop: int


def collect(settings: Settings, folder: Path, table: Tables) -> Found:
    """Partitions hold the images of some record files, in their order; `splits` all that belongs to
    a split.

    Raises SourcesMissing without an image folder, MillraceError for one that is no such folder.
    """
    options = RecordOptions(**settings.records)
    options.check("image.records")
    tree = read_tree(_image_folder(settings))
    blocks = {
        split: _blocks(split, len(rows), options, settings.partition_images)
        for split, rows in tree.rows.items()
    }
    groups = {split: [block.name for block in of_split] for split, of_split in blocks.items()}
    splits = {
        split: options.of_split(tree, split) | {"partitions": names}
        for split, names in groups.items()
    }

    def build(write: Write) -> Partitions:
        for split in tree.rows:
            plans = options.plans(tree, split)
            facts = {key: splits[split][key] for key in ("split", "folder", "pixels")}
            for block in blocks[split]:
                of_block = plans[block.start : block.stop]
                write(block.name, facts | {"files": [plan.as_dict() for plan in of_block]})
        return Partitions(
            Assignment(folder / "index/assignment.jsonl", 1),  # of nothing: the seed says it all
            groups,
            total=sum(map(len, tree.rows.values())),
            others={"splits": splits},
            notes=tree.notes,
        )

    return Found(
        build,
        state=jsonl.digest([asdict(settings), tree.classes, tree.rows, tree.notes]),
        items=_items(folder.parent),
        then="the index",
    )


def _image_folder(settings: Settings) -> Path:
    """Where the images are. Raises SourcesMissing."""
    root = Path(settings.raw_data_dir)
    if (root / "train").is_dir():
        return root
    if root == DEMO_ROOT and not root.exists():
        raise SourcesMissing(f"no images at {root}", pristine=True)
    demo = ". For the demo run `snakemake image_fetch_demo`" if root == DEMO_ROOT else ""
    raise SourcesMissing(misplaced("image.raw_data_dir", root, EXPECTED, "train") + demo)


def _blocks(split: str, images: int, options: RecordOptions, of_partition: int) -> list[_Block]:
    """The partitions of a split, of about so many images each."""
    files = options.files(split, images)
    step = max(1, round(of_partition * files / images))
    starts = range(0, files, step)
    return [
        _Block(f"{split}-{number:05d}", start, start + step) for number, start in enumerate(starts)
    ]


def _items(results: Path) -> dict[str, Items]:
    """How partition files are compared with what was built."""
    outputs = (f"{results}/records/partitions/{{}}.json",)
    return {
        "": Items(
            "image",
            _images,
            _kinds,
            outputs,
            group=lambda name: name.rpartition("-")[0],
            shown=str,  # whole: folders of classes number their images alike
        ),
        "splits": unsaid([f"{results}/records/{{}}/records.json"]),
    }


def _images(content: Mapping) -> dict[str, Row]:
    """The images of a partition by their paths with the split's name."""
    plans = [FilePlan.from_dict(plan) for plan in content["files"]]
    return {f"{content['split']}/{row[0]}": row for plan in plans for row in plan.rows}


def _kinds(old: Row, new: Row) -> list[str]:
    """What differs between two states of an image."""
    *before, label_before = old
    *now, label_now = new
    kinds = [] if before == now else ["replaced"]
    if label_before != label_now:
        kinds.append("another label")
    return kinds
