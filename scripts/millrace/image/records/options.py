"""What an image folder is converted into: numbers of files, sizes in pixels, the limits; flags of
create_records, keys of the config."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.common import settings
from millrace.common.errors import MillraceError
from millrace.common.settings import setting
from millrace.image.records.deal import FilePlan, deal, in_order
from millrace.image.records.folder import ImageTree

MAX_PIXELS = 50_000_000  # width x height of an image; one of more is rejected


@dataclass(frozen=True)
class RecordOptions:
    """The choices of create_records' flags of the same names; see its --help."""

    train_files: int = setting(100, "record files of train", at_least=1, at_most=99999)
    val_files: int = setting(2, "record files of val", at_least=1, at_most=99999)
    train_size: int = setting(256, "pixels: shorter side and centre crop of train", at_least=1)
    val_resize: int = setting(256, "pixels: shorter side of val", at_least=1)
    val_size: int = setting(224, "pixels: centre crop of val, at most val_resize", at_least=1)
    max_error_fraction: float = setting(
        0.1, "share of damaged images allowed", at_least=0, at_most=1
    )
    seed: int = setting(
        42, "of the shuffle of train", at_least=0, at_most=2147483647, in_config=False
    )

    def check(self, where: str) -> None:
        """Raise MillraceError for a value that is out of its range."""
        settings.check(self, where)
        if self.val_size > self.val_resize:
            words = f"val_size {self.val_size} is more than val_resize {self.val_resize}"
            raise MillraceError(words, where, "A crop must fit into the resized image")

    def of_split(self, tree: ImageTree, split: str) -> dict:
        """What the conversion of a split needs beside its images, ready for JSON.

        `pixels` is what decides on the bytes of its records: the digests in them are of it.
        """
        if split == "train":
            sizes = {"resize": self.train_size, "crop": self.train_size}
        else:
            sizes = {"resize": self.val_resize, "crop": self.val_size}
        pixels = {"layout": "fixed", "exif": "ignore", "max_pixels": MAX_PIXELS, **sizes}
        return {
            "split": split,
            "folder": str(tree.root / split),
            "classes": tree.classes,
            "pixels": pixels,
            "seed": self.seed,
        }

    def plans(self, tree: ImageTree, split: str) -> list[FilePlan]:
        """The record files of a split, over which the seed shuffles train."""
        rows = tree.rows[split]
        is_shuffled = split == "train"
        if is_shuffled:
            rows = in_order(rows, self.seed)
        files = self.files(split, len(rows))
        return list(deal(split, rows, files, is_shuffled))

    def files(self, split: str, records: int) -> int:
        """How many files so many records of a split go into; none is empty."""
        files = self.train_files if split == "train" else self.val_files
        return max(1, min(files, records))
