"""The report on a terminal of 100 columns: fails first, then what is not decidable, then the
rest."""

from __future__ import annotations

import textwrap

from millrace.audit.report.document import not_reached, pairs, remarks, select, shown
from millrace.common.errors import printable


def text(document: dict) -> str:
    """The report in short: of long texts six lines; the JSON and the page have them whole."""
    lines = _head(document)
    for entry in select(document, "fail"):
        lines += ["", f"FAIL  {entry['name']:<6}  {entry['title']}"]
        for row in (row for row in entry["findings"] if row["verdict"] == "fail"):
            lines += _wrap("  cause     ", row["cause"])
            for number, pair in enumerate(pairs(row["evidence"])):
                lines += _wrap(" " * 12 if number else "  evidence  ", ": ".join(pair))
            lines += _wrap("  fix       ", row["fix"])
        lines.append(f"  link      {entry['link']}")
    for title, rows in remarks(document).items():
        lines += ["", title.upper()] if rows else []
        for name, *said in rows:
            lines += _wrap(f"  {name}  ", "; ".join(filter(None, said)), 10)
    lines.append("")
    for verdict in ("pass", "not applicable"):
        if names := " ".join(entry["name"] for entry in select(document, verdict)):
            lines += _wrap(f"{verdict.upper():<14}  ", names)
    return printable("\n".join(lines))


def _head(document: dict) -> list[str]:
    """Where it ran, the verdicts by number, the probes that did not end, and what the time did not
    suffice for."""
    place = {
        **document["environment"],
        "seconds": round(sum(each["seconds"] for each in document["probes"])),
    }
    lines = _wrap("Audit of ", f"{document['loader']} {shown(place)}")
    lines.append(
        ", ".join(f"{number} {verdict}" for verdict, number in document["counts"].items() if number)
    )
    for probe in document["probes"]:
        # One that is late after no seconds was not begun: its entries are not reached.
        if probe["status"] not in ("ok", "skipped") and probe["seconds"]:
            lines += _wrap(f"  probe {probe['name']} {probe['status']}: ", probe["error"])
    if words := not_reached(document):
        lines += ["", *_wrap("NOT REACHED  ", words)]
    return lines


def _wrap(start: str, words: str, indent: int = 0) -> list[str]:
    """At most six lines of these words, each below the first, or `indent` columns in."""
    lines = textwrap.wrap(
        shown(words),
        100,
        initial_indent=start,
        subsequent_indent=" " * (indent or len(start)),
        max_lines=6,
        placeholder=" ...",
    )
    return lines or [start]
