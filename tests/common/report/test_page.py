"""The page: tables a reader and a machine can take numbers from, and text that cannot become
markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.common.report.page import Cell, Code, Number, Table, render
from tests.common.report.pages import Page

HOSTILE = '<script>alert("1")</script>&amp;{{ 7 * 7 }}{% x %}\x00\u2028'
TEMPLATE = """
{%- extends "page.html.j2" %}
{% import "parts.html.j2" as parts %}
{% set contents = [("a", title)] %}
{% block lead %}{{ title }}{% endblock %}
{% block main %}
{% call parts.section("a", title) %}{{ parts.table(table) }}{% endcall %}
{% endblock %}
"""


def show(folder: Path, table: Table, title: str = "t") -> Page:
    (folder / "test.html.j2").write_text(TEMPLATE)
    tiles = [(title, Number(1, title))]
    shown = Page(render(folder / "test.html.j2", title=title, tiles=tiles, table=table))
    shown.check()
    return shown


def test_hostile_text_stays_text_everywhere(tmp_path: Path) -> None:
    table = Table(
        HOSTILE, [HOSTILE, "n"], [[HOSTILE, Number(1, HOSTILE)], [Code(HOSTILE), Number(2, "2")]]
    )
    shown = show(tmp_path, table, HOSTILE)
    text = HOSTILE.replace("\x00", "\ufffd").replace("\u2028", "\ufffd")
    # title and h1, lead, tile (name, number), link, h2, caption, column, two row headings, number
    assert shown.text.count(text) == 12
    labels = {
        attributes["aria-label"] for _, attributes in shown.tags if "aria-label" in attributes
    }
    assert labels == {text, "Contents"}


def test_columns_with_numbers_are_set_right_and_first_cells_are_headings(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [["a", Number(1.5, "1.50"), "x"], ["b", "", "y" * 33]]
    shown = show(tmp_path, Table("c", ["name", "count", "where"], rows, ["All", "", ""]))
    assert [attributes.get("class") for tag, attributes in shown.tags if tag == "td"] == [
        "n",
        None,
    ] * 3
    assert [attributes["scope"] for tag, attributes in shown.tags if tag == "th"] == ["col"] * 3 + [
        "row"
    ] * 3
    assert shown.by_name("c", values=True) == {
        "a": [1.5, "x"],
        "b": ["", "y" * 33],
        "All": ["", ""],
    }
    assert [attributes for tag, attributes in shown.tags if tag == "span"] == [{"class": "long"}]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    for rows, total in (([["only one"]], []), ([], ["only one"])):
        with pytest.raises(ValueError, match="1 cells for 2 columns"):
            Table("c", ["a", "b"], rows, total)
