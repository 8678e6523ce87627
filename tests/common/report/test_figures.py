"""Figures: the same bytes every time, text that stays text, and names that cannot break the SVG."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from millrace.common.report import figures
from tests.common.report.pages import SVG, texts

ROOT = Path(__file__).parents[3]
NAMES = ["plain", "<b>&\"'", "日本国会", "$x$", "two\nlines\x07", "مصر"]


def draw(names: list[str] = NAMES, title: str = 'A <title> "quoted"') -> str:
    count = len(names)
    series = [("#0072B2", list(range(count))), ("#E69F00", [1] * count)]
    panels = [
        figures.Panel("Upper (s)", names, series, names),
        figures.Panel("Lower (%)", names, series[:1], names),
    ]
    legend = [(name, figures.PALETTE[0]) for name in names]
    return figures.bar_chart(title, "what & how", panels, legend, "Nothing.")


def test_every_name_is_in_the_svg_as_text() -> None:
    shown = texts(draw())
    for name in NAMES:
        # In the legend, and left of its bar and at its end in each panel.
        assert shown.count(figures.label(name)) == 5, name
    assert {'A <title> "quoted"', "what & how", "Upper (s)", "Lower (%)"} <= set(shown)
    root = ElementTree.fromstring(draw())
    assert root.find(f"{SVG}title").text == 'A <title> "quoted"'
    assert root.get("aria-label") == 'A <title> "quoted"' and root.get("role") == "img"


def drawn(
    monkeypatch: pytest.MonkeyPatch, panels: list[figures.Panel], legend: figures.Legend = ()
) -> Figure:
    """The figure that the SVG of a bar chart is made of."""
    monkeypatch.setattr(figures, "svg", lambda figure, *_: figure)
    figure: Any = figures.bar_chart("title", "subtitle", panels, legend, "Nothing.")
    return figure


def test_each_bar_is_whole_with_its_note_at_its_end_and_the_first_is_on_top(monkeypatch) -> None:
    series = [("#0072B2", [0.25, 0.5]), ("#E69F00", [0.5, 0.125])]
    none = figures.Panel("None", ["c"], [("#0072B2", [0.0])], ["0"])
    figure = drawn(monkeypatch, [figures.Panel("Hours", ["a", "b"], series, ["x", "y"]), none])
    upper, lower = figure.axes
    bars: list[Any] = list(upper.patches)
    places = [(bar.get_x(), bar.get_width()) for bar in bars]
    assert places == [(0.0, 0.25), (0.0, 0.5), (0.25, 0.5), (0.5, 0.125)]
    notes: list[Any] = list(upper.texts)
    assert [note.xy for note in notes] == [(0.75, 0), (0.625, 1)]
    first, second = upper.transData.transform([(0, 0), (0, 1)])
    assert first[1] > second[1]
    assert upper.get_xlim() == (0, 0.75) and lower.get_xlim() == (0, 1)
    assert any(tick % 1 for tick in upper.xaxis.get_majorticklocs())
    assert lower.xaxis.get_major_formatter()(1500.0) == "1,500"


def test_a_chart_without_bars_says_so_also_to_those_who_do_not_see_it() -> None:
    empty = figures.Panel("Hours", [], [], [])
    text = figures.bar_chart("title", "subtitle", [empty], (), "Nothing.")
    assert "Nothing." in texts(text) and "<desc>subtitle. Nothing.</desc>" in text


def test_names_notes_and_legend_have_room_and_panels_stand_below_each_other(monkeypatch) -> None:
    names, notes = ["a name that is long", "b"], ["of some length", "1"]
    panel = figures.Panel("Hours", names, [("#0072B2", [1.0, 1.0])], notes)
    legend = [(f"entry {number} of a legend", "#0072B2") for number in range(9)]
    figure = drawn(monkeypatch, [panel, panel], legend=legend)
    upper, lower = (axes.get_position() for axes in figure.axes)
    assert upper.x0 * figures.WIDTH > figures.text_width(names[0])
    assert (1 - upper.x1) * figures.WIDTH > figures.text_width(notes[0])
    assert 1 > upper.y1 > upper.y0 > lower.y1 > lower.y0 > 0

    entries, title = figure.texts[2:11], figure.texts[11]
    for entry in entries:
        left, _ = entry.get_position()
        assert left * figures.WIDTH + figures.text_width(entry.get_text()) < figures.WIDTH
    above = entries[-1].get_position()[1] - title.get_position()[1]
    assert entries[0].get_position()[1] > entries[-1].get_position()[1]
    assert above * figure.get_figheight() > 0.3


def test_style_leaves_settings_as_they_were_and_does_not_depend_on_them() -> None:
    expected = draw()
    assert "<metadata" not in expected and "<!DOCTYPE" not in expected
    others = {"font.size": 30, "axes.grid": True, "svg.fonttype": "path", "lines.linewidth": 9}
    with matplotlib.rc_context(others):
        before = dict(matplotlib.rcParams)
        assert draw() == expected
        assert dict(matplotlib.rcParams) == before


def test_no_matplotlib_until_something_is_drawn() -> None:
    code = "import sys; import millrace.common.report.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_inline_svgs_share_no_ids_and_keep_their_references() -> None:
    pages = [ElementTree.fromstring(figures.inline_svg(draw(), prefix)) for prefix in ("a", "b")]
    ids = [{e.get("id") for e in page.iter() if e.get("id")} for page in pages]
    assert ids[0] and not ids[0] & ids[1]
    for page, known in zip(pages, ids, strict=True):
        links = [e.get("{http://www.w3.org/1999/xlink}href") for e in page.iter(f"{SVG}use")]
        clips = [e.get("clip-path") for e in page.iter() if e.get("clip-path")]
        assert {link.removeprefix("#") for link in links} <= known
        assert {clip[len("url(#") : -1] for clip in clips} <= known
    assert f"var(--ink, {figures.INK})" in figures.inline_svg(draw(), "a")


@settings(max_examples=5, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=12))
def test_any_text_makes_valid_xml(names: list[str]) -> None:
    ElementTree.fromstring(draw(names, names[0]))


@given(st.text(max_size=200), st.floats(0.5, 4))
def test_shortened_texts_fit_and_keep_both_ends(text: str, width: float) -> None:
    short = figures.shorten(text, width)
    assert figures.text_width(short) <= width + 0.2
    if short != figures.label(text):
        head, tail = short.split("…", 1) if text.count("…") == 0 else ("", "")
        assert figures.label(text).startswith(head) and figures.label(text).endswith(tail)


def test_line_charts_show_lines_of_many_points_and_each_of_few(monkeypatch) -> None:
    many = [(step, step**0.5) for step in range(30)]
    few = [(2, 2.0)] * 29
    panels = [figures.Curves("Loss", [("#123456", "-", many), ("#123456", "-", [])])]
    panels.append(figures.Curves("Rate", [("#654321", "--", few)]))
    text = figures.line_chart("Learning", "by step", panels)
    names = {element.text for element in ElementTree.fromstring(text).iter() if element.text}
    assert {"Learning", "Loss", "Rate", "step"} <= names
    # A line is one path; a point is the use of a marker.
    assert text.count("stroke: #123456") == 1 and text.count("stroke-dasharray") == 1
    assert text.count('style="fill: #654321') == len(few)

    # Both begin at nothing, side by side.
    monkeypatch.setattr(figures, "svg", lambda figure, *_: figure)
    figure: Any = figures.line_chart("Learning", "by step", panels)
    assert [axes.axis()[::2] for axes in figure.axes] == [(0.0, 0.0), (0.0, 0.0)]
    rates = figure.axes[1]
    assert not any(tick % 1 for tick in rates.xaxis.get_majorticklocs())
    assert any(tick % 1 for tick in rates.yaxis.get_majorticklocs())
    left, right = (axes.get_position() for axes in figure.axes)
    assert 0 < left.x0 < left.x1 < right.x0 < right.x1 < 1


def test_a_mark_above_a_letter_has_no_width_and_a_wide_letter_twice_as_much() -> None:
    widths = [figures.text_width(text) * 72 / 9.5 for text in ("e\u0301", "日", "Ａ")]
    assert widths == pytest.approx([0.56, 1.0, 1.0])


def test_numbers_for_people() -> None:
    hours = {
        0: "0 h",
        5 / 3600: "5 s",
        0.0166667: "1.0 min",
        0.75: "45 min",
        1.99: "119 min",
        1.995: "2.0 h",
        9.96 / 60: "10 min",
    }
    hours |= {99.96: "100 h", 1234.4: "1,234 h", 61000: "61,000 h"}
    assert {value: figures.human_hours(value) for value in hours} == hours
    # Neither the rare nor the missing is hidden.
    shares = {(1, 1e5): "<0.1 %", (99999, 1e5): ">99.9 %", (0, 10): "0.0 %", (10, 10): "100.0 %"}
    shares |= {(5, 1e4): "0.1 %", (9994, 1e4): "99.9 %", (9995, 1e4): ">99.9 %"}
    shares |= {(sum([0.1] * 10), 1.0): "100.0 %", (0, 0): "–"}
    assert {pair: figures.human_share(*pair) for pair in shares} == shares
    sizes = {
        0: "0 B",
        999: "999 B",
        1000: "1.0 kB",
        99_960: "100 kB",
        123456: "123 kB",
        999_960: "1.0 MB",
        5 * 10**9: "5.0 GB",
    }
    sizes |= {10**16: "10000 TB"}
    assert {size: figures.human_bytes(size) for size in sizes} == sizes
