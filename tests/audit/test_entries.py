"""The catalogue, what is printed of it, and its pages in docs/audit."""

from __future__ import annotations

import re
import subprocess
import sys

from millrace.audit.check_loader import make_parser
from millrace.audit.checks.entries import ENTRIES, FAMILIES
from tests.audit.entry_pages import BY_HAND, FOLDER, renewed
from tests.workflow.workflow import ROOT

NAMES = [
    *(f"DP{number}" for number in range(1, 16)),
    "resume",
    "labels",
    "splits",
    "stale",
    "edges",
    "end",
]


def test_the_catalogue_has_every_entry_once():
    assert list(ENTRIES) == NAMES
    for entry in ENTRIES.values():
        assert entry.status in ("live", "version-dependent") and all(vars(entry).values())
        assert entry.urls and all(re.fullmatch(r"https://[\w.-]+/\S+", url) for url in entry.urls)
        assert entry.family in FAMILIES


def test_catalogue_and_report_need_the_standard_library_alone():
    modules = "import millrace.audit.report.page, millrace.audit.report.terminal"
    subprocess.run(
        [sys.executable, "-S", "-c", modules], env={"PYTHONPATH": f"{ROOT}/scripts"}, check=True
    )


def test_the_pages_agree_with_the_catalogue_and_the_command_and_their_links_lead_somewhere():
    pages = {path.stem: path.read_text() for path in FOLDER.glob("*.md")}
    assert set(pages) == {"index", *BY_HAND, *(name.lower() for name in NAMES)}
    assert f"[{len(NAMES)} bugs](docs/audit/index.md)" in (ROOT / "README.md").read_text()
    for name, text in pages.items():
        assert text == renewed(name, text), f"{name}: make docs"
        assert set(re.findall(r"\]\((\w+)\.md\)", text)) <= set(pages)
    options = set(re.findall(r"--[a-z][a-z-]+", make_parser().format_help())) - {"--help"}
    assert options and not {option for option in options if f"`{option}" not in pages["index"]}
