"""The report as one HTML page that needs nothing else: what the terminal shows."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

from millrace.audit.report.terminal import text

PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" /><meta name="viewport" content="width=device-width" />
<title>$title</title><style>$style pre { overflow-x: auto; }</style></head>
<body><header><h1>$title</h1><p><code>$command</code></p></header>
<main><pre>$text</pre></main></body></html>
""")


def page(document: dict) -> str:
    """The page of a report."""
    style = resources.files("millrace.common.report").joinpath("page.css")
    return PAGE.substitute(
        style=style.read_text(encoding="utf-8"),
        title=escape(f"Audit of {document['loader']}"),
        command=escape(document["command"]),
        text=escape(text(document)),
    )
