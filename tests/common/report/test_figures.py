"""Figures: the same bytes every time, text that stays text, and names that cannot break the SVG."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.common.report import figures

ROOT = Path(__file__).parents[3]
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["plain", "<b>&\"'", "日本国会", "$x$ $", "two\nlines\x07", "مصر"]


def draw(names: list[str] = NAMES) -> str:
    with figures.style():
        sheet = figures.Sheet.new(6, 3)
        sheet.heading("A <title>", "subtitle")
        sheet.legend(0.15, 0.6, [(name, figures.PALETTE[0]) for name in names])
        axes = sheet.axes(1, 1, 4, 1.5)
        figures.stacked_bars(
            axes, [("#0072B2", list(range(len(names)))), ("#E69F00", [1] * len(names))], names, names
        )
        figures.count_axis(axes.xaxis)
        return figures.svg(sheet.figure, 'A <title> "quoted"', "what & how")


def texts(svg: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_name_is_in_the_svg_as_text() -> None:
    found = texts(draw())
    for name in NAMES:
        # In the legend, left of its bar, and at the bar's end.
        assert found.count(figures.label(name)) >= 2, name
    root = ElementTree.fromstring(draw())
    assert root.find(f"{SVG}title").text == 'A <title> "quoted"'
    assert root.get("aria-label") == 'A <title> "quoted"' and root.get("role") == "img"


def test_same_bytes_in_another_process_and_no_trace_of_it() -> None:
    code = (
        "import hashlib, sys; from tests.common.report.test_figures import draw; "
        "sys.stdout.write(hashlib.sha256(draw().encode()).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout == hashlib.sha256(draw().encode()).hexdigest(), done.stderr
    assert done.stderr == ""
    assert "<metadata" not in draw() and "<!DOCTYPE" not in draw()


def test_style_leaves_settings_as_they_were_and_does_not_depend_on_them() -> None:
    expected = draw()
    with matplotlib.rc_context(
        {"font.size": 30, "axes.grid": True, "svg.fonttype": "path", "lines.linewidth": 9}
    ):
        before = dict(matplotlib.rcParams)
        assert draw() == expected
        assert dict(matplotlib.rcParams) == before


def test_no_matplotlib_until_something_is_drawn() -> None:
    code = "import sys; import millrace.common.report.figures, millrace.common.report.page; sys.exit('matplotlib' in sys.modules)"
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


def test_save_svg_is_a_whole_xml_file(tmp_path: Path) -> None:
    figures.save_svg(tmp_path / "deep" / "a.svg", draw())
    assert ElementTree.parse(tmp_path / "deep" / "a.svg").getroot().tag == f"{SVG}svg"
    assert os.listdir(tmp_path / "deep") == ["a.svg"]


@given(st.text(max_size=60))
def test_any_text_makes_valid_xml(text: str) -> None:
    ElementTree.fromstring(
        f'<svg aria-label="{figures._escape(text)}">{figures._escape(figures.label(text))}</svg>'
    )


@given(st.text(max_size=200), st.floats(0.5, 4))
def test_shortened_texts_fit_and_keep_both_ends(text: str, width: float) -> None:
    short = figures.shorten(text, width)
    assert figures.text_width(short) <= width + 0.2
    if short != figures.label(text):
        head, tail = short.split("…", 1) if text.count("…") == 0 else ("", "")
        assert figures.label(text).startswith(head) and figures.label(text).endswith(tail)


@pytest.mark.parametrize(
    ("hours", "text"),
    [
        (0, "0 h"),
        (5 / 3600, "5 s"),
        (0.0166667, "1.0 min"),
        (0.75, "45 min"),
        (1.99, "119 min"),
        (2, "2.0 h"),
        (99.96, "100 h"),
        (1234.4, "1,234 h"),
        (61000, "61,000 h"),
    ],
)
def test_human_hours(hours: float, text: str) -> None:
    assert figures.human_hours(hours) == text


def test_shares_do_not_hide_the_rare_and_the_missing() -> None:
    assert figures.human_share(1, 100000) == "<0.1 %"
    assert figures.human_share(99999, 100000) == ">99.9 %"
    assert figures.human_share(0, 10) == "0.0 %"
    assert figures.human_share(10, 10) == "100.0 %"
    assert figures.human_share(sum([0.1] * 10), 1.0) == "100.0 %"
    assert figures.human_share(0, 0) == "–"


def test_human_bytes() -> None:
    sizes = (0, 999, 1000, 123456, 999_960, 5 * 10**9, 10**16)
    assert [figures.human_bytes(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 kB",
        "1.0 MB",
        "5.0 GB",
        "10000 TB",
    ]


@given(st.floats(1e-6, 1e9), st.integers(1, 60))
def test_nice_step_covers_the_span_in_few_round_steps(span: float, most: int) -> None:
    step = figures.nice_step(span, most)
    assert span / step <= most * (1 + 1e-6)
    # No round step that is 2.6 times finer would do.
    assert span / (step / 2.6) > most * (1 - 1e-6)
