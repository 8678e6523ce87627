"""Manifests of samples in tars, as one row schema: parquet, NeMo-style JSONL, or the speech lane's
index.parquet."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests import files as manifest_files
from millrace.asr.manifests import rows as manifest_rows
from millrace.common import jsonl
from millrace.common.errors import MillraceError

PIECE = 1 << 17  # rows of one piece: about 30 MB with transcripts of usual length
SPEECH_SPLITS = {"train": ("train",), "dev": ("validation", "valid", "val", "dev"), "test": ("test",)}
ALIASES = {
    "tar_path": ("tar_path", "tar"),
    "tar_member_name": ("tar_member_name", "member", "audio_filepath"),
    "transcript": ("transcript", "text"),
    "language": ("language", "lang"),
    "duration_s": ("duration_s", "duration", "duration_seconds"),
}
SPEECH = {
    "tar_path": ("shard",),
    "tar_member_name": ("member",),
    "duration_s": ("duration_seconds",),
    "language": ("language",),
}


# What pyarrow raises for damaged files. Names and texts that are not UTF-8 come as they are decoded.
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, IndexError)


@dataclass(frozen=True)
class Task:
    """A run of rows of one file that is read in one go; `groups` are row groups of a parquet file."""

    file: int
    first_row: int
    groups: tuple[int, ...] = ()


@dataclass
class Manifest:
    """The samples of one split, in one or several files. `tar_root` is where relative tar paths start.

    `kind`: parquet, jsonl or speech. `tar_template` names the tar of a JSONL row that has only a shard_id.
    After `scan` (one cheap pass): `rows`, `tars` (resolved paths, sorted), `tasks`, `repaired` (lines, by
    repair).
    """

    split: str
    kind: str
    files: list[Path]
    tar_root: str = ""
    tar_template: str = "audio_{shard_id}.tar"
    transcript: str = ""  # speech: the column to train on
    rows: int = 0
    tars: list[str] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    repaired: Counter = field(default_factory=Counter)

    @property
    def has_offsets(self) -> bool:
        return self.kind == "speech"

    def __post_init__(self) -> None:
        # NeMo names all shards in one word, audio__OP_0..127_CL_.tar or audio_{0..127}.tar; 000 asks for
        # three digits.
        found = re.search(r"(?:_OP_|\{)(\d+)\.\.\d+(?:_CL_|\})", self.tar_template)
        if found:
            digits = f":0{len(found[1])}d" if found[1].startswith("0") and len(found[1]) > 1 else ""
            self.tar_template = self.tar_template.replace(found[0], f"{{shard_id{digits}}}")

    def scan(self) -> Manifest:
        """Count the rows and collect the tars they name. Raises MillraceError for a missing file or
        column."""
        found: set[str] = set()
        for number, path in enumerate(self.files):
            scan = self._scan_jsonl if self.kind == "jsonl" else self._scan_parquet
            scan(number, path, found)
        self.tars = sorted(found - {""})
        return self

    def read(self, task: Task) -> Iterator[pa.Table]:
        """Tables of at most PIECE rows: tar (int32, in `tars`; -1 = none), the text columns, duration_s, row,
        problem.

        `row` is the file's number << 40 plus the row's number from 0 (JSONL: the line's number from 1).
        """
        code = {tar: at for at, tar in enumerate(self.tars)}
        if self.kind == "jsonl":
            for rows in _pieces(jsonl.lines(self.files[task.file])):
                yield manifest_rows.from_objects(
                    [self._object(number, value, task.file) for number, value, _ in rows], code, task.file
                )
            return
        path, parquet = self.files[task.file], _open(self.files[task.file])
        columns, first = self._columns(parquet, path), task.first_row
        names = [name for name in columns.values() if name] + (
            ["split", "offset", "size"] if self.has_offsets else []
        )
        try:
            for batch in parquet.iter_batches(
                PIECE, row_groups=list(task.groups), columns=names, use_threads=False
            ):
                yield self._from_batch(batch, columns, code, (task.file << 40) + first)
                first += len(batch)
            _check_count(parquet, task.groups, first - task.first_row)
        except _UNREADABLE as error:
            raise _damaged(path, error) from None

    # parquet and speech

    def _scan_parquet(self, number: int, path: Path, found: set[str]) -> None:
        parquet = _open(path)
        columns, meta = self._columns(parquet, path), parquet.metadata
        names = [columns["tar_path"]] + (["split"] if self.has_offsets else [])
        groups: list[int] = []
        first = held = at = 0
        for group in range(meta.num_row_groups):
            read = 0
            try:
                # A row group may hold a whole file of 75 M rows: look at it in pieces too.
                for batch in parquet.iter_batches(
                    1 << 20, row_groups=[group], columns=names, use_threads=False
                ):
                    read += len(batch)
                    if self.has_offsets:
                        batch = batch.filter(self._mine(batch))
                    self.rows += len(batch)
                    found.update(
                        self._resolved(value) for value in _unique_texts(batch.column(columns["tar_path"]))
                    )
                _check_count(parquet, (group,), read)
            except _UNREADABLE as error:
                raise _damaged(path, error) from None
            size = meta.row_group(group).num_rows
            if groups and held + size > PIECE:
                self.tasks.append(Task(number, first, tuple(groups)))
                groups, first, held = [], at, 0
            groups.append(group)
            held, at = held + size, at + size
        if groups:
            self.tasks.append(Task(number, first, tuple(groups)))
        if at != meta.num_rows:
            raise _damaged(path, OSError(f"row groups of {at:,} rows in a file of {meta.num_rows:,}"))

    def _columns(self, parquet: pq.ParquetFile, path: Path) -> dict[str, str]:
        names = parquet.schema_arrow.names
        present = set(names)
        aliases = {**SPEECH, "transcript": (self.transcript,)} if self.has_offsets else ALIASES
        chosen = {name: next((alias for alias in aliases[name] if alias in present), "") for name in ALIASES}
        if twice := sorted(name for name in chosen.values() if names.count(name) > 1):
            raise MillraceError(
                f"there are several columns named {', '.join(twice)}",
                where=str(path),
                remedy="Keep one of each name",
            )
        needed = [name for name in chosen if name != "language" and not chosen[name]]
        needed += [name for name in ("split", "offset", "size") if self.has_offsets and name not in present]
        if needed:
            raise MillraceError(
                f"there is no column for {', '.join(needed)}; there are {', '.join(sorted(present)) or 'none'}",
                where=str(path),
                remedy="A manifest needs tar_path, tar_member_name, transcript, duration_s (language is optional)",
            )
        return chosen

    def _mine(self, batch: pa.RecordBatch) -> pa.Array:
        split = mc.text(batch.column("split"), np.zeros(len(batch), dtype=np.uint8))
        return pc.is_in(split, value_set=pa.array(SPEECH_SPLITS[self.split], mc.TEXT))

    def _from_batch(
        self, batch: pa.RecordBatch, columns: dict[str, str], code: dict[str, int], first: int
    ) -> pa.Table:
        problem = np.zeros(len(batch), dtype=np.uint8)
        result = {"tar": self._tar_codes(batch.column(columns["tar_path"]), code, problem)}
        result["tar_member_name"] = mc.text(batch.column(columns["tar_member_name"]), problem)
        result["transcript"] = mc.text(batch.column(columns["transcript"]), problem)
        languages = batch.column(columns["language"]) if columns["language"] else pa.nulls(len(batch))
        result["language"] = mc.text(languages, problem)
        result["duration_s"] = batch.column(columns["duration_s"])
        table = manifest_rows.checked(result, problem, first + np.arange(len(batch), dtype=np.int64))
        if self.has_offsets:
            for name in ("offset", "size"):
                table = table.append_column(name, pc.fill_null(batch.column(name).cast(pa.int64()), -1))
            table = table.filter(self._mine(batch))
        return table

    def _tar_codes(self, column: pa.Array, code: dict[str, int], problem: np.ndarray) -> np.ndarray:
        if not pa.types.is_dictionary(column.type):
            column = mc.text(column, problem).dictionary_encode()
        names = mc.text(column.dictionary, np.zeros(len(column.dictionary), dtype=np.uint8)).to_pylist()
        codes = np.array([*(code.get(self._resolved(name), -1) for name in names), -1], dtype=np.int32)
        at = pc.fill_null(column.indices, len(names)).to_numpy(zero_copy_only=False)
        if len(at) and at.min() < 0:  # a damaged page; what is too large is an IndexError
            raise IndexError(f"index {at.min()} into a dictionary")
        return codes[at]

    def _resolved(self, tar: str | None) -> str:
        tar = (tar or "").strip()
        if not tar or "://" in tar:
            return tar
        return os.path.normpath(os.path.join(self.tar_root, tar))

    # NeMo-style JSONL

    def _scan_jsonl(self, number: int, path: Path, found: set[str]) -> None:
        try:
            for line, value, repairs in jsonl.lines(path):
                self.rows += 1
                self.repaired.update(repairs)
                found.add(self._object(line, value, number)["tar_path"])
        except OSError as error:
            raise _damaged(path, error) from None
        self.tasks.append(Task(number, 0))

    def _object(self, line: int, value: Any, file: int) -> dict:
        row: dict[str, Any] = {**dict.fromkeys(ALIASES), "line": line, "tar_path": "", "problem": 0}
        if isinstance(value, jsonl.BadJson) or not isinstance(value, dict):
            reason = value.reason if isinstance(value, jsonl.BadJson) else "not_an_object"
            row["problem"] = mc.CODE.get(reason, mc.CODE["json_damaged"])
            return row
        for name, aliases in ALIASES.items():
            row[name] = next((value[alias] for alias in aliases if value.get(alias) is not None), None)
        if value.get("offset") not in (None, 0):
            # A span inside a member would have to be cut; the reader reads whole members.
            row["problem"] = mc.CODE["segment_of_member"]
        tar = row["tar_path"]
        row["tar_path"] = self._resolved(
            tar if isinstance(tar, str) and tar.strip() else self._tar_of_shard(value, file)
        )
        return row

    def _tar_of_shard(self, value: dict, file: int) -> str:
        shard = value.get("shard_id")
        if shard is None:
            shard = manifest_files.shard_number(self.files[file])
        if shard is None and "{shard_id" in self.tar_template:
            return ""
        if isinstance(shard, float) and shard.is_integer():  # as a table with gaps makes of it
            shard = int(shard)
        if isinstance(shard, bool) or not isinstance(shard, int | float | str | None):
            return ""
        try:
            name = self.tar_template.format(shard_id=shard)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError):
            try:
                name = self.tar_template.format(
                    shard_id=int(shard)
                )  # a text where the template wants a number
            except (ValueError, KeyError, IndexError, AttributeError, TypeError):
                return ""
        return name if self.tar_root else posixpath.join(self.files[file].parent.as_posix(), name)


def manifests_of(split: str, files: Sequence[Path], tar_root: str, tar_template: str) -> list[Manifest]:
    """The manifest of a split (none without files); parquet and JSONL are told apart by the name's ending."""
    jsonl_files = [path for path in files if path.suffix in (".jsonl", ".json", ".ndjson")]
    if jsonl_files and len(jsonl_files) < len(files):
        raise MillraceError(
            "parquet and JSONL are mixed", where=split, remedy="Give one kind of manifest per split"
        )
    kind = "jsonl" if jsonl_files else "parquet"
    return [Manifest(split, kind, list(files), tar_root, tar_template)] if files else []


def sorted_files(files: Sequence[Path], named: Mapping[str, Sequence[Path]]) -> dict[str, list[Path]]:
    """Manifests by split, after their names; the speech lane's index.parquet as `speech`. `named` have
    theirs.

    A folder stands for the manifests in it.
    """
    found = {split: list(paths) for split, paths in named.items() if paths}
    for path in files:
        if path.is_dir():
            inside = manifest_files.find(path)
            if not inside:
                raise MillraceError("no train, dev or test manifest is there", where=str(path))
            for split, paths in inside.items():
                found.setdefault(split, []).extend(map(Path, paths))
            continue
        split = "speech" if path.name == "index.parquet" else manifest_files.split_of(path)
        if not split:
            raise MillraceError(
                "the name does not say which split this is",
                where=str(path),
                remedy="Name it train, dev or test, or give it as --train, --dev or --test",
            )
        found.setdefault(split, []).append(path)
    if "speech" in found and len(found) > 1:
        raise MillraceError(
            "the speech lane's index and other manifests are mixed", where=str(found["speech"][0])
        )
    return found


def named_manifests(
    files: Mapping[str, Sequence[Path]], tar_root: str, tar_template: str, transcript: str
) -> list[Manifest]:
    """The manifests of every split, scanned. Raises MillraceError where none is named."""
    if not any(files.values()):
        raise MillraceError(
            "no manifest was named", where="command line", remedy="Give --manifests, or --train"
        )
    if "speech" in files:
        return speech_manifests(files["speech"][0], tar_root, transcript)
    return [
        manifest.scan()
        for split, paths in files.items()
        for manifest in manifests_of(split, paths, tar_root, tar_template)
    ]


def speech_manifests(index: Path, shard_root: str, transcript: str) -> list[Manifest]:
    """The splits of the speech lane's index that have rows, scanned."""
    root = str(shard_root or index.parent)
    found = [
        Manifest(split, "speech", [index], root, transcript=transcript).scan() for split in SPEECH_SPLITS
    ]
    return [manifest for manifest in found if manifest.rows or manifest.split == "train"]


def _pieces(rows: Iterator) -> Iterator[list]:
    piece = []
    for row in rows:
        piece.append(row)
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


def _open(path: Path) -> pq.ParquetFile:
    try:
        tars = ("tar_path", "tar", "shard")
        texts = [
            one.name for one in pq.read_schema(path) if one.name in tars and not pa.types.is_nested(one.type)
        ]
        return pq.ParquetFile(path, read_dictionary=texts, buffer_size=1 << 20)
    except _UNREADABLE as error:
        raise _damaged(path, error) from None


def _check_count(parquet: pq.ParquetFile, groups: Sequence[int], rows: int) -> None:
    """Raise where row groups gave another number of rows than they promise: a damaged page may end early in
    silence."""
    promised = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    if rows != promised:
        raise OSError(f"{rows:,} rows instead of {promised:,}")


def _damaged(path: Path, error: Exception) -> MillraceError:
    if isinstance(error, FileNotFoundError):
        return MillraceError(
            "the manifest is not there", where=str(path), remedy="Check the path in the config"
        )
    return MillraceError(
        f"the manifest cannot be read ({error})", where=str(path), remedy="Write the manifest again"
    )


def _unique_texts(column: pa.Array) -> list[str]:
    values = (
        column.dictionary
        if pa.types.is_dictionary(column.type)
        else mc.text(column, np.zeros(len(column), np.uint8))
    )
    return [
        value
        for value in pc.unique(mc.text(values, np.zeros(len(values), np.uint8))).to_pylist()
        if value is not None
    ]
