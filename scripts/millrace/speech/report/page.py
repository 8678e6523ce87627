"""The corpus report as a page: key figures, tables of everything the figures show, and the
figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from millrace.common.report import page
from millrace.common.report.figures import human_bytes, human_count, human_hours, human_share
from millrace.common.report.page import Cell, Code, Number, Table
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country import repeats
from millrace.speech.country.reasons import MEANINGS
from millrace.speech.report.corpus import Corpus

# Longer lists of one kind are cut; the ledgers hold all.
MAX_ROWS = 200


def render(corpus: Corpus, rates: pd.DataFrame, svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures hours, distributions and rejects, `rates` those of all
    countries."""
    total, sums = corpus.ledger("segment"), corpus.parts[["hours", "shards", "size"]].sum()
    tiles = [
        ("In shards", Number(sums["hours"], human_hours(sums["hours"]))),
        ("Segments", _count(total.rows_out)),
        ("Rejected", Number(total.rows_rejected, human_share(total.rows_rejected, total.rows_in))),
        (
            "Recordings",
            _count(sum(sum(country.recordings.values()) for country in corpus.countries)),
        ),
        ("Countries", _count(len(corpus.countries))),
        ("Shards", _count(sums["shards"])),
        ("Size", _bytes(sums["size"])),
    ]
    repairs = _by_reason(corpus, "repaired", "repaired") + _by_reason(
        corpus, "warnings", "with a warning"
    )
    return page.render(
        Path(__file__).with_name("corpus.html.j2"),
        tiles=tiles,
        total=total,
        svgs=svgs,
        countries=_countries(corpus),
        splits=_splits(corpus),
        subsets=_subsets(corpus),
        rates=_rates(corpus, rates),
        rejected=_by_reason(corpus, "rejected", "rejected") + _copies(corpus),
        repairs=repairs + _notes(corpus),
        ledgers=_ledgers(corpus),
    )


def _count(count: float) -> Number:
    return Number(int(count), human_count(count))


def _bytes(size: float) -> Number:
    return Number(int(size), human_bytes(size))


def _hours(corpus: Corpus) -> Callable[[float], Number]:
    """How hours are shown: the smaller the corpus, the more decimals."""
    total = corpus.parts["hours"].sum()
    decimals = 1 if total >= 1000 else 2 if total >= 10 else 3
    return lambda hours: Number(round(hours, 6), f"{hours:,.{decimals}f}")


def _share(share: float) -> Number:
    return Number(0, "–") if math.isnan(share) else Number(round(share, 6), human_share(share))


def _one_decimal(value: float) -> Number:
    return Number(0, "–") if math.isnan(value) else Number(round(value, 4), f"{value:.1f}")


def _with_total(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the sums of its columns as last row."""
    return pd.concat([table, table.sum(numeric_only=True).to_frame("All").T])


def _table(caption: str, table: pd.DataFrame, shown: Mapping[str, Callable[..., Cell]]) -> Table:
    """A table by country, with the total as last row. `shown` makes cells of columns that are not
    counts."""
    ways = [shown.get(name, _count) for name in table.columns]
    rows = [[name, *map(_cell, values, ways)] for name, *values in table.itertuples(name=None)]
    return Table(caption, ["Country", *table.columns], rows[:-1], rows[-1])


def _cell(value: Any, shown: Callable[..., Cell]) -> Cell:
    """The value as `shown`; nothing for a text that the total has not."""
    return "" if shown in (str, Code) and not isinstance(value, str) else shown(value)


def _counts(corpus: Corpus, unit: str, *columns: str) -> pd.DataFrame:
    """Rows in, out and rejected by country, under these names."""
    ledgers = [country.ledgers[unit] for country in corpus.countries]
    rows = [[ledger.rows_in, ledger.rows_out, ledger.rows_rejected] for ledger in ledgers]
    return pd.DataFrame(rows, corpus.names, columns, dtype="int64")


def _countries(corpus: Corpus) -> Table:
    hours, counts = _hours(corpus), _counts(corpus, "segment", "in", "out", "rejected")
    columns = {
        "Language": [country.language for country in corpus.countries],
        "Recordings": [sum(country.recordings.values()) for country in corpus.countries],
        "Recorded (h)": [country.source_hours for country in corpus.countries],
        "Segments found": counts["in"],
        "Rejected": counts["rejected"],
        "In shards": counts["out"],
        "In shards (h)": corpus.hours.sum(axis=1),
    }
    table = _with_total(pd.DataFrame(columns, corpus.names))
    table["Share of hours"] = table["In shards (h)"] / corpus.parts["hours"].sum()
    shown: dict[str, Callable[..., Cell]] = {
        "Language": Code,
        "Recorded (h)": hours,
        "In shards (h)": hours,
        "Share of hours": _share,
    }
    return _table("Hours and segments per country", table, shown)


def _splits(corpus: Corpus) -> Table:
    hours = _with_total(corpus.hours)
    counts = [
        [country.recordings.get(split, 0) for split in SPLITS] for country in corpus.countries
    ]
    recordings = _with_total(pd.DataFrame(counts, corpus.names, SPLITS, dtype="int64"))
    table = pd.DataFrame(index=hours.index)
    shown: dict[str, Callable[..., Cell]] = {}
    for split in SPLITS:
        table[f"{split} recordings"] = recordings[split]
        table[f"{split} (h)"], shown[f"{split} (h)"] = hours[split], _hours(corpus)
        table[f"{split} share"], shown[f"{split} share"] = hours[split] / hours.sum(axis=1), _share
    return _table("Real shares of the splits", table, shown)


def _subsets(corpus: Corpus) -> Table:
    parts = corpus.parts
    columns = {
        "Split": parts["split"],
        "Subset": ["" if math.isnan(number) else f"{number:g}" for number in parts["subset_id"]],
        "Segments": parts["segments"],
        "Hours": parts["hours"],
        "Shards": parts["shards"],
        "Size of audio": parts["size"],
    }
    table = _with_total(pd.DataFrame(columns).set_index(parts["country"]))
    shown: dict[str, Callable[..., Cell]] = {
        "Split": str,
        "Subset": str,
        "Hours": _hours(corpus),
        "Size of audio": _bytes,
    }
    return _table("Shards per split and subset", table, shown)


def _rates(corpus: Corpus, joined: pd.DataFrame) -> Table:
    rows = []
    for name, rates in [
        *((country.name, country.rates) for country in corpus.countries),
        ("All", joined),
    ]:
        cells: list[Cell] = [name, _count(len(rates))]
        seconds = rates["duration_seconds"].astype("float64")
        cells.append(_one_decimal(seconds.quantile(0.05)))
        for values in (seconds, *(rates[rate].astype("float64") * 100 for rate in ("cer", "wer"))):
            cells += map(_one_decimal, [*values.quantile([0.5, 0.95]), values.mean()])
        rows.append(cells)
    columns = [
        "Country",
        "Segments",
        *(f"Duration {what} (s)" for what in ("5 %", "median", "95 %", "mean")),
    ]
    columns += [
        f"{rate} {what} (%)" for rate in ("CER", "WER") for what in ("median", "95 %", "mean")
    ]
    return Table(
        "Quantiles and means of all segments in the manifest", columns, rows[:-1], rows[-1]
    )


def _by_reason(corpus: Corpus, column: str, done: str) -> list[Table]:
    """A table of segments and one of files by reason, if there are any; shares for rejects only."""
    tables, shares = [], column == "rejected"
    columns = ["Reason", "Meaning", "Count", *(["Share of found"] if shares else []), "Where"]
    for unit, noun in (("segment", "Segments"), ("file", "Alignment files")):
        counts, rows_in = corpus.by_reason(unit, column), corpus.ledger(unit).rows_in
        if counts.empty:
            continue
        lines = []
        for reason, by_country in counts.iloc[:MAX_ROWS].iterrows():
            ranked = (
                by_country[by_country > 0].sort_index().sort_values(ascending=False, kind="stable")
            )
            where = ", ".join(f"{name} {human_count(count)}" for name, count in ranked.items())
            name = Code(reason) if " " not in reason else reason
            lines.append((name, MEANINGS.get(reason, ""), by_country.sum(), where))
        if (rest := len(counts) - MAX_ROWS) > 0:
            lines.append(
                (f"{rest} more", "in the ledger", counts.iloc[MAX_ROWS:].to_numpy().sum(), "")
            )
        rows = []
        for name, meant, count, where in (*lines, ("All", "", counts.to_numpy().sum(), "")):
            share = [_share(count / rows_in if rows_in else math.nan)] if shares else []
            rows.append([name, meant, _count(count), *share, where])
        tables.append(Table(f"{noun} {done}", columns, rows[:-1], rows[-1]))
    return tables


def _copies(corpus: Corpus) -> list[Table]:
    pairs = [pair for country in corpus.countries for pair in country.copies]
    rows = [[pair["recording"], repeats.line(pair)] for pair in pairs[:MAX_ROWS]]
    table = Table(
        f"Recordings that repeat another split ({len(pairs)})", ["Recording", "What"], rows
    )
    return [table] if pairs else []


def _notes(corpus: Corpus) -> list[Table]:
    notes = [(country.name, note) for country in corpus.countries for note in country.notes]
    rows: list[list[Cell]] = [[name, Code(note), MEANINGS.get(note, "")] for name, note in notes]
    return [Table("Notes on countries", ["Country", "Note", "Meaning"], rows)] if rows else []


def _ledgers(corpus: Corpus) -> list[Table]:
    tables = []
    for caption, unit, out in (
        ("Segments", "segment", "In shards"),
        ("Alignment files", "file", "Used"),
    ):
        table = _with_total(_counts(corpus, unit, "Found", out, "Rejected"))
        table["Share rejected"] = table["Rejected"] / table["Found"]
        tables.append(_table(caption, table, {"Share rejected": _share}))
    return tables
