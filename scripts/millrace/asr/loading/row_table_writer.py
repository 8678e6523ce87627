"""The format of the file that row_table reads: fixed-width records, texts and tars, and which facts
of the samples its digest covers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.tars.paths import REBUILD
from millrace.asr.tars.stamp import Stamp
from millrace.common import atomic
from millrace.common.errors import MillraceError

# Part of the name of every table too: a table of another version is never opened, but made again.
MAGIC = b"millrace-rows-4\n"
RECORD = np.dtype(
    [
        ("offset", "<i8"),
        ("size", "<i8"),
        ("sample_id", "<u8"),
        ("text", "<i8"),
        ("text_bytes", "<i4"),
        ("tar", "<i4"),
        ("language", "<i4"),
        ("duration_s", "<f4"),
    ]
)
TAR = np.dtype(
    [
        ("name", "<i8"),
        ("name_bytes", "<i8"),
        ("size", "<i8"),
        ("mtime_ns", "<i8"),
        ("digest", "S64"),
    ]
)
_RECORDS_AT = 64
_PIECE = 1 << 18
_NUMBERS = ("offset", "size", "sample_id", "duration_s")
# What a sample is, wherever it lies.
_IDENTITY = ("size", "sample_id", "duration_s", "language", "text_bytes")
_TEXTS = ("tar_path", "language", "transcript")
# Between a transcript and its prompt, if the rows have prompts: no byte of UTF-8.
PROMPT_MARK = b"\xff"


def write(path: Path, files: Sequence[Path], tars: Path) -> None:
    """Write the row table of bucket parquets. `tars`: the parquet of `write_tars`.

    The file: magic, place of the facts, one RECORD a row, transcripts, tar paths, one TAR a tar,
    JSON facts. The fact `digest` is equal for the same samples in tars of the same content,
    wherever these lie.
    """
    digest = hashlib.sha256()
    counts = [pq.ParquetFile(file).metadata.num_rows for file in files]
    tar_code: dict[str, int] = {}
    language_code: dict[str, int] = {}
    with (
        atomic.replacing(path) as partial,
        open(partial, "wb") as records,
        open(partial, "r+b") as texts,
    ):
        # Two positions in one file: records have a fixed width, so that where texts begin is known.
        records.seek(_RECORDS_AT)
        texts.seek(_RECORDS_AT + sum(counts) * RECORD.itemsize)
        for file in files:
            for piece in _pieces(file):
                block = _numbers(piece)
                block["tar"] = _codes(piece.column("tar_path"), tar_code)
                block["language"] = _codes(piece.column("language"), language_code)
                block["text"], block["text_bytes"], body = _append(texts, _written(piece))
                records.write(block.tobytes())
                for name in _IDENTITY:
                    digest.update(block[name].tobytes())
                digest.update(body)
        records.flush()
        entries = _append_tars(texts, list(tar_code), _stamps(tars))
        digest.update(entries["digest"].tobytes() + orjson.dumps(list(language_code)))
        facts = {
            "rows": sum(counts),
            "counts": counts,
            "records": _RECORDS_AT,
            "languages": list(language_code),
            "tars": texts.tell(),
            "tar_count": len(tar_code),
            "digest": digest.hexdigest(),
        }
        texts.write(entries.tobytes())
        facts_at = texts.tell()
        texts.write(orjson.dumps(facts))
        texts.seek(0)
        texts.write(MAGIC + facts_at.to_bytes(8, "little"))


def _numbers(piece: pa.RecordBatch) -> np.ndarray:
    """Records of the rows, with their columns of numbers."""
    block = np.zeros(len(piece), RECORD)
    for name in _NUMBERS:
        block[name] = piece.column(name).to_numpy()
    return block


def _append_tars(texts: BinaryIO, tars: Sequence[str], stamps: Mapping[str, Stamp]) -> np.ndarray:
    """Write the paths of tars; returns their entries, which follow them."""
    entries = np.zeros(len(tars), TAR)
    for number, name in enumerate(tars):
        raw = os.fsencode(name)
        stamp = stamps.get(name, Stamp())
        entry = entries[number]
        entry["name"] = texts.tell()
        entry["name_bytes"] = len(raw)
        entry["size"] = -1 if stamp.size is None else stamp.size
        entry["mtime_ns"] = -1 if stamp.mtime_ns is None else stamp.mtime_ns
        entry["digest"] = stamp.digest.encode()
        texts.write(raw)
    return entries


def _stamps(tars: Path) -> dict[str, Stamp]:
    """The tars as they were indexed, by path."""
    return {
        row["tar_path"]: Stamp(row["size"], row["mtime_ns"], row["digest"])
        for row in pq.read_table(tars).to_pylist()
    }


def _pieces(file: Path) -> Iterator[pa.RecordBatch]:
    """All columns of a bucket parquet, piece by piece."""
    parquet = pq.ParquetFile(file, read_dictionary=["tar_path", "language"])
    columns = [*_NUMBERS, *_TEXTS]
    present = parquet.schema_arrow.names
    missing = [name for name in (*columns, "tar_member_name") if name not in present]
    if missing:
        problem = f"there is no column {', '.join(missing)}"
        raise MillraceError(problem, str(file), REBUILD)
    if "prompt" in present:
        columns.append("prompt")
    for group in range(parquet.num_row_groups):
        yield from parquet.iter_batches(
            _PIECE, row_groups=[group], columns=columns, use_threads=False
        )


def _codes(column: pa.Array, code: dict[str, int]) -> np.ndarray:
    """int32 number of every text, "" for null; new texts get the next number in `code`."""
    names = column.dictionary.to_pylist()
    if column.null_count:
        names.append(None)
    numbers = [code.setdefault(name or "", len(code)) for name in names]
    indices = column.indices.cast(pa.int64())
    indices = pc.fill_null(indices, len(names) - 1)
    return np.array(numbers, np.int32)[indices.to_numpy(zero_copy_only=False)]


def _written(piece: pa.RecordBatch) -> pa.Array:
    """The transcripts; with PROMPT_MARK and prompt behind each, if there are prompts."""
    if "prompt" not in piece.schema.names:
        return piece.column("transcript")
    parts = []
    for name in ("transcript", "prompt"):
        raw = piece.column(name).cast(pa.large_binary())
        parts.append(pc.fill_null(raw, b""))
    mark = pa.scalar(PROMPT_MARK, pa.large_binary())
    return pc.binary_join_element_wise(*parts, mark)


def _append(texts: BinaryIO, column: pa.Array) -> tuple[np.ndarray, np.ndarray, memoryview]:
    """Append the bytes of a column of texts to a file; return where each text begins, its length,
    and the bytes."""
    column = column.cast(pa.large_binary())
    _, offsets, body = column.buffers()
    last = column.offset + len(column)
    ends = np.frombuffer(offsets, np.int64)[column.offset : last + 1]
    written = memoryview(body or b"")[ends[0] : ends[-1]]
    begin = texts.tell()
    texts.write(written)
    return begin + ends[:-1] - ends[:1], np.diff(ends), written
