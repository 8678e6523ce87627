"""Pages and figures of a report, taken apart for tests."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


class Page:
    """The text of a page and its tables by caption: rows of `texts`, and the same with the exact
    `values` of numbers. `outline` holds captions and figures by heading, `tiles` the key figures by
    name."""

    def __init__(self, html: str) -> None:
        self.root = ElementTree.fromstring(html)
        self.tags = [
            (element.tag.rpartition("}")[2], element.attrib) for element in self.root.iter()
        ]
        self.text = _text(self.root)
        self.texts: dict[str, list[list[str]]] = {}
        self.values: dict[str, list[list]] = {}
        self.outline: dict[str, list[str]] = {}
        terms = (
            list(each)
            for each in self.root.iter("div")
            if [child.tag for child in each] == ["dt", "dd"]
        )
        self.tiles = {_text(name): _value(value) for name, value in terms}
        for section in self.root.iter("section"):
            parts = self.outline[_text(section.find("h2"))] = []
            for element in section.iter():
                if element.tag == "figure":
                    parts.append("figure")
                elif element.tag == "table":
                    caption, rows = (
                        _text(element.find("caption")),
                        [list(row) for row in element.iter("tr")],
                    )
                    assert caption not in self.texts
                    parts.append(caption)
                    self.texts[caption] = [[_text(cell) for cell in row] for row in rows]
                    self.values[caption] = [[_value(cell) for cell in row] for row in rows]

    def by_name(self, caption: str, values: bool = False) -> dict[str, list]:
        """The rows of a table by their first cell."""
        return {row[0]: row[1:] for row in (self.values if values else self.texts)[caption][1:]}

    def check(self) -> None:
        """The page needs nothing but itself, its ids are unique, and nothing in it is a script."""
        ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        for tag, attributes in self.tags:
            assert tag not in ("script", "img", "iframe", "link", "image", "foreignObject")
            for name, value in attributes.items():
                assert not name.startswith("on")
                if name.rpartition("}")[2] in ("src", "href", "data"):
                    assert value.startswith("#") and value[1:] in ids
        assert "@import" not in self.text and not re.search(r"url\((?!#)", self.text)


def _text(element: ElementTree.Element) -> str:
    return "".join(element.itertext()).replace("\u00a0", " ").replace("\u2060", "")


def _value(cell: ElementTree.Element) -> str | float:
    number = cell.find("data")
    return _text(cell) if number is None else float(number.get("value"))


def texts(svg: str | Path) -> list[str]:
    """The texts of a figure, given as a file or as SVG."""
    root = (
        ElementTree.parse(svg).getroot() if isinstance(svg, Path) else ElementTree.fromstring(svg)
    )
    return [element.text or "" for element in root.iter(f"{SVG}text")]
