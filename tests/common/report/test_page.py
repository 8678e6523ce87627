"""The page: tables a reader and a machine can take numbers from, and text that cannot become markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from millrace.common.report.page import Code, Number, Section, Table, page, paragraph

HOSTILE = '<script>alert("1")</script>&amp;\x00\u2028'


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_text_stays_text_everywhere() -> None:
    table = Table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, Number(1, HOSTILE)], [Code(HOSTILE), Number(2, "2")]])
    parts = [table.html(), paragraph(HOSTILE)]
    found = Tags(page(HOSTILE, HOSTILE, [(HOSTILE, Number(1, HOSTILE))], [Section("a", HOSTILE, parts)]))
    assert "script" not in {tag for tag, _ in found.tags}
    shown = '<script>alert("1")</script>&amp;\ufffd\ufffd'
    # title and h1, lead, tile (name, number), link, h2, caption, column, two row headings, number, paragraph
    assert "".join(found.text).count(shown) == 13
    assert {attrs["aria-label"] for _, attrs in found.tags if "aria-label" in attrs} == {shown, "Contents"}


def test_columns_with_numbers_are_set_right_and_first_cells_are_headings() -> None:
    html = Table(
        "c", ["name", "count", "where"], [["a", Number(1.5, "1.5"), "x"], ["b", "", "y"]], ["All", "", ""]
    ).html()
    tags = Tags(html).tags
    assert [attrs.get("class") for tag, attrs in tags if tag == "td"] == ["n", None] * 3
    assert [attrs["scope"] for tag, attrs in tags if tag == "th"] == ["col"] * 3 + ["row"] * 3
    assert [attrs["value"] for tag, attrs in tags if tag == "data"] == ["1.5"]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        Table("c", ["a", "b"], [["only one"]]).html()
