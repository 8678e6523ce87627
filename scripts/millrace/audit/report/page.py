"""The report as one HTML page that needs nothing else, in light and dark, by the standard library
alone."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from string import Template
from typing import Any

from millrace.audit.report.document import not_reached, pairs, remarks, select, shown

STYLE = """
article { border-left: .3rem solid #d14; padding-left: 1rem; margin: 1rem 0 1.75rem; }
article h3, article dd { margin: 0; }
h1, p, article { overflow-wrap: anywhere; }
article dl { display: grid; gap: .2rem 1rem; }
article dl { grid-template-columns: fit-content(30%) minmax(0, 1fr); }
article dt { color: var(--muted); } td:first-child { min-width: 4.5rem; }
pre { overflow-x: auto; background: var(--tile); padding: .6rem .85rem; }
"""
PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" /><meta name="viewport" content="width=device-width" />
<title>$title</title><style>$style</style></head>
<body><header><h1>$title</h1><p class="muted">$environment</p><p><code>$command</code></p>
<dl class="tiles">$tiles</dl></header><main>$sections</main></body></html>
""")


def page(document: dict) -> str:
    """The page of a report."""
    words = not_reached(document)
    sections = {"Not reached": f"<p>{_html(words)}</p>" if words else ""}
    sections["Fails"] = "".join(map(_fail, select(document, "fail")))
    for title, rows in remarks(document).items():
        sections[title] = _table(rows)
    for title in ("Pass", "Not applicable"):
        rows = []
        for entry in select(document, title.lower()):
            cause = entry["findings"][0]["cause"]
            rows.append((entry["name"], entry["title"], cause))
        sections[title] = _table(rows)
    sections["Probes"] = _table([tuple(probe.values()) for probe in document["probes"]])

    css = resources.files("millrace.common.report").joinpath("page.css").read_text(encoding="utf-8")
    tiles = [
        f"<div><dt>{name}</dt><dd>{count}</dd></div>" for name, count in document["counts"].items()
    ]
    bodies = [
        f"<section><h2>{title}</h2>{body}</section>" for title, body in sections.items() if body
    ]
    return PAGE.substitute(
        style=css + STYLE,
        title=_html(f"Audit of {document['loader']}"),
        environment=_html(shown(document["environment"])[1:-1]),
        command=_html(document["command"]),
        tiles="".join(tiles),
        sections="".join(bodies),
    )


def _fail(entry: dict) -> str:
    """Cause, evidence and fix of each fail of an entry; the evidence lies whole in details."""
    body = f"<h3>{entry['name']}: {_html(entry['title'])}</h3>"
    for row in (row for row in entry["findings"] if row["verdict"] == "fail"):
        lines = {
            "Cause": row["cause"],
            **dict(pairs(row["evidence"])),
            "Fix": row["fix"],
        }
        cells = (
            f"<dt>{_html(name)}</dt><dd>{_html(value, 300)}</dd>" for name, value in lines.items()
        )
        whole = escape(json.dumps(row["evidence"], indent=1, default=str))
        body += f"<dl>{''.join(cells)}</dl>"
        body += f"<details><summary>As measured</summary><pre>{whole}</pre></details>"
    return f'<article>{body}<a href="{entry["link"]}">{entry["link"]}</a></article>'


def _html(value: Any, longest: int = 10_000) -> str:
    text = shown(value)
    return escape(text if len(text) <= longest else text[:longest] + " …")


def _table(rows: list[tuple]) -> str:
    lines = ("".join(f'<td class="long">{_html(cell)}</td>' for cell in row) for row in rows)
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
    return f'<div class="wide">{table}</div>' if rows else ""
