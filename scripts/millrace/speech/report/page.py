"""The corpus report as a page: key figures, hours and rejects as tables, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

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
    titles = ["Country", "Language", "Recordings", "Segments found", "Rejected", "In shards"]
    rows: list[list[Cell]] = []
    for country in corpus.countries:
        ledger = country.ledgers["segment"]
        counts = [country.recordings, ledger.rows_in, ledger.rows_rejected, ledger.rows_out]
        hours = corpus.hours.loc[country.name]
        amounts = map(_hours, [*hours, hours.sum()])
        rows.append([country.name, Code(country.language), *map(_count, counts), *amounts])

    total = corpus.ledger("segment")
    recordings = sum(country.recordings for country in corpus.countries)
    counts = [recordings, total.rows_in, total.rows_rejected, total.rows_out]
    hours = corpus.hours.sum()
    last: list[Cell] = ["All", "", *map(_count, counts), *map(_hours, [*hours, hours.sum()])]
    return Table("Hours and segments per country", [*titles, *SPLITS, "Hours"], rows, last)


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
            where = ", ".join(f"{name} {human_count(count)}" for name, count in ranked.items())
            meaning = MEANINGS.get(reason, "")
            rows.append([Code(reason), meaning, _count(by_country.sum()), where])
        last: list[Cell] = ["All", "", _count(counts.to_numpy().sum()), ""]
        yield Table(f"{noun} {done}", ["Reason", "Meaning", "Count", "Where"], rows, last)


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
