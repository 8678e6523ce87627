"""The report on a terminal of 100 columns: fails first, then what is not decidable, then the
rest."""

from __future__ import annotations

import textwrap

from millrace.audit.report.document import not_reached, pairs, select, told
from millrace.common.errors import printable


def text(document: dict) -> str:
    """The report in short: of long texts six lines; the JSON has them whole."""
    lines = _head(document)
    for entry in select(document, "fail"):
        lines += ["", f"FAIL  {entry['name']:<6}  {entry['title']}"]
        for row in told(entry):
            lines += _wrap("  cause     ", row.cause)
            for number, pair in enumerate(row.evidence):
                lines += _wrap(" " * 12 if number else "  evidence  ", ": ".join(pair))
            lines += _wrap("  fix       ", row.remedy)
        lines.append(f"  link      {entry['link']}")
    for verdict in ("not decidable", "ignored"):
        names_by_words: dict[str, list[str]] = {}
        for entry in select(document, verdict):
            for row in told(entry):
                words = "; ".join(filter(None, (row.cause, row.remedy)))
                names_by_words.setdefault(words, []).append(entry["name"])
        lines += ["", verdict.upper()] if names_by_words else []
        for words, names in names_by_words.items():
            lines += _wrap(f"  {' '.join(names)}  ", words, 10)
    lines.append("")
    for verdict in ("pass", "not applicable"):
        listed = " ".join(entry["name"] for entry in select(document, verdict))
        if listed:
            lines += _wrap(f"{verdict.upper():<14}  ", listed)
    return printable("\n".join(lines))


def _head(document: dict) -> list[str]:
    """Where it ran, the verdicts by number, the probes that did not end, and what the time did not
    suffice for."""
    place = {
        **document["environment"],
        "seconds": round(sum(each["seconds"] for each in document["probes"])),
    }
    words = ", ".join(map(": ".join, pairs(place)))
    lines = _wrap("Audit of ", f"{document['loader']} ({words})")
    lines.append(
        ", ".join(f"{number} {verdict}" for verdict, number in document["counts"].items() if number)
    )
    for probe in document["probes"]:
        # One that is late after no seconds was not begun: its entries are not reached.
        if probe["status"] not in ("ok", "skipped") and probe["seconds"]:
            lines += _wrap(f"  probe {probe['name']} {probe['status']}: ", probe["error"])
    words = not_reached(document)
    if words:
        lines += ["", *_wrap("NOT REACHED  ", words)]
    return lines


def _wrap(start: str, words: str, indent: int = 0) -> list[str]:
    """At most six lines of these words, each below the first, or `indent` columns in."""
    lines = textwrap.wrap(
        words,
        100,
        initial_indent=start,
        subsequent_indent=" " * (indent or len(start)),
        max_lines=6,
        placeholder=" ...",
    )
    return lines or [start]
