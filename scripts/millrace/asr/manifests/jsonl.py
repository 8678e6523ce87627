"""NeMo-style JSONL manifests, one JSON object a line: which tar a line means, by name or shard_id,
and that lines for a part of a member are rejected."""

from __future__ import annotations

import hashlib
import itertools
import posixpath
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests import files as manifest_files
from millrace.asr.manifests.manifest import ALIASES, Manifest, RowRange, readable
from millrace.common import jsonl, progress
from millrace.common.errors import MillraceError

# Seconds between two lines of progress.
_SAID_EVERY = 10.0
# NeMo's name of the further rows of one audio file: a/b-sub2.wav of a/b.wav.
_PART = re.compile(r"(.+)-sub\d+(\.\w+)?")


@dataclass
class Reader(Manifest):
    """JSONL, of which a file is read in one go."""

    def __post_init__(self) -> None:
        # NeMo names all shards at once: audio__OP_0..127_CL_.tar or audio_{0..127}.tar; 000 is
        # three digits.
        shards = re.search(r"(?:_OP_|\{)(\d+)\.\.\d+(?:_CL_|\})", self.tar_template)
        if shards:
            first = shards[1]
            is_filled = first.startswith("0") and len(first) > 1
            digits = f":0{len(first)}d" if is_filled else ""
            self.tar_template = self.tar_template.replace(shards[0], f"{{shard_id{digits}}}")
        try:
            self.tar_template.format(shard_id=0, split=self.split)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            problem = f"{self.tar_template} is no template of tars ({error!r})"
            remedy = "Write {shard_id}, a whole number, and {split} where they stand in the names"
            raise MillraceError(problem, "tar_template", remedy) from None

    def scan_file(self, file: int) -> set[str]:
        tars = set()
        path = self.files[file]
        with readable(path):
            for _, value, repairs in jsonl.lines(path):
                row = self._row(value, file)
                tar = row["tar_path"]
                tars.add(tar)
                if row["part_of"]:
                    self.cut_members.add((tar, row["part_of"]))
                self.rows += 1
                self.repaired.update(repairs)
                self.has_prompts |= row["prompt"] is not None
        self.ranges.append(RowRange(file, 0))
        return tars

    def facts(self, file: int) -> dict[str, Any]:
        """What the parse needs of a file: `tars`, `rows`, `content`, a digest of all in any order,
        and `broken`: how many lines are no JSON objects, and what is wrong with the first.
        """
        path = self.files[file]
        places: set[bytes | None] = set()
        rows = 0
        content = 0
        broken = 0
        first_broken = ""
        with readable(path):
            reading = _Reading(path)
            for number, parsed, _ in jsonl.lines(path, reading.advance):
                value = parsed
                problem = ""
                if isinstance(parsed, jsonl.BadJson):
                    problem = value = f"line {number}: this line is not JSON: {parsed}"
                elif not isinstance(parsed, dict):
                    problem = f"line {number}: this line is no JSON object"
                if problem:
                    broken += 1
                    first_broken = first_broken or problem
                rows += 1
                places.add(_place(value))
                row = hashlib.blake2b(jsonl.canonical(value), digest_size=16).digest()
                content += int.from_bytes(row, "little")
        return {
            "tars": self._tars_of(places, file),
            "rows": rows,
            "content": f"{content % (1 << 128):032x}",
            "broken": [broken, first_broken],
        }

    def _tars_of(self, places: set[bytes | None], file: int) -> list[str]:
        rows = (orjson.loads(place) for place in places if place is not None)
        return sorted({self._row(row, file)["tar_path"] for row in rows} - {""})

    def read(self, rows: RowRange) -> Iterator[pa.Table]:
        file = rows.file
        prompts = ["prompt"] if self.has_prompts else []
        with readable(self.files[file]):
            lines = jsonl.lines(self.files[file])
            while piece := list(itertools.islice(lines, self.piece_rows)):
                values = [self._row(value, file) for _, value, _ in piece]
                lines_read = [number for number, _, _ in piece]
                row = (file << 40) + np.array(lines_read, np.int64)
                yield _table(values, self.tar_numbers, row, prompts)

    def _row(self, value: Any, file: int) -> dict[str, Any]:
        """The fields of a line as they are in the JSON, but `tar_path` resolved; and `problem`, a
        code."""
        row: dict[str, Any] = {
            **dict.fromkeys(ALIASES),
            "tar_path": "",
            "problem": 0,
            "part_of": "",
        }
        if not isinstance(value, dict):
            reason = value.reason if isinstance(value, jsonl.BadJson) else "not_an_object"
            return {**row, "problem": mc.CODE.get(reason, mc.CODE["json_damaged"])}
        for name, aliases in ALIASES.items():
            row[name] = _first(value, aliases)
        row["tar_path"] = self.resolved(self._tar(value, file))
        # A span inside a member would have to be cut; the reader reads whole members.
        member = str(row["tar_member_name"])
        row["part_of"] = _part_of(member, value.get("offset"))
        is_cut = (row["tar_path"], member) in self.cut_members
        if row["part_of"] or is_cut:
            row["problem"] = mc.CODE["segment_of_member"]
        # NeMo's sign that a row is left out: true, or the reason.
        if value.get("_skipme"):
            row["problem"] = mc.CODE["skipme"]
        return row

    def _tar(self, value: dict[str, Any], file: int) -> str:
        """The tar that a row names, or that of its shard by the template; "" if there is none."""
        named = _first(value, ALIASES["tar_path"])
        if isinstance(named, str) and named.strip():
            return named
        path = self.files[file]
        shard = value.get("shard_id")
        if shard is None:
            shard = manifest_files.shard_number(path)
        if type(shard) is not int and "{shard_id" in self.tar_template:
            return ""
        name = self.tar_template.format(shard_id=shard, split=self.split)
        if self.tar_root:
            return name
        folder = path.parent
        if folder.name == manifest_files.SHARDED:
            folder = folder.parent
        return posixpath.join(folder.as_posix(), name)


class _Reading:
    """Says on stderr, every ten seconds, how much of a manifest has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.done = 0
        self.started = self.said = time.monotonic()

    def advance(self, size: int) -> None:
        """Count `size` more bytes."""
        self.done += size
        now = time.monotonic()
        if now - self.said < _SAID_EVERY:
            return
        self.said = now
        left = (now - self.started) * (self.size / self.done - 1)
        line = progress.line(self.done / 1e6, self.size / 1e6, "MB", left)
        print(f"{self.path}: read once, as it is new: {line}", file=sys.stderr, flush=True)


def _first(value: dict[str, Any], names: Sequence[str]) -> Any:
    """What a line has under the first of `names` that it has."""
    return next((value[name] for name in names if value.get(name) is not None), None)


def _part_of(member: str, offset: Any) -> str:
    """The member that a row with this offset is a part of; "" if the row may be the whole of it."""
    if offset is None:
        return ""
    part = _PART.fullmatch(member)
    if part:
        return part[1] + (part[2] or "")
    return "" if offset == 0 else member


def _place(value: Any) -> bytes | None:
    """What of a row says which tar it is in, as JSON; None for what is no row."""
    if not isinstance(value, dict):
        return None
    tar = _first(value, ALIASES["tar_path"])
    return orjson.dumps({"tar_path": tar, "shard_id": value.get("shard_id")})


def _table(
    rows: list[dict[str, Any]], tars: dict[str, int], row: np.ndarray, prompts: list[str]
) -> pa.Table:
    problem = np.array([row["problem"] for row in rows], np.uint8)
    numbers = [tars.get(row["tar_path"], -1) for row in rows]
    columns: dict[str, Any] = {"tar": np.array(numbers, np.int32)}
    for name in ("tar_member_name", "transcript", "language", *prompts):
        values = [row[name] for row in rows]
        texts = [value if isinstance(value, str) else None for value in values]
        columns[name] = pa.array(texts, mc.TEXT)
        is_other = [not isinstance(value, str | None) for value in values]
        mc.note(problem, is_other, "not_a_text")
    values = [row["duration_s"] for row in rows]
    seconds = [float(value) if type(value) in (int, float) else None for value in values]
    columns["duration_s"] = pa.array(seconds, mc.SECONDS)
    is_given = np.array([value is not None for value in values])
    is_null = np.asarray(columns["duration_s"].is_null())
    mc.note(problem, is_given & is_null, "duration_not_numeric")
    return mc.checked(columns, problem, row)
