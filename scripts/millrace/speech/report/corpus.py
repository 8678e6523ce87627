"""The numbers of the corpus report: hours by country and split, rates of segments, ledgers."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pandas as pd
import pyarrow.parquet as pq

from millrace.common import jsonl
from millrace.common.errors import own_file
from millrace.common.ledger import Ledger
from millrace.speech.corpus.splits import SPLITS

_BY = ["country", "split"]
_RATES = ["duration_seconds", "cer", "wer"]


@dataclass
class Country:
    """A country as the report shows it."""

    name: str
    language: str
    recordings: int
    ledgers: dict[str, Ledger]  # of segments and files, by unit
    copies: list[dict]  # pairs of recordings, of country.copies


@dataclass
class Corpus:
    """All countries in the order of their names."""

    countries: list[Country]
    hours: pd.DataFrame  # in shards, by country (rows) and split (columns)
    rates: pd.DataFrame  # of all segments in shards: duration_seconds, cer and wer (fractions)

    def ledger(self, unit: str) -> Ledger:
        """The sum of the ledgers of segments or files."""
        ledgers = (country.ledgers[unit] for country in self.countries)
        return Ledger.total("speech_report_corpus", "all", ledgers, unit)


def read(index: str | os.PathLike, ledger: str | os.PathLike) -> Corpus:
    """Read the merged index and the ledger beside it."""
    with own_file(ledger):
        countries = [_country(row) for row in jsonl.read(ledger)["countries"]]
    countries.sort(key=lambda country: (country.name.casefold(), country.name))

    with own_file(index):
        columns = [*_BY, *_RATES]
        table = pq.read_table(index, columns=columns, read_dictionary=_BY, partitioning=None)
    segments = table.to_pandas()
    seconds = segments.groupby(_BY, observed=True)["duration_seconds"].sum().unstack()
    names = [country.name for country in countries]
    hours = seconds.reindex(index=names, columns=list(SPLITS)).fillna(0.0) / 3600
    return Corpus(countries, hours, segments[_RATES])


def _country(row: dict) -> Country:
    return Country(
        row["country"],
        row["language"],
        row["recordings"],
        {"segment": Ledger.from_dict(row["segments"]), "file": Ledger.from_dict(row["files"])},
        row.get("left_out_copies", []),
    )
