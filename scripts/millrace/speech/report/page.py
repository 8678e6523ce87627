"""The corpus report as a page: key figures, tables of everything the figures show, and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from millrace.common.ledger import Ledger
from millrace.common.report.figures import human_bytes, human_count, human_hours, human_share, inline_svg
from millrace.common.report.page import Cell, Code, Number, Section, Table, figure, page, paragraph
from millrace.speech.corpus.splits import SPLITS
from millrace.speech.country.reasons import meaning
from millrace.speech.report.corpus import Corpus, Country, Rates

TITLE = "Speech corpus"
# Longer lists of one kind are cut; the ledgers hold all.
MOST_ROWS = 200


def render(corpus: Corpus, rates: Rates, svgs: Mapping[str, str]) -> str:
    """The page; `svgs` are the figures hours, distributions and rejects, `rates` those of all countries
    joined."""
    total = corpus.ledger("segment")
    files = corpus.ledger("file")
    recordings = sum(sum(country.recordings.values()) for country in corpus.countries)
    shown = {name: figure(inline_svg(svg, name)) for name, svg in svgs.items()}
    tiles = [
        ("In shards", Number(corpus.hours, human_hours(corpus.hours))),
        ("Segments", _count(total.rows_out)),
        ("Rejected", Number(total.rows_rejected, human_share(total.rows_rejected, total.rows_in))),
        ("Recordings", _count(recordings)),
        ("Countries", _count(len(corpus.countries))),
        ("Shards", _count(sum(part.shards for part in corpus.parts))),
        ("Size", Number(size := sum(part.size for part in corpus.parts), human_bytes(size))),
    ]
    lead = f"{human_count(total.rows_in)} segments found = {human_count(total.rows_out)} in shards"
    lead += f" + {human_count(total.rows_rejected)} rejected with a reason."
    sections = [
        Section("countries", "Countries", [_countries(corpus), shown["hours"]]),
        Section("splits", "Splits and subsets", [paragraph(_SPLITS), _splits(corpus), _subsets(corpus)]),
        Section(
            "rates",
            "Duration and error rates",
            [paragraph(_RATES), shown["distributions"], _rates(corpus, rates)],
        ),
        Section(
            "rejects",
            "Rejects",
            [shown["rejects"], *_by_reason(corpus, "rejected", "rejected", total, files)],
        ),
        Section("repairs", "Repairs and warnings", _repairs(corpus, total, files)),
        Section(
            "ledger", "Ledger", [paragraph(_LEDGER), _ledger(corpus, "segment"), _ledger(corpus, "file")]
        ),
    ]
    return page(TITLE, lead, tiles, sections)


_SPLITS = "Splits are made of whole recordings. Shares are of the hours in shards, after all rejects."
_RATES = (
    "Of all segments in the manifest: those in shards, and those rejected when the shards were made (by CER, or for "
    "their audio). Segments rejected earlier have no rates."
)
_LEDGER = "Found = in shards + rejected for segments, found = used + rejected for alignment files; the run checks both."


def _count(count: float) -> Number:
    return Number(count, human_count(count))


def _hours(corpus: Corpus, hours: float) -> Number:
    decimals = 1 if corpus.hours >= 1000 else 2 if corpus.hours >= 10 else 3
    return Number(round(hours, 6), f"{hours:,.{decimals}f}")


def _share(part: float, whole: float) -> Number | str:
    return Number(round(part / whole, 6), human_share(part, whole)) if whole else Number(0, "–")


def _countries(corpus: Corpus) -> str:
    def row(name: str, language: Cell, held: Sequence[Country]) -> list[Cell]:
        segments = Ledger.total("", "", (country.segments for country in held))
        hours = sum(country.hours for country in held)
        return [
            name,
            language,
            _count(sum(sum(country.recordings.values()) for country in held)),
            _hours(corpus, sum(country.source_hours for country in held)),
            _count(segments.rows_in),
            _count(segments.rows_rejected),
            _count(segments.rows_out),
            _hours(corpus, hours),
            _share(hours, corpus.hours),
        ]

    columns = ["Country", "Language", "Recordings", "Recorded (h)", "Segments found", "Rejected", "In shards"]
    rows = [row(country.name, Code(country.language), [country]) for country in corpus.countries]
    columns += ["In shards (h)", "Share of hours"]
    return Table("Hours and segments per country", columns, rows, row("All", "", corpus.countries)).html()


def _splits(corpus: Corpus) -> str:
    def row(name: str, held: Sequence[Country]) -> list[Cell]:
        whole = sum(country.hours for country in held)
        cells: list[Cell] = [name]
        for split in SPLITS:
            hours = sum(country.hours_of(split) for country in held)
            recordings = sum(country.recordings[split] for country in held)
            cells += [_count(recordings), _hours(corpus, hours), _share(hours, whole)]
        return cells

    columns = ["Country", *(f"{split} {what}" for split in SPLITS for what in ("recordings", "(h)", "share"))]
    rows = [row(country.name, [country]) for country in corpus.countries]
    return Table("Real shares of the splits", columns, rows, row("All", corpus.countries)).html()


def _subsets(corpus: Corpus) -> str:
    rows: list[list[Cell]] = []
    for country in corpus.countries:
        for part in country.parts:
            subset = "" if part.subset_id is None else str(part.subset_id)
            numbers = [_count(part.segments), _hours(corpus, part.hours), _count(part.shards)]
            rows.append(
                [country.name, part.split, subset, *numbers, Number(part.size, human_bytes(part.size))]
            )
    if not rows:
        return paragraph("There are no shards.", True)
    parts = corpus.parts
    size = sum(part.size for part in parts)
    total = [
        _count(sum(p.segments for p in parts)),
        _hours(corpus, corpus.hours),
        _count(sum(p.shards for p in parts)),
    ]
    columns = ["Country", "Split", "Subset", "Segments", "Hours", "Shards", "Size of audio"]
    return Table(
        "Shards per split and subset", columns, rows, ["All", "", "", *total, Number(size, human_bytes(size))]
    ).html()


def _rates(corpus: Corpus, joined: Rates) -> str:
    def row(name: str, rates: Rates) -> list[Cell]:
        cells: list[Cell] = [name, _count(rates.duration.size)]
        for values, scale, quantiles in (
            (rates.duration, 1, (5, 50, 95)),
            (rates.cer, 100, (50, 95)),
            (rates.wer, 100, (50, 95)),
        ):
            valid = values[np.isfinite(values)].astype(np.float64) * scale
            found = [*np.percentile(valid, quantiles), valid.mean()] if valid.size else []
            cells += [Number(round(float(v), 4), f"{v:.1f}") for v in found] or [Number(0, "–")] * (
                len(quantiles) + 1
            )
        return cells

    columns = ["Country", "Segments", *(f"Duration {what} (s)" for what in ("5 %", "median", "95 %", "mean"))]
    columns += [
        f"{name} {what}" for name in ("CER", "WER") for what in ("median (%)", "95 % (%)", "mean (%)")
    ]
    rows = [row(country.name, country.rates) for country in corpus.countries]
    return Table(
        "Quantiles and means of all segments in the manifest", columns, rows, row("All", joined)
    ).html()


def _by_reason(corpus: Corpus, column: str, done: str, segments: Ledger, files: Ledger) -> list[str]:
    """A table of segments and one of files by reason, where there are any; shares for what left only."""
    parts = []
    for unit, noun, found in (
        ("segment", "Segments", segments.rows_in),
        ("file", "Alignment files", files.rows_in),
    ):
        reasons = corpus.by_reason(unit, column)
        if not reasons:
            continue

        def counts(count: int, of: int = found) -> list[Cell]:
            return [_count(count), *([_share(count, of)] if column == "rejected" else [])]

        rows: list[list[Cell]] = []
        for reason, by_country in list(reasons.items())[:MOST_ROWS]:
            ranked = sorted(by_country.items(), key=lambda pair: (-pair[1], pair[0]))
            where = ", ".join(f"{name} {human_count(count)}" for name, count in ranked)
            rows.append([_reason(reason), meaning(reason), *counts(sum(by_country.values())), where])
        sums = [sum(by_country.values()) for by_country in reasons.values()]
        if len(sums) > MOST_ROWS:
            rows.append(
                [f"{len(sums) - MOST_ROWS} more", "in the ledger", *counts(sum(sums[MOST_ROWS:])), ""]
            )
        columns = [
            "Reason",
            "Meaning",
            "Count",
            *(["Share of found"] if column == "rejected" else []),
            "Where",
        ]
        parts.append(Table(f"{noun} {done}", columns, rows, ["All", "", *counts(sum(sums)), ""]).html())
    return parts


def _reason(reason: str) -> Cell:
    return Code(reason) if " " not in reason else reason


def _repairs(corpus: Corpus, segments: Ledger, files: Ledger) -> list[str]:
    parts = [paragraph("What was kept all the same. These counts take no part in the balance.")]
    parts += _by_reason(corpus, "repaired", "repaired", segments, files)
    parts += _by_reason(corpus, "warnings", "with a warning", segments, files)
    rows = [
        [country.name, Code(note), meaning(note)] for country in corpus.countries for note in country.notes
    ]
    if rows:
        parts.append(Table("Notes on countries", ["Country", "Note", "Meaning"], rows).html())
    return parts if len(parts) > 1 else [paragraph("Nothing was repaired, and there were no warnings.", True)]


def _ledger(corpus: Corpus, unit: str) -> str:
    def row(name: str, ledger: Ledger) -> list[Cell]:
        counts = [_count(ledger.rows_in), _count(ledger.rows_out), _count(ledger.rows_rejected)]
        return [name, *counts, _share(ledger.rows_rejected, ledger.rows_in)]

    rows = [row(c.name, c.segments if unit == "segment" else c.files) for c in corpus.countries]
    kept = "In shards" if unit == "segment" else "Used"
    caption = "Segments" if unit == "segment" else "Alignment files"
    return Table(
        caption,
        ["Country", "Found", kept, "Rejected", "Share rejected"],
        rows,
        row("All", corpus.ledger(unit)),
    ).html()
