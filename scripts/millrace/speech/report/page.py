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
    """The page; `svgs` are the figures hours and distributions."""
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
    """A table of segments and one of files by reason, the most frequent first, if there are any."""
    for unit, noun in _UNITS.items():
        counts = getattr(corpus.ledger(unit), column)
        if not counts:
            continue
        rows: list[list[Cell]] = []
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            rows.append([Code(reason), MEANINGS.get(reason, ""), _count(count)])
        titles = ["Reason", "Meaning", "Count"]
        yield Table(f"{noun} {done}", titles, rows, ["All", "", _count(counts.total())])


def _copies(corpus: Corpus) -> list[Table]:
    pairs = [pair for country in corpus.countries for pair in country.copies]
    if not pairs:
        return []
    rows: list[list[Cell]] = [[repeats.line(pair)] for pair in pairs[:_MOST_COPIES]]
    return [Table(f"Recordings that repeat another split ({len(pairs)})", ["What"], rows)]
