"""Manifests of samples in tars as one row schema: other names of columns, which of them may be
missing, how paths of tars are resolved, which file is of which split."""

from __future__ import annotations

import abc
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from millrace.asr.manifests import files as manifest_files
from millrace.common.errors import MillraceError
from millrace.common.path_map import PathMap

PIECE = 1 << 17  # rows of one piece: about 30 MB with transcripts of usual length
TAR_TEMPLATE = "audio_{shard_id}.tar"
# The columns of a row, and the names under which files have them; of several in one file the first
# counts.
ALIASES = {
    "tar_path": ("tar_path", "tar"),
    "tar_member_name": ("tar_member_name", "member", "audio_filepath"),
    "transcript": ("transcript", "text"),
    "language": ("language", "lang"),
    "duration_s": ("duration_s", "duration", "duration_seconds"),
    "prompt": ("prompt",),
}
# Columns that a manifest may lack; buckets have a prompt only if it has one.
OPTIONAL = ("language", "prompt")


class RowRange(NamedTuple):
    """A run of rows of one file that is read in one go; `groups` are row groups of a parquet
    file."""

    file: int
    first_row: int
    groups: tuple[int, ...] = ()


@dataclass
class Manifest(abc.ABC):
    """The samples of one split, in files of one kind; a kind of `files.KINDS` is a subclass.

    `tar_root` is where relative tar paths start, `path_map` then maps them. `tar_template` names
    the tar of a JSONL row that has only a shard_id, `transcript` the speech index's column to train
    on. After `scan` (one cheap pass): `rows`, `tars` (resolved paths, sorted), `ranges` to read,
    `repaired` (lines, by repair), `has_prompts`, whether any file has prompts, and `cut_members`,
    the (tar, member) of which rows are parts, by their offset or by NeMo's names (`<member>-sub1`).
    """

    split: str
    files: list[Path]
    tar_root: str = ""
    tar_template: str = TAR_TEMPLATE
    transcript: str = ""
    path_map: PathMap = field(default_factory=lambda: PathMap({}))
    piece_rows: int = PIECE
    rows: int = 0
    tars: list[str] = field(default_factory=list)
    ranges: list[RowRange] = field(default_factory=list)
    repaired: Counter = field(default_factory=Counter)
    has_prompts: bool = False
    cut_members: set[tuple[str, str]] = field(default_factory=set)

    # Whether rows come with offset and size of their member, so that no tar index is needed.
    has_offsets: ClassVar[bool] = False

    # What to do if no row of a split is there.
    remedy_without_rows: ClassVar[str] = "The manifest has no rows: write it again"

    @abc.abstractmethod
    def scan_file(self, file: int) -> set[str]:
        """Add a file's `rows`, `ranges` and `repaired`; return the tars it names, resolved."""

    @abc.abstractmethod
    def read(self, rows: RowRange) -> Iterator[pa.Table]:
        """Tables of at most `piece_rows` rows, as `columns.checked` makes them: tar (int32 in
        `tars`, or -1), the text columns, duration_s, row, problem; int64 offset and size, and
        prompt, if it has them.

        `row` is the file's number << 40 plus the row's number from 0 (JSONL: the line's number from
        1).
        """

    def scan(self) -> Manifest:
        """Count the rows and collect the tars they name. Raises MillraceError: a missing file or
        column."""
        tars: set[str] = set()
        for file in range(len(self.files)):
            tars |= self.scan_file(file)
        self.tars = sorted(tars - {""})
        return self

    def facts(self, file: int) -> dict[str, Any]:
        """What the parse needs of a file: the `tars` that it names; of JSONL more."""
        return {"tars": sorted(self.scan_file(file) - {""})}

    @cached_property
    def tar_numbers(self) -> dict[str, int]:
        """The number in `tars` of each tar; for `read`, after `scan`."""
        return {tar: number for number, tar in enumerate(self.tars)}

    def resolved(self, tar: str | None) -> str:
        """The path of a tar as the manifest spells it, or as `path_map` maps it; others' URLs
        stay."""
        tar = (tar or "").strip()
        if tar and "://" not in tar:
            tar = os.path.normpath(os.path.join(self.tar_root, tar))
        return next(iter(self.path_map.mapped(tar)), tar)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what a missing or damaged manifest raises into an error that names it."""
    try:
        yield
    except FileNotFoundError:
        problem = "the manifest is not there"
        remedy = "Check the path in the config"
        raise MillraceError(problem, str(path), remedy) from None
    # What pyarrow raises for damaged files; names and texts that are not UTF-8 come as they are
    # decoded.
    except (pa.ArrowException, OSError, UnicodeDecodeError, IndexError) as error:
        problem = f"the manifest cannot be read ({error})"
        raise MillraceError(problem, str(path), "Write the manifest again") from None


def manifest_of(
    split: str,
    files: Sequence[Path],
    tar_root: str = "",
    tar_template: str = TAR_TEMPLATE,
    **more: Any,
) -> Manifest:
    """The manifest of a split, of the kind that the names' suffixes say."""
    kind = manifest_files.kind_of(files, split, str(files[0].parent))
    reader = manifest_files.KINDS[kind].reader()
    return reader(split, list(files), tar_root, tar_template, **more)


def scanned(
    files: Sequence[Path],
    named: Mapping[str, Sequence[Path]],
    tar_root: str = "",
    tar_template: str = TAR_TEMPLATE,
    transcript: str = "",
    path_map: Mapping[str, str] | None = None,
) -> list[Manifest]:
    """The manifests of every split, scanned; `named` says the split of its files, the others' names
    say it.

    A folder stands for the manifests in it. Raises MillraceError if there is none.
    """
    kinds = {kind.whole: name for name, kind in manifest_files.KINDS.items() if kind.whole}
    whole = [path for path in files if path.name in kinds and not path.is_dir()]
    splits = _by_split([path for path in files if path not in whole], named)
    if not whole:
        if not splits:
            remedy = "Give --manifests, or --train"
            raise MillraceError("no manifest was named", "command line", remedy)
        prefixes = PathMap(path_map or {})
        # One set for all splits: the parts of a member may be rows of several.
        shared: dict[str, Any] = {"path_map": prefixes, "cut_members": set()}
        return [
            manifest_of(split, paths, tar_root, tar_template, **shared).scan()
            for split, paths in splits.items()
        ]

    path = whole[0]
    kind = kinds[path.name]
    if splits or len(whole) > 1:
        raise MillraceError(f"{kind} and other manifests are mixed", str(path))
    reader = manifest_files.KINDS[kind].reader()
    root = tar_root or str(path.parent)
    manifests = [
        reader(split, [path], root, transcript=transcript).scan() for split in manifest_files.SPLITS
    ]
    return [manifest for manifest in manifests if manifest.rows or manifest.split == "train"]


def _by_split(files: Sequence[Path], named: Mapping[str, Sequence[Path]]) -> dict[str, list[Path]]:
    """The files of every split: those that are named, and those whose names say it."""
    splits = {split: list(paths) for split, paths in named.items() if paths}
    for path in files:
        for split, paths in _splits_in(path).items():
            splits.setdefault(split, []).extend(paths)
    return splits


def _splits_in(path: Path) -> dict[str, list[Path]]:
    """The manifests in a folder, or the file itself, by split."""
    inside = manifest_files.find(path)
    if inside:
        return {split: [Path(name) for name in names] for split, names in inside.items()}
    if path.is_dir():
        raise MillraceError("no train, dev or test manifest is there", str(path))
    split = manifest_files.split_of(path)
    if not split:
        remedy = "Name it train, dev or test, or give it as --train, --dev or --test"
        raise MillraceError("the name does not say which split this is", str(path), remedy)
    return {split: [path]}
