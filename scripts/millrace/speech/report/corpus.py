"""The numbers of the corpus report: hours and segments per country, split and subset, error rates,
ledgers."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from millrace.common import jsonl
from millrace.common.errors import Damaged, MillraceError, own_file
from millrace.common.ledger import Ledger
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.names import safe_name

_AGAIN = "Files of different runs lie side by side: run the workflow again"


@dataclass
class Part:
    """What lies in the shards of one split (and subset of train) of a country."""

    split: str
    subset_id: int | None
    segments: int = 0
    seconds: float = 0.0
    size: int = 0
    shards: int = 0

    @property
    def hours(self) -> float:
        """Hours in shards."""
        return self.seconds / 3600


@dataclass
class Rates:
    """All segments of a manifest, float32 (n,): seconds, CER and WER as fractions, NaN where there is none.

    `in_shard`, bool (n,), says which of them are in a shard.
    """

    duration: np.ndarray
    cer: np.ndarray
    wer: np.ndarray
    in_shard: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Rates]) -> Rates:
        """The rates of several manifests, one after the other."""
        empty = cls(*(np.zeros(0, kind) for kind in (np.float32, np.float32, np.float32, bool)))
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(part, name) for part in (empty, *parts)]) for name in names))


@dataclass
class Country:
    """A country as the report shows it."""

    name: str
    language: str
    segments: Ledger
    files: Ledger
    notes: list[str]
    parts: list[Part]
    rates: Rates
    recordings: Counter = field(default_factory=Counter)  # by split
    source_hours: float = 0.0

    @property
    def hours(self) -> float:
        """Hours in shards."""
        return math.fsum(part.seconds for part in self.parts) / 3600

    def hours_of(self, split: str) -> float:
        """Hours of a split in shards."""
        return math.fsum(part.seconds for part in self.parts if part.split == split) / 3600


@dataclass
class Corpus:
    """All countries, by name."""

    countries: list[Country]

    @property
    def hours(self) -> float:
        """Hours in shards."""
        return math.fsum(country.hours for country in self.countries)

    def hours_of(self, split: str) -> float:
        """Hours of a split in shards."""
        return math.fsum(country.hours_of(split) for country in self.countries)

    @property
    def parts(self) -> list[Part]:
        """The parts of all countries."""
        return [part for country in self.countries for part in country.parts]

    def ledger(self, unit: str) -> Ledger:
        """The sum of the ledgers of segments or files."""
        chosen = (country.segments if unit == "segment" else country.files for country in self.countries)
        return Ledger.total("speech_report_corpus", "all", chosen, unit)

    def by_reason(self, unit: str, column: str) -> dict[str, dict[str, int]]:
        """Counts of `rejected`, `repaired` or `warnings` by reason, the most frequent first, then by
        country."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for country in self.countries:
            for reason, count in getattr(
                country.segments if unit == "segment" else country.files, column
            ).items():
                if count:
                    found[reason][country.name] = count
        return dict(sorted(found.items(), key=lambda pair: (-sum(pair[1].values()), pair[0])))


def read(index: str | os.PathLike, ledger: str | os.PathLike, manifest_dir: str | os.PathLike) -> Corpus:
    """Read the merged index, the merged ledger, and the countries' CSVs; raise where they contradict each
    other."""
    parts = _parts(index)
    try:
        listed = jsonl.read(ledger)["countries"]
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise MillraceError(f"not a ledger of speech_merge_index ({error})", str(ledger), _AGAIN) from None
    countries = [_country(row, parts.pop(row["country"], []), index, Path(manifest_dir)) for row in listed]
    if parts:
        raise MillraceError(
            f"holds segments of {', '.join(sorted(parts))}, which {ledger} lacks", str(index), _AGAIN
        )
    return Corpus(sorted(countries, key=lambda country: (country.name.casefold(), country.name)))


def _country(row: dict, parts: list[Part], index: str | os.PathLike, folder: Path) -> Country:
    name, segments = row["country"], Ledger.from_dict(row["segments"])
    rates = _rates(folder / f"{safe_name(name)}_manifest.csv", _keys(index, name))
    held = sum(part.segments for part in parts)
    if held != segments.rows_out or held != rates.in_shard.sum():
        raise MillraceError(
            f"the index holds {held} segments of {name}, the ledger {segments.rows_out}, "
            f"and {rates.in_shard.sum()} of them are in the manifest",
            where=str(index),
            remedy=_AGAIN,
        )
    recordings, source_hours = _recordings(folder / f"{safe_name(name)}_splits.csv")
    files = Ledger.from_dict(row["files"])
    return Country(
        name, row["language"], segments, files, row["notes"], parts, rates, recordings, source_hours
    )


def _parts(index: str | os.PathLike) -> dict[str, list[Part]]:
    """Sums of the index by country, split and subset: one row group in memory at a time."""
    by = ["country", "split", "subset_id", "shard"]
    found: dict[tuple, list[tuple]] = defaultdict(list)
    with own_file(index), pq.ParquetFile(index) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=[*by, "duration_seconds", "size"])
            sums = [("duration_seconds", "sum"), ("size", "sum"), ("size", "count")]
            # One thread, so that floats are always added in the same order.
            for row in rows.group_by(by, use_threads=False).aggregate(sums).to_pylist():
                values = row["shard"], row["size_count"], row["duration_seconds_sum"], row["size_sum"]
                found[row["country"], row["split"], row["subset_id"]].append(values)
    by_country: dict[str, list[Part]] = defaultdict(list)
    order = {split: place for place, split in enumerate(SPLITS)}
    for country, split, subset in sorted(found, key=lambda k: (k[0], order.get(k[1], 9), k[1], k[2] or 0)):
        shards, counts, seconds, sizes = zip(*found[country, split, subset], strict=True)
        part = Part(split, subset, sum(counts), math.fsum(seconds), sum(sizes), len(set(shards)))
        by_country[country].append(part)
    return by_country


def _keys(index: str | os.PathLike, country: str) -> pa.ChunkedArray:
    return pq.read_table(index, columns=["key"], filters=[("country", "=", country)], partitioning=None)[
        "key"
    ]


def _rates(path: Path, keys: pa.ChunkedArray) -> Rates:
    types = {"key": pa.string(), "duration_seconds": pa.float64(), "cer": pa.float64(), "wer": pa.float64()}
    table = _read_csv(path, types)
    numbers = (
        pc.fill_null(table[name], math.nan).to_numpy().astype(np.float32)
        for name in ("duration_seconds", "cer", "wer")
    )
    return Rates(*numbers, pc.is_in(table["key"], value_set=keys).to_numpy().astype(bool))


def _recordings(path: Path) -> tuple[Counter, float]:
    """Recordings per split, and the hours of their audio (several files of one recording are one
    recording)."""
    rows = _read_csv(
        path, {"video_id": pa.string(), "duration_hours": pa.float64(), "split": pa.string()}
    ).to_pylist()
    counts = Counter(split for _, split in {(row["video_id"], row["split"]) for row in rows})
    return counts, math.fsum(row["duration_hours"] or 0.0 for row in rows)


def _read_csv(path: Path, types: dict[str, Any]) -> pa.Table:
    try:
        return pa_csv.read_csv(
            path,
            # A row must fit a block; texts of a segment are far smaller.
            read_options=pa_csv.ReadOptions(block_size=16 << 20),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(types), column_types=types, strings_can_be_null=False
            ),
        )
    except FileNotFoundError:
        raise MillraceError("the file is missing", str(path), "Run `snakemake speech_manifest`") from None
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise MillraceError(f"cannot be read ({str(error).splitlines()[0]})", str(path), _AGAIN) from None
