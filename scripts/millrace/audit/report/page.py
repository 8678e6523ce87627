"""The report as one HTML page that needs nothing else, in light and dark, by the standard library
alone."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import resources
from string import Template
from typing import Any

from millrace.audit.report.document import select, shown, told

STYLE = """
h1, p, td { overflow-wrap: anywhere; } td:first-child { min-width: 4.5rem; }
"""
PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" /><meta name="viewport" content="width=device-width" />
<title>$title</title><style>$style</style></head>
<body><header><h1>$title</h1><p class="muted">$environment</p><p><code>$command</code></p></header>
<main>$sections</main></body></html>
""")


def page(document: dict) -> str:
    """The page of a report: its findings by verdict, the worst first, and how the probes ended."""
    sections = {}
    for verdict, count in document["counts"].items():
        rows = [row for entry in select(document, verdict) for row in _rows(entry)]
        sections[f"{count} {verdict}"] = _table(rows)
    sections["Probes"] = _table(map(_html, probe.values()) for probe in document["probes"])
    css = resources.files("millrace.common.report").joinpath("page.css").read_text(encoding="utf-8")
    bodies = [
        f"<section><h2>{title}</h2>{body}</section>" for title, body in sections.items() if body
    ]
    return PAGE.substitute(
        style=css + STYLE,
        title=_html(f"Audit of {document['loader']}"),
        environment=_html(shown(document["environment"])[1:-1]),
        command=_html(document["command"]),
        sections="".join(bodies),
    )


def _rows(entry: dict) -> Iterable[list[str]]:
    """Entry, cause, evidence, and what to do of each finding that is told."""
    name = f'<a href="{entry["link"]}">{entry["name"]}</a> {_html(entry["title"])}'
    for row in told(entry):
        evidence = [_html(": ".join(pair)) for pair in row.evidence]
        yield [name, _html(row.cause), "<br />".join(evidence), _html(row.remedy)]


def _html(value: Any) -> str:
    return escape(shown(value))


def _table(rows: Iterable[Iterable[str]]) -> str:
    lines = []
    for row in rows:
        cells = "".join(f'<td class="long">{cell}</td>' for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>' if lines else ""
