"""rejects.jsonl of a bucket build: what it says of each row that was left out, and in which
order."""

from __future__ import annotations

import shutil
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from millrace.asr.manifests import columns as mc
from millrace.common import atomic

# With what is known of the tar.
_TAR_REASONS = ("tar_missing", "tar_not_indexed", "not_in_tar", "not_a_file")
# What rejects.jsonl has of a row as it stands in the manifest.
_REJECTED = ("tar_member_name", "transcript", "language", "duration_s")


def place_of(files: Sequence[Path], row: int) -> tuple[Path, int]:
    """The file, and the number in it, of a row as manifests number them."""
    return files[row >> 40], row & ((1 << 40) - 1)


class RejectFile:
    """rejects.jsonl: every rejected row with its reason, file and row, in an order that no thread
    changes."""

    def __init__(
        self, path: Path, tars: Sequence[str], details: dict[str, str], folder: Path
    ) -> None:
        self.path = path
        self.folder = folder
        self.tars = [*tars, None]
        self.details = details
        self._parts: list[RejectPart] = []
        folder.mkdir(parents=True, exist_ok=True)

    def part(self, split: str, files: Sequence[Path]) -> RejectPart:
        """A new part; parts are joined in the order in which `part` made them."""
        path = self.folder / f"{len(self._parts):06d}.jsonl"
        self._parts.append(RejectPart(self, split, files, path))
        return self._parts[-1]

    def finish(self) -> None:
        """Write the file, empty if no row was rejected."""
        with atomic.replacing(self.path) as partial, open(partial, "wb") as target:
            for part in self._parts:
                if part.path.exists():
                    with open(part.path, "rb") as source:
                        shutil.copyfileobj(source, target)


class RejectPart(NamedTuple):
    """The rejects of one task, in a file of its own."""

    whole: RejectFile
    split: str
    files: Sequence[Path]
    path: Path

    def add(self, table: pa.Table, problem: np.ndarray) -> Counter[str]:
        """Write the rows of `table` whose `problem` is not 0; return their number by reason."""
        is_bad = problem > 0
        reasons = [mc.REASONS[code] for code in problem[is_bad].tolist()]
        rows = table.filter(pa.array(is_bad)).to_pylist()
        with open(self.path, "ab") as handle:
            for row, reason in zip(rows, reasons, strict=True):
                record = self._record(row, reason)
                handle.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        return Counter(reasons)

    def _record(self, row: dict[str, Any], reason: str) -> dict[str, Any]:
        file, number = place_of(self.files, row["row"])
        tar = self.whole.tars[row["tar"]]
        record = {
            "reason": reason,
            "split": self.split,
            "file": str(file),
            "row": number,
            "tar_path": tar,
        }
        record |= {name: row[name] for name in _REJECTED}
        details = [row.get("detail", "")]
        if reason in _TAR_REASONS:
            details.insert(0, self.whole.details.get(tar or "", ""))
        if reason == "not_in_tar" and _has_forms(row["tar_member_name"]):
            details.append("the tar may have the name in NFC or NFD, not as here")
        detail = "; ".join(filter(None, details))
        if detail:
            record["detail"] = detail
        return record


def _has_forms(name: str) -> bool:
    """Whether a name looks the same in several forms of Unicode, as one with an accent."""
    return unicodedata.normalize("NFC", name) != unicodedata.normalize("NFD", name)
