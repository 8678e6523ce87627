"""Write the rows of bucket parquets as one file of fixed-width records, texts and tars (see row_table)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.tars.paths import REBUILD
from millrace.common import atomic
from millrace.common.errors import MillraceError

MAGIC = b"millrace-rows-1\n"
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
TAR = np.dtype([("name", "<i8"), ("name_bytes", "<i8"), ("size", "<i8"), ("mtime_ns", "<i8")])
_PIECE = 1 << 18


def write(path: Path, files: Sequence[Path], tars: Path | None = None) -> None:
    """Write the row table of bucket parquets. `tars`: parquet with tar_path, size, mtime_ns of the indexed
    tars."""
    counts = [pq.ParquetFile(file).metadata.num_rows for file in files]
    firsts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    records_at = 64
    texts_at = records_at + firsts[-1] * RECORD.itemsize
    tar_code: dict[str, int] = {}
    language_code: dict[str, int] = {}
    with atomic.replacing(path) as partial, open(partial, "wb") as records, open(partial, "r+b") as texts:
        records.seek(records_at)
        texts.seek(texts_at)
        for file in files:
            for rows, piece in _pieces(file):
                block = np.zeros(rows, RECORD)
                for name in ("offset", "size", "sample_id", "duration_s"):
                    block[name] = piece[name]
                block["tar"] = _codes(piece["tar_path"], tar_code)
                block["language"] = _codes(piece["language"], language_code)
                block["text"], block["text_bytes"] = _append(texts, piece["transcript"])
                records.write(block.tobytes())
        records.flush()
        states = _states(tars)
        entries = np.zeros(len(tar_code), TAR)
        for number, name in enumerate(tar_code):
            raw = os.fsencode(name)
            entries[number] = (texts.tell(), len(raw), *states.get(name, (-1, -1)))
            texts.write(raw)
        tars_at = texts.tell()
        texts.write(entries.tobytes())
        facts = {
            "rows": firsts[-1],
            "records": records_at,
            "tars": tars_at,
            "tar_count": len(tar_code),
            "languages": list(language_code),
            "files": [
                [str(file.resolve()), first, rows]
                for file, first, rows in zip(files, firsts, counts, strict=False)
            ],
        }
        facts_at = texts.tell()
        texts.write(orjson.dumps(facts))
        texts.seek(0)
        texts.write(MAGIC + facts_at.to_bytes(8, "little"))


def _pieces(file: Path) -> Iterator[tuple[int, dict]]:
    """Rows and columns of a bucket parquet, piece by piece: arrays for numbers, arrow arrays for texts."""
    parquet = pq.ParquetFile(file, read_dictionary=["tar_path", "language"])
    present = set(parquet.schema_arrow.names)
    missing = {"tar_path", "offset", "size", "transcript"} - present
    if missing:
        raise MillraceError(
            f"there is no column {', '.join(sorted(missing))}", where=str(file), remedy=REBUILD
        )
    optional = {"language": "", "duration_s": float("nan"), "sample_id": 0}
    names = ["tar_path", "offset", "size", "transcript", *(name for name in optional if name in present)]
    types = {"offset": pa.int64(), "size": pa.int64(), "sample_id": pa.uint64(), "duration_s": pa.float64()}
    for group in range(parquet.metadata.num_row_groups):
        for batch in parquet.iter_batches(_PIECE, row_groups=[group], columns=names, use_threads=False):
            piece = {}
            for name in ("tar_path", "offset", "size", "transcript", *optional):
                column = batch.column(name) if name in present else pa.nulls(len(batch))
                if name not in types:
                    if not pa.types.is_dictionary(column.type):
                        column = pc.fill_null(column.cast(pa.large_string()), "")
                    piece[name] = column
                    continue
                filler = optional.get(name, -1)
                column = column.cast(types[name], safe=name == "duration_s" or name in ("offset", "size"))
                piece[name] = pc.fill_null(column, filler).to_numpy(zero_copy_only=False)
            yield len(batch), piece


def _codes(column: pa.Array, code: dict[str, int]) -> np.ndarray:
    """int32 number of every text; new texts get the next number in `code`."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    names = column.dictionary.to_pylist()
    if column.null_count:
        names.append(None)  # the last place, where the nulls are sent below
    numbers = np.array([code.setdefault(name or "", len(code)) for name in names], np.int32)
    indices = pc.fill_null(column.indices.cast(pa.int64()), len(names) - 1)
    return numbers[indices.to_numpy(zero_copy_only=False)]


def _append(texts: BinaryIO, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Append the UTF-8 of a large_string array to a file; return where each text begins, and its bytes."""
    if pa.types.is_dictionary(column.type):
        column = pc.fill_null(column.dictionary_decode().cast(pa.large_string()), "")
    _, offsets, body = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    begin = texts.tell()
    if len(column) and ends[-1] > ends[0]:
        texts.write(memoryview(body)[ends[0] : ends[-1]])
    return begin + ends[:-1] - ends[:1], np.diff(ends)


def _states(tars: Path | None) -> dict[str, tuple[int, int]]:
    if tars is None:
        return {}
    columns = pq.read_table(tars, columns=["tar_path", "size", "mtime_ns"]).to_pydict()
    known = zip(columns["tar_path"], columns["size"], columns["mtime_ns"], strict=True)
    return {
        path: (-1 if size is None else size, -1 if mtime is None else mtime) for path, size, mtime in known
    }
