"""Pages and figures of a report, taken apart for tests."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
_VOID = ("meta", "path", "use", "rect")


class Page(HTMLParser):
    """The tags of a page, its text, and its tables: rows of `texts` by caption, and the same with the exact
    values of numbers."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, list[list[str]]] = {}
        self.values: dict[str, list[list]] = {}
        self.outline: dict[str, list] = {}
        self.text, self.caption, self.heading = "", "", ""
        self.inside: list[str] = []
        self.feed(html)
        assert not self.inside

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in _VOID:
            return
        self.inside.append(tag)
        if tag in ("caption", "h2"):
            self.caption = ""
        elif tag == "tr":
            self.texts[self.caption].append([])
            self.values[self.caption].append([])
        elif tag in ("td", "th"):
            self.texts[self.caption][-1].append("")
            self.values[self.caption][-1].append("")
        elif tag == "data" and "table" in self.inside:
            self.values[self.caption][-1][-1] = float(dict(attrs)["value"])

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        text = data.replace("\u00a0", " ").replace("\u2060", "")
        self.text += text
        if {"caption", "h2"} & set(self.inside):
            self.caption += text
        elif {"td", "th"} & set(self.inside):
            self.texts[self.caption][-1][-1] += text
            if isinstance(self.values[self.caption][-1][-1], str):
                self.values[self.caption][-1][-1] += text

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.inside.pop() == tag
        if tag == "h2":
            self.heading = self.caption
            self.outline[self.heading] = []
        elif tag == "caption":
            assert self.caption not in self.texts
            self.texts[self.caption], self.values[self.caption] = [], []
            self.outline[self.heading].append(self.caption)
        elif tag == "figure":
            self.outline[self.heading].append("figure")

    def by_name(self, caption: str, values: bool = False) -> dict[str, list]:
        """The rows of a table by their first cell."""
        return {row[0]: row[1:] for row in (self.values if values else self.texts)[caption][1:]}

    def check(self) -> None:
        """The page needs nothing but itself, its ids are unique, and nothing in it is a script."""
        ids = [attrs["id"] for _, attrs in self.tags if "id" in attrs]
        links = [
            attrs.get(name, "#") for _, attrs in self.tags for name in ("src", "href", "xlink:href", "data")
        ]
        assert len(ids) == len(set(ids))
        assert {link.removeprefix("#") for link in links} <= {"", *ids}
        assert not {tag for tag, _ in self.tags} & {
            "script",
            "img",
            "iframe",
            "link",
            "image",
            "foreignobject",
        }
        assert not any(name.startswith("on") for _, attrs in self.tags for name in attrs)
        assert "@import" not in self.text and not re.search(r"url\((?!#)", self.text)


def texts(svg: str | Path) -> list[str]:
    """The texts of a figure, given as a file or as SVG."""
    root = ElementTree.parse(svg).getroot() if isinstance(svg, Path) else ElementTree.fromstring(svg)
    return [element.text or "" for element in root.iter(f"{SVG}text")]
