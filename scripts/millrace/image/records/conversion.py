"""The conversion of one split of an image folder in one value: its plans, its settings, its
folders; it decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common.errors import MillraceError, Unusable
from millrace.image.records.deal import FilePlan
from millrace.image.records.folder import ImageTree
from millrace.image.records.options import RecordOptions
from millrace.image.records.pixels import read_image

# The workflow sees no damage: of its jobs those that convert have to be named.
CONVERT_AGAIN = (
    "Convert again: snakemake image_records --forcerun image_create_records, or by hand the same"
    " command"
)


class Conversion(NamedTuple):
    """The record files of a split, the split (of RecordOptions.of_split), and the files' folder."""

    plans: Sequence[FilePlan]
    split: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        return self.split["split"]

    @property
    def pixels(self) -> dict[str, Any]:
        """What decides on the bytes of the records."""
        return self.split["pixels"]

    def source(self, path: str) -> Path:
        """Where an image lies, of which the split's folder is left out."""
        return Path(self.split["folder"], path)

    def content(self, path: str) -> tuple[bytes, Any]:
        """An image that was usable: its bytes, and the picture (PIL). Raises MillraceError."""
        source = self.source(path)
        try:
            content = source.read_bytes()
            image, _ = read_image(content, source.suffix)
            return content, image
        except (OSError, Unusable) as error:
            problem = f"cannot be read any more: {error}"
            raise MillraceError(problem, str(source), "Run it again") from None


def of_tree(tree: ImageTree, split: str, options: RecordOptions, root: Path) -> Conversion:
    """The conversion of a split of an image folder into a folder below `root`."""
    return Conversion(options.plans(tree, split), options.of_split(tree, split), root / split)
