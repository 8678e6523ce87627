"""The corpus report as a page: key figures, tables of everything the figures show, and the
figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from millrace.common.report import page
from millrace.common.report.figures import human_bytes, human_count, human_hours, human_share
from millrace.common.report.page import Cell, Code, Number, Table
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import repeats
from millrace.speech.country.reasons import MEANINGS
from millrace.speech.report.corpus import Corpus

# A longer list of copies is cut; the ledgers hold all.
_MOST_COPIES = 200
# The units of ledgers, and what they are called.
_UNITS = {"segment": "Segments", "file": "Alignment files"}
_NOTHING = Number(0, "–")


def render(corpus: Corpus, rates: pd.DataFrame, svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures hours, distributions and rejects, `rates` those of all
    countries."""
    return page.render(
        Path(__file__).with_name("corpus.html.j2"),
        tiles=_tiles(corpus),
        total=corpus.ledger("segment"),
        svgs=svgs,
        countries=_countries(corpus),
        splits=_splits(corpus),
        subsets=_subsets(corpus),
        rates=_rates(corpus, rates),
        rejected=[*_by_reason(corpus, "rejected", "rejected"), *_copies(corpus)],
        repairs=[
            *_by_reason(corpus, "repaired", "repaired"),
            *_by_reason(corpus, "warnings", "with a warning"),
            *_notes(corpus),
        ],
        files=_files(corpus),
    )


def _tiles(corpus: Corpus) -> list[tuple[str, Number]]:
    total = corpus.ledger("segment")
    hours = corpus.parts["hours"].sum()
    rejected = human_share(total.rows_rejected, total.rows_in)
    return [
        ("In shards", Number(hours, human_hours(hours))),
        ("Segments", _count(total.rows_out)),
        ("Rejected", Number(total.rows_rejected, rejected)),
        ("Recordings", _count(sum(_recordings(corpus)))),
        ("Countries", _count(len(corpus.countries))),
        ("Shards", _count(corpus.parts["shards"].sum())),
        ("Size", _bytes(corpus.parts["size"].sum())),
    ]


def _recordings(corpus: Corpus) -> list[int]:
    """How many recordings each country has."""
    return [sum(country.recordings.values()) for country in corpus.countries]


# How numbers are shown.


def _count(count: float) -> Number:
    return Number(int(count), human_count(count))


def _bytes(size: float) -> Number:
    return Number(int(size), human_bytes(size))


def _hours(corpus: Corpus) -> Callable[[float], Number]:
    """How hours are shown: the smaller the corpus, the more decimals."""
    total = corpus.parts["hours"].sum()
    if total >= 1000:
        decimals = 1
    elif total >= 10:
        decimals = 2
    else:
        decimals = 3
    return lambda hours: Number(round(hours, 6), f"{hours:,.{decimals}f}")


def _share(part: float, whole: float) -> Number:
    if not whole:
        return _NOTHING
    share = part / whole
    return Number(round(share, 6), human_share(share))


def _one_decimal(value: float) -> Number:
    if math.isnan(value):
        return _NOTHING
    return Number(round(value, 4), f"{value:.1f}")


class _Column(NamedTuple):
    """A column of a table by country: its cells, and the one of the last row."""

    title: str
    cells: Sequence[Cell]
    total: Cell = ""


def _summed(
    title: str, values: Sequence[float], shown: Callable[[float], Number] = _count
) -> _Column:
    """Numbers, and their sum."""
    return _Column(title, [shown(value) for value in values], shown(sum(values)))


def _shares(title: str, parts: Sequence[float], wholes: Sequence[float]) -> _Column:
    """Each part of its whole, and all parts of all."""
    cells = [_share(part, whole) for part, whole in zip(parts, wholes, strict=True)]
    return _Column(title, cells, _share(sum(parts), sum(wholes)))


def _table(caption: str, names: Sequence[str], columns: Sequence[_Column]) -> Table:
    """The columns beside the names of countries, and a last row about all."""
    cells = zip(*(column.cells for column in columns), strict=True)
    rows = [[name, *row] for name, row in zip(names, cells, strict=True)]
    titles = [column.title for column in columns]
    totals = [column.total for column in columns]
    return Table(caption, ["Country", *titles], rows, ["All", *totals])


def _countries(corpus: Corpus) -> Table:
    languages = [Code(country.language) for country in corpus.countries]
    recorded = [country.source_hours for country in corpus.countries]
    segments = [country.ledgers["segment"] for country in corpus.countries]
    hours = list(corpus.hours.sum(axis=1))
    total = sum(hours)
    shares = [_share(amount, total) for amount in hours]
    columns = [
        _Column("Language", languages),
        _summed("Recordings", _recordings(corpus)),
        _summed("Recorded (h)", recorded, _hours(corpus)),
        _summed("Segments found", [ledger.rows_in for ledger in segments]),
        _summed("Rejected", [ledger.rows_rejected for ledger in segments]),
        _summed("In shards", [ledger.rows_out for ledger in segments]),
        _summed("In shards (h)", hours, _hours(corpus)),
        _Column("Share of hours", shares, _share(total, total)),
    ]
    return _table("Hours and segments per country", corpus.names, columns)


def _splits(corpus: Corpus) -> Table:
    of_country = list(corpus.hours.sum(axis=1))
    columns = []
    for split in SPLITS:
        recordings = [country.recordings.get(split, 0) for country in corpus.countries]
        hours = list(corpus.hours[split])
        columns += [
            _summed(f"{split} recordings", recordings),
            _summed(f"{split} (h)", hours, _hours(corpus)),
            _shares(f"{split} share", hours, of_country),
        ]
    return _table("Real shares of the splits", corpus.names, columns)


def _subsets(corpus: Corpus) -> Table:
    parts = corpus.parts.to_dict("list")
    subsets = ["" if math.isnan(number) else f"{number:g}" for number in parts["subset_id"]]
    columns = [
        _Column("Split", parts["split"]),
        _Column("Subset", subsets),
        _summed("Segments", parts["segments"]),
        _summed("Hours", parts["hours"], _hours(corpus)),
        _summed("Shards", parts["shards"]),
        _summed("Size of audio", parts["size"], _bytes),
    ]
    return _table("Shards per split and subset", parts["country"], columns)


def _rates(corpus: Corpus, joined: pd.DataFrame) -> Table:
    columns = ["Country", "Segments"]
    columns += [f"Duration {what} (s)" for what in ("5 %", "median", "95 %", "mean")]
    for rate in ("CER", "WER"):
        columns += [f"{rate} {what} (%)" for what in ("median", "95 %", "mean")]
    rows = [_rates_row(country.name, country.rates) for country in corpus.countries]
    caption = "Quantiles and means of all segments in the manifest"
    return Table(caption, columns, rows, _rates_row("All", joined))


def _rates_row(name: str, rates: pd.DataFrame) -> list[Cell]:
    seconds = rates["duration_seconds"].astype("float64")
    cells: list[Cell] = [name, _count(len(rates)), _one_decimal(seconds.quantile(0.05))]
    cers = rates["cer"].astype("float64") * 100
    wers = rates["wer"].astype("float64") * 100
    for values in (seconds, cers, wers):
        cells.append(_one_decimal(values.quantile(0.5)))
        cells.append(_one_decimal(values.quantile(0.95)))
        cells.append(_one_decimal(values.mean()))
    return cells


def _by_reason(corpus: Corpus, column: str, done: str) -> Iterator[Table]:
    """A table of segments and one of files by reason, if there are any; shares for rejects only."""
    has_shares = column == "rejected"
    titles = ["Reason", "Meaning", "Count", "Where"]
    if has_shares:
        titles.insert(3, "Share of found")
    for unit, noun in _UNITS.items():
        counts = corpus.by_reason(unit, column)
        if counts.empty:
            continue
        rows: list[list[Cell]] = []
        for reason, count, meaning, where in _reasons(counts):
            row = [reason, meaning, _count(count), where]
            if has_shares:
                row.insert(3, _share(count, corpus.ledger(unit).rows_in))
            rows.append(row)
        yield Table(f"{noun} {done}", titles, rows[:-1], rows[-1])


def _reasons(counts: pd.DataFrame) -> Iterator[tuple[Cell, int, str, str]]:
    """Reason, count, meaning and countries of each row of a table by reason; the last is of all."""
    for reason, by_country in counts.iterrows():
        present = by_country[by_country > 0].sort_index()
        ranked = present.sort_values(ascending=False, kind="stable")
        where = ", ".join(f"{name} {human_count(count)}" for name, count in ranked.items())
        name = reason if " " in reason else Code(reason)
        yield name, by_country.sum(), MEANINGS.get(reason, ""), where
    yield "All", counts.to_numpy().sum(), "", ""


def _copies(corpus: Corpus) -> list[Table]:
    pairs = [pair for country in corpus.countries for pair in country.copies]
    if not pairs:
        return []
    rows = [[pair["recording"], repeats.line(pair)] for pair in pairs[:_MOST_COPIES]]
    caption = f"Recordings that repeat another split ({len(pairs)})"
    return [Table(caption, ["Recording", "What"], rows)]


def _notes(corpus: Corpus) -> list[Table]:
    rows: list[list[Cell]] = []
    for country in corpus.countries:
        for note in country.notes:
            rows.append([country.name, Code(note), MEANINGS.get(note, "")])
    if not rows:
        return []
    return [Table("Notes on countries", ["Country", "Note", "Meaning"], rows)]


def _files(corpus: Corpus) -> Table:
    ledgers = [country.ledgers["file"] for country in corpus.countries]
    columns = [
        _summed("Found", [ledger.rows_in for ledger in ledgers]),
        _summed("Used", [ledger.rows_out for ledger in ledgers]),
        _summed("Rejected", [ledger.rows_rejected for ledger in ledgers]),
    ]
    return _table("Alignment files", corpus.names, columns)
