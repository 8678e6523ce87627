"""The numbers of the corpus report: hours by country and split, rates of segments, ledgers."""

from __future__ import annotations

import math
import os
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
    recordings: int
    ledgers: dict[str, Ledger]  # of segments and files, by unit
    notes: list[str]
    copies: list[dict]  # pairs of recordings, of country.copies


@dataclass
class Corpus:
    """All countries in the order of their names."""

    countries: list[Country]
    hours: pd.DataFrame  # in shards, by country (rows) and split (columns)
    # All segments of the manifests: duration_seconds, cer and wer (fractions) in float32, NaN if
    # unknown, and in_shard, which says whether the segment is in a shard.
    rates: pd.DataFrame

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
    """Read the merged index and ledger, and the countries' manifests; raise if index and ledger
    contradict each other."""
    parts = _parts(index)
    with own_file(ledger):
        countries = [_country(row) for row in jsonl.read(ledger)["countries"]]
    countries.sort(key=lambda country: (country.name.casefold(), country.name))
    names = [country.name for country in countries]

    in_shards = parts.groupby("country")["segments"].sum().to_dict()
    stated = {each.name: each.ledgers["segment"].rows_out for each in countries}
    for name in [*stated, *in_shards]:
        if in_shards.get(name, 0) != stated.get(name, 0):
            problem = (
                f"holds {in_shards.get(name, 0)} segments of {name}, the ledger"
                f" {stated.get(name, 0)}"
            )
            raise MillraceError(problem, str(index), _AGAIN)

    hours = parts.pivot_table("hours", "country", "split", aggfunc="sum")
    hours = hours.reindex(index=names, columns=list(SPLITS)).fillna(0.0)
    rates = [_rates(name, index, Path(manifest_dir)) for name in names]
    empty = pd.DataFrame(columns=list(_RATES), dtype=np.float32).assign(in_shard=np.zeros(0, bool))
    return Corpus(countries, hours, pd.concat([empty, *rates], ignore_index=True))


def _country(row: dict) -> Country:
    return Country(
        row["country"],
        row["language"],
        row["recordings"],
        {"segment": Ledger.from_dict(row["segments"]), "file": Ledger.from_dict(row["files"])},
        row["notes"],
        row.get("left_out_copies", []),
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
    """Segments and hours by country and split."""
    by = ["country", "split"]
    with own_file(index), pq.ParquetFile(index) as file:
        # One row group in memory at a time; one thread, so that floats are always added in the same
        # order.
        columns = [*by, "duration_seconds"]
        groups = (file.read_row_group(number, columns) for number in range(file.num_row_groups))
        tables = [file.schema_arrow.empty_table().select(columns), *groups]
        sums = [("duration_seconds", "sum"), ("duration_seconds", "count")]
        tables = [table.group_by(by, use_threads=False).aggregate(sums) for table in tables]
    rows = pa.concat_tables(tables).to_pandas()
    return rows.groupby(by, as_index=False).agg(
        segments=("duration_seconds_count", "sum"),
        hours=("duration_seconds_sum", lambda seconds: math.fsum(seconds) / 3600),
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
    except (FileNotFoundError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
        problem = f"cannot be read ({str(error).splitlines()[0]})"
        raise MillraceError(problem, str(path), _AGAIN) from None
