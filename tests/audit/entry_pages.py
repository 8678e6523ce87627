"""docs/audit out of the catalogue: `python -m tests.audit.entry_pages` writes the heads of its
pages and the table of the index, and leaves what is written by hand; a test compares them."""

from __future__ import annotations

import re
import textwrap

from millrace.audit.checks.entries import ENTRIES, FAMILIES, Entry
from tests.workflow.workflow import ROOT

FOLDER = ROOT / "docs/audit"
BY_HAND = {"known", "packages", "field", "bench", "ci"}
END = "<!-- From here on by hand; above by `make docs` out of checks/entries.py. -->\n"


def markdown(text: str) -> str:
    """Without bold where `__` is meant."""
    return re.sub(r"(`[^`]*`)|__", lambda match: match[1] or r"\_\_", text)


def head(entry: Entry) -> str:
    lines = [
        f"# {entry.name}: {markdown(entry.title)}",
        "",
        f"{FAMILIES[entry.family]}; {entry.status}.",
        "",
    ]
    for name in ("symptom", "cause", "fix", "versions"):
        said = f"- **{name.capitalize()}**: {markdown(getattr(entry, name))}"
        lines += textwrap.wrap(
            said, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    links = ", ".join(f"<{url}>" for url in entry.urls)
    return "\n".join([*lines, f"- **Link**: {links}", "", END])


def renewed(name: str, text: str) -> str:
    """A page with its generated part made anew; those BY_HAND have none."""
    if name in BY_HAND:
        return text
    if name != "index":
        return (
            head(next(e for e in ENTRIES.values() if e.name.lower() == name))
            + text.partition(END)[2]
        )
    rows = [
        f"| [{e.name}]({e.name.lower()}.md) | {markdown(e.title)} | {e.family} |"
        for e in ENTRIES.values()
    ]
    table = "\n".join(["| Entry | What it is | Family |", "| --- | --- | --- |", *rows])
    return re.sub(r"(## Entries\n\n).*?(?=\n\n)", lambda match: match[1] + table, text, flags=re.S)


if __name__ == "__main__":
    for name in ("index", *(entry.lower() for entry in ENTRIES)):
        path = FOLDER / f"{name}.md"
        path.touch()
        path.write_text(renewed(name, path.read_text()))
