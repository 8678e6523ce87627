"""The page: tables a reader and a machine can take numbers from, and text that cannot become markup."""

from __future__ import annotations

import pytest

from millrace.common.report.page import Cell, Code, Number, Paragraph, Section, Table, page
from tests.common.report.pages import Page

HOSTILE = '<script>alert("1")</script>&amp;{{ 7 * 7 }}{% x %}\x00\u2028'


def show(*parts: Table | Paragraph, title: str = "t") -> Page:
    shown = Page(page(title, title, [(title, Number(1, title))], [Section("a", title, parts)]))
    shown.check()
    return shown


def test_hostile_text_stays_text_everywhere() -> None:
    table = Table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, Number(1, HOSTILE)], [Code(HOSTILE), Number(2, "2")]])
    shown = show(table, Paragraph(HOSTILE), title=HOSTILE)
    text = HOSTILE.replace("\x00", "\ufffd").replace("\u2028", "\ufffd")
    # title and h1, lead, tile (name, number), link, h2, caption, column, two row headings, number, paragraph
    assert shown.text.count(text) == 13
    assert {attrs["aria-label"] for _, attrs in shown.tags if "aria-label" in attrs} == {text, "Contents"}


def test_columns_with_numbers_are_set_right_and_first_cells_are_headings() -> None:
    rows: list[list[Cell]] = [["a", Number(1.5, "1.50"), "x"], ["b", "", "y" * 33]]
    shown = show(Table("c", ["name", "count", "where"], rows, ["All", "", ""]))
    assert [attrs.get("class") for tag, attrs in shown.tags if tag == "td"] == ["n", None] * 3
    assert [attrs["scope"] for tag, attrs in shown.tags if tag == "th"] == ["col"] * 3 + ["row"] * 3
    assert shown.by_name("c", values=True) == {"a": [1.5, "x"], "b": ["", "y" * 33], "All": ["", ""]}
    assert [attrs for tag, attrs in shown.tags if tag == "span"] == [{"class": "long"}]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table("c", ["a", "b"], [["only one"]])
