"""The numbers of the corpus report: hours and segments by country, split and subset, rates,
ledgers."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from millrace.common import jsonl
from millrace.common.errors import MillraceError, own_file
from millrace.common.ledger import Ledger
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.names import safe_name

_AGAIN = "Files of different runs lie side by side: run the workflow again"
_RATES = {
    "duration_seconds": pa.float64(),
    "cer": pa.float64(),
    "wer": pa.float64(),
}


@dataclass
class Country:
    """A country as the report shows it."""

    name: str
    language: str
    ledgers: dict[str, Ledger]  # of segments and files, by unit
    notes: list[str]
    copies: list[dict]  # pairs of recordings, of country.copies
    recordings: Mapping[str, int]  # by split
    source_hours: float
    # All segments of the manifest: duration_seconds, cer and wer (fractions) in float32, NaN if
    # unknown, and in_shard, which says whether the segment is in a shard.
    rates: pd.DataFrame


@dataclass
class Corpus:
    """All countries in the order of their names."""

    countries: list[Country]
    parts: pd.DataFrame  # segments, hours, size (bytes) and shards by country, split and subset

    @property
    def names(self) -> list[str]:
        return [country.name for country in self.countries]

    @property
    def hours(self) -> pd.DataFrame:
        """Hours in shards by country (rows) and split (columns)."""
        table = self.parts.pivot_table("hours", "country", "split", aggfunc="sum")
        return table.reindex(index=self.names, columns=list(SPLITS)).fillna(0.0)

    @property
    def rates(self) -> pd.DataFrame:
        """The rates of all countries, one after the other."""
        empty = pd.DataFrame(columns=list(_RATES), dtype=np.float32).assign(
            in_shard=np.zeros(0, bool)
        )
        return pd.concat([empty, *(country.rates for country in self.countries)], ignore_index=True)

    def ledger(self, unit: str) -> Ledger:
        """The sum of the ledgers of segments or files."""
        ledgers = (country.ledgers[unit] for country in self.countries)
        return Ledger.total("speech_report_corpus", "all", ledgers, unit)

    def by_reason(self, unit: str, column: str) -> pd.DataFrame:
        """Counts of `rejected`, `repaired` or `warnings` by reason (rows, by frequency) and
        country."""
        counts = {
            country.name: dict(getattr(country.ledgers[unit], column)) for country in self.countries
        }
        table = pd.DataFrame.from_dict(counts, "columns", dtype="float64").fillna(0).astype("int64")
        table = table.loc[table.sum(axis=1) > 0].sort_index()
        return table.loc[table.sum(axis=1).sort_values(ascending=False, kind="stable").index]


def read(
    index: str | os.PathLike, ledger: str | os.PathLike, manifest_dir: str | os.PathLike
) -> Corpus:
    """Read the merged index and ledger, and the countries' CSVs; raise if they contradict each
    other."""
    parts = _parts(index)
    with own_file(ledger):
        rows = jsonl.read(ledger)["countries"]
    in_shards = parts.groupby("country")["segments"].sum().to_dict()
    countries = [
        _country(row, in_shards.pop(row["country"], 0), index, Path(manifest_dir)) for row in rows
    ]
    if in_shards:
        unknown = ", ".join(sorted(in_shards))
        raise MillraceError(
            f"holds segments of {unknown}, which {ledger} lacks", str(index), _AGAIN
        )
    countries.sort(key=lambda country: (country.name.casefold(), country.name))
    order = {country.name: place for place, country in enumerate(countries)}
    return Corpus(
        countries, parts.sort_values("country", kind="stable", key=lambda names: names.map(order))
    )


def _country(row: dict, in_shards: int, index: str | os.PathLike, folder: Path) -> Country:
    name = row["country"]
    ledgers = {"segment": Ledger.from_dict(row["segments"]), "file": Ledger.from_dict(row["files"])}
    rates = _rates(name, index, folder)
    ledger = ledgers["segment"].rows_out
    manifest = rates["in_shard"].sum()
    if not in_shards == ledger == manifest:
        problem = (
            f"the index holds {in_shards} segments of {name}, the ledger {ledger}, and {manifest}"
            " of them are in the manifest"
        )
        raise MillraceError(problem, str(index), _AGAIN)

    columns = {
        "video_id": pa.string(),
        "duration_hours": pa.float64(),
        "split": pa.string(),
    }
    files = _read_csv(folder / f"{safe_name(name)}_splits.csv", columns).to_pandas()
    # Several files of one recording are one recording.
    recordings = files.drop_duplicates(["video_id", "split"])
    return Country(
        name,
        row["language"],
        ledgers,
        row["notes"],
        copies=row.get("left_out_copies", []),
        recordings=recordings["split"].value_counts().to_dict(),
        source_hours=math.fsum(files["duration_hours"].dropna()),
        rates=rates,
    )


def _rates(country: str, index: str | os.PathLike, folder: Path) -> pd.DataFrame:
    """The rates of a country's segments, and whether they are in shards."""
    filters = [("country", "=", country)]
    keys = pq.read_table(index, columns=["key"], filters=filters, partitioning=None)["key"]
    path = folder / f"{safe_name(country)}_manifest.csv"
    table = _read_csv(path, {"key": pa.string(), **_RATES})
    rates = table.select(list(_RATES)).to_pandas().astype(np.float32)
    rates = rates.replace([np.inf, -np.inf], np.nan)
    rates["in_shard"] = pc.is_in(table["key"], value_set=keys).to_numpy()
    return rates


def _parts(index: str | os.PathLike) -> pd.DataFrame:
    """Sums of the index by country, split and subset."""
    by = ["country", "split", "subset_id"]
    sums = [("duration_seconds", "sum"), ("size", "sum"), ("size", "count")]
    with own_file(index), pq.ParquetFile(index) as file:
        columns = [*by, "shard", "duration_seconds", "size"]
        # One row group in memory at a time; one thread, so that floats are always added in the same
        # order.
        groups = (file.read_row_group(number, columns) for number in range(file.num_row_groups))
        tables = [file.schema_arrow.empty_table().select(columns), *groups]
        tables = [
            table.group_by([*by, "shard"], use_threads=False).aggregate(sums) for table in tables
        ]
    rows = pa.concat_tables(tables).to_pandas()
    parts = rows.groupby(by, dropna=False, as_index=False).agg(
        segments=("size_count", "sum"),
        hours=("duration_seconds_sum", lambda seconds: math.fsum(seconds) / 3600),
        size=("size_sum", "sum"),
        shards=("shard", "nunique"),
    )
    order = parts["split"].map({split: place for place, split in enumerate(SPLITS)})
    return parts.assign(order=order).sort_values(
        ["country", "order", "subset_id"], ignore_index=True
    )


def _read_csv(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    convert = pa_csv.ConvertOptions(
        include_columns=list(types),
        column_types=types,
        strings_can_be_null=False,
    )
    try:
        return pa_csv.read_csv(
            path,
            # A row, with its texts, must fit a block.
            read_options=pa_csv.ReadOptions(block_size=16 << 20),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=convert,
        )
    except FileNotFoundError:
        remedy = "Run `snakemake speech_manifest`"
        raise MillraceError("the file is missing", str(path), remedy) from None
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        problem = f"cannot be read ({str(error).splitlines()[0]})"
        raise MillraceError(problem, str(path), _AGAIN) from None
