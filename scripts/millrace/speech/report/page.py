"""The corpus report as a page: key figures, hours and rejects as tables, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from millrace.common.ledger import Ledger
from millrace.common.report import page
from millrace.common.report.figures import human_count, human_hours, human_share
from millrace.common.report.page import Cell, Code, Number, Table
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import repeats
from millrace.speech.country.reasons import MEANINGS
from millrace.speech.report.corpus import Corpus

# A longer list of copies is cut; the ledgers hold all.
_MOST_COPIES = 200
# The units of ledgers, and what they are called.
_UNITS = {"segment": "Segments", "file": "Alignment files"}


def render(corpus: Corpus, svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures hours, distributions and rejects."""
    return page.render(
        Path(__file__).with_name("corpus.html.j2"),
        tiles=_tiles(corpus),
        total=corpus.ledger("segment"),
        svgs=svgs,
        countries=_countries(corpus),
        rejected=[*_by_reason(corpus, "rejected", "rejected"), *_copies(corpus)],
        repairs=[
            *_by_reason(corpus, "repaired", "repaired"),
            *_by_reason(corpus, "warnings", "with a warning"),
            *_notes(corpus),
        ],
    )


def _tiles(corpus: Corpus) -> list[tuple[str, Number]]:
    total = corpus.ledger("segment")
    rejected = human_share(total.rows_rejected, total.rows_in)
    return [
        ("In shards", _hours(corpus.hours.to_numpy().sum())),
        ("Segments", _count(total.rows_out)),
        ("Rejected", Number(total.rows_rejected, rejected)),
        ("Countries", _count(len(corpus.countries))),
    ]


def _count(count: float) -> Number:
    return Number(int(count), human_count(count))


def _hours(hours: float) -> Number:
    return Number(round(hours, 6), human_hours(hours))


def _countries(corpus: Corpus) -> Table:
    """What was found and used of each country, and of all."""
    titles = [
        "Country",
        "Language",
        "Recordings",
        "Segments found",
        "Rejected",
        "In shards",
        *SPLITS,
        "Hours",
    ]
    rows = []
    for country in corpus.countries:
        numbers = _numbers(
            country.recordings,
            country.ledgers["segment"],
            corpus.hours.loc[country.name],
        )
        rows.append([country.name, Code(country.language), *numbers])

    total = _numbers(
        sum(country.recordings for country in corpus.countries),
        corpus.ledger("segment"),
        corpus.hours.sum(),
    )
    return Table("Hours and segments per country", titles, rows, ["All", "", *total])


def _numbers(recordings: int, segments: Ledger, hours: pd.Series) -> list[Cell]:
    """The cells of a country behind its name and language; `hours` are those of each split."""
    return [
        _count(recordings),
        _count(segments.rows_in),
        _count(segments.rows_rejected),
        _count(segments.rows_out),
        *map(_hours, hours),
        _hours(hours.sum()),
    ]


def _by_reason(corpus: Corpus, column: str, done: str) -> Iterator[Table]:
    """A table of segments and one of files by reason, if there are any."""
    for unit, noun in _UNITS.items():
        counts = corpus.by_reason(unit, column)
        if counts.empty:
            continue
        rows: list[list[Cell]] = []
        for reason, by_country in counts.iterrows():
            present = by_country[by_country > 0].sort_index()
            ranked = present.sort_values(ascending=False, kind="stable")
            where = [f"{name} {human_count(count)}" for name, count in ranked.items()]
            row: list[Cell] = [
                Code(reason),
                MEANINGS.get(reason, ""),
                _count(by_country.sum()),
                ", ".join(where),
            ]
            rows.append(row)
        total = _count(counts.to_numpy().sum())
        titles = ["Reason", "Meaning", "Count", "Where"]
        yield Table(f"{noun} {done}", titles, rows, ["All", "", total, ""])


def _copies(corpus: Corpus) -> list[Table]:
    pairs = [pair for country in corpus.countries for pair in country.copies]
    if not pairs:
        return []
    rows: list[list[Cell]] = [[repeats.line(pair)] for pair in pairs[:_MOST_COPIES]]
    return [Table(f"Recordings that repeat another split ({len(pairs)})", ["What"], rows)]


def _notes(corpus: Corpus) -> list[Table]:
    rows: list[list[Cell]] = []
    for country in corpus.countries:
        for note in country.notes:
            rows.append([country.name, Code(note), MEANINGS.get(note, "")])
    if not rows:
        return []
    return [Table("Notes on countries", ["Country", "Note", "Meaning"], rows)]
