"""The corpus report: every number equals its input, every name is shown, nothing can break the
page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from docutils.core import publish_parts

from millrace.common import atomic
from millrace.common.ledger import Ledger
from millrace.common.report import figures
from millrace.common.workflow.config import validate_config
from millrace.speech import report_corpus
from millrace.speech.columns import INDEX_SCHEMA
from millrace.speech.country.reasons import MEANINGS
from millrace.speech.names import safe_name
from tests.common.report.pages import SVG, Page, texts
from tests.files import contents

ROOT = Path(__file__).parents[2]
FIGURES = ("hours", "distributions")
ODD = [
    "<script>alert(1)</script>",
    'a&b "q"',
    "日本国会",
    "$x$",
    "../up.dir/x",
    "two\nlines",
    "É",
    "مصر",
]
ODD.append("All")  # as the total is called
COUNTRIES = "Hours and segments per country"
SPLITS = [("train", 1), ("train", 2), ("validation", None), ("test", None)]


def _segment(country: str, number: int, rng: np.random.Generator) -> dict:
    """A row of the manifest."""
    video, start, length = number // 10, (number % 10) * 21.0, float(rng.uniform(3, 20))
    split, subset = SPLITS[video % 4]
    cer = float(rng.choice([rng.uniform(0, 0.3), rng.uniform(0.31, 2.5)], p=[0.9, 0.1]))
    return {
        "key": f"{country}_v{video}_{number}",
        "country": country,
        "language": "xx",
        "video_id": f"v{video}",
        "source_audio_path": f"/a/v{video}.mp3",
        "start_seconds": start,
        "end_seconds": start + length,
        "duration_seconds": round(length, 6),
        "asr_transcript": '=SUM(A1), "q"\r\n\u202eNA',
        "human_transcript": ["NA", "null", "a\nb", ""][number % 4],
        "cer": cer,
        "wer": cer * 1.5,
        "split": split,
        "subset_id": subset,
    }


def _in_shard(number: int, row: dict) -> dict:
    """A row of the index."""
    samples = round(row["duration_seconds"] * 16000)
    split, subset = row["split"], row["subset_id"]
    folder = f"{safe_name(row['country'])}/{split}"
    return {name: row.get(name) for name in INDEX_SCHEMA.names} | {
        "shard": f"{folder}/{split}-{subset}-{number // 80:05d}.tar",
        "member": "m.flac",
        "size": 1000 + number,
        "offset": 512,
        "sha256": "0",
        "samples": samples,
        "sample_rate": 16000,
        "duration_seconds": samples / 16000,
    }


class Corpus:
    """A corpus as the steps before the report leave it, written with their own writers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index, self.countries = folder, [], []
        self.rows: dict[str, list[dict]] = {}

    def add(
        self,
        country: str,
        segments: int,
        seed: int = 0,
        *counts: dict | None,
    ) -> None:
        """`counts` are rejected segments and files, repaired segments, and warnings, by reason."""
        lost, bad, repaired, warnings = map(Counter, (*counts, *[None] * (4 - len(counts))))
        rng = np.random.default_rng(seed)
        rows = [_segment(country, number, rng) for number in range(segments)]
        placed = [_in_shard(n, row) for n, row in enumerate(rows) if row["cer"] <= 0.3]
        if len(rows) > len(placed):
            lost["cer_over_limit"] += len(rows) - len(placed)
        self.rows[country] = rows
        self.index += placed

        recordings = len(rows[::10])
        found = len(placed) + lost.total()
        ledger = Ledger("s", country, "segment", found, len(placed), lost, repaired, warnings)
        files = Ledger("s", country, "file", recordings + bad.total(), recordings, bad)
        self.countries.append(
            {
                "country": country,
                "language": "xx",
                "recordings": recordings,
                "notes": [],
                "segments": ledger.as_dict(),
                "files": files.as_dict(),
            }
        )

    def arguments(self) -> list[str]:
        table = pa.Table.from_pylist(self.index, schema=INDEX_SCHEMA)
        pq.write_table(table, self.folder / "index.parquet", row_group_size=37)
        atomic.write_json(self.folder / "ledger.json", {"total": {}, "countries": self.countries})
        inputs = {"index": "index.parquet", "ledger": "ledger.json"}
        outputs = {"summary": "out/summary.html", **{name: f"out/{name}.svg" for name in FIGURES}}
        named = {**inputs, **outputs}.items()
        return [text for name, path in named for text in (f"--{name}", str(self.folder / path))]

    def report(self) -> Page:
        assert report_corpus.main(self.arguments()) == 0
        shown = Page((self.folder / "out" / "summary.html").read_text())
        shown.check()
        return shown

    def texts(self, name: str) -> list[str]:
        return texts(self.folder / "out" / f"{name}.svg")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    corpus = Corpus(tmp_path)
    rejected, bad = {"too_short": 7, "time_reversed": 1}, {"json_damaged": 2, "no_segments": 1}
    corpus.add("italy", 130, 1, rejected, bad, {"cer_computed": 4}, {"no_encoder_delay": 2})
    corpus.add("France", 55, 2, {"too_short": 30}, None, {"end_clipped": 1})
    corpus.add("empty land", 0, 3, None, {"json_empty": 1})
    return corpus


def close(*values: float) -> list:
    return [pytest.approx(value, abs=2e-6) for value in values]


def test_the_page_has_its_sections_tables_and_figures(corpus):
    assert corpus.report().outline == {
        "Countries": [COUNTRIES, "figure"],
        "Duration and error rates": ["figure"],
        "Rejects": ["Segments rejected", "Alignment files rejected"],
        "Repairs and warnings": ["Segments repaired", "Segments with a warning"],
    }
    assert {"italy", "France", "empty land", "0 h"} <= set(corpus.texts("hours"))
    shown = " ".join(corpus.texts("distributions"))
    assert f"{len(corpus.index)}; the last bar holds" in shown
    for column, scale, unit in (("duration_seconds", 1, "s"), ("cer", 100, "%"), ("wer", 100, "%")):
        values = [row[column] * scale for row in corpus.index]
        assert f"median {np.median(values):.1f} {unit}, mean {np.mean(values):.1f} {unit}" in shown


def test_the_numbers_of_countries_equal_the_inputs(corpus):
    page = corpus.report()
    countries = page.by_name(COUNTRIES, values=True)
    index = pd.DataFrame(corpus.index)
    index["hours"] = index["duration_seconds"] / 3600
    hours = index.pivot_table("hours", "country", "split", aggfunc="sum")
    assert list(countries) == ["empty land", "France", "italy", "All"]
    for entry in corpus.countries:
        segments = entry["segments"]
        counts = [segments["rows_in"], segments["rows_rejected"], segments["rows_out"]]
        amounts = [0.0] * 4
        if segments["rows_out"]:
            of_country = hours.loc[entry["country"]]
            splits = [of_country[split] for split in ("train", "validation", "test")]
            amounts = [*splits, of_country.sum()]
        expected = close(entry["recordings"], *counts, *amounts)
        assert countries[entry["country"]] == ["xx", *expected]
    for place in range(1, 9):
        whole = sum(countries[name][place] for name in corpus.rows)
        assert countries["All"][place] == pytest.approx(whole, abs=5e-6)
    assert page.tiles == {
        "In shards": pytest.approx(index["hours"].sum(), abs=2e-6),
        "Segments": len(index),
        "Rejected": countries["All"][3],
        "Countries": 3,
    }


def test_rejects_repairs_warnings_and_files_equal_the_inputs(corpus):
    page = corpus.report()
    for caption, unit, column in (
        ("Segments rejected", "segments", "rejected"),
        ("Alignment files rejected", "files", "rejected"),
        ("Segments repaired", "segments", "repaired"),
        ("Segments with a warning", "segments", "warnings"),
    ):
        table, expected = page.by_name(caption, values=True), Counter()
        for country in corpus.countries:
            expected.update(country[unit][column])
        # The most frequent first.
        ordered = sorted(expected.items(), key=lambda item: (-item[1], item[0]))
        ordered.append(("All", expected.total()))
        assert [(reason, row[1]) for reason, row in table.items()] == ordered


def test_same_bytes_from_two_processes(corpus):
    corpus.report()
    here = contents(corpus.folder / "out")
    assert set(here) == {"summary.html", "hours.svg", "distributions.svg"}
    env = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "OMP_NUM_THREADS": "1",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    command = [sys.executable, "-m", "millrace.speech.report_corpus", *corpus.arguments()]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert contents(corpus.folder / "out") == here


def test_recordings_that_repeat_another_split_are_counted_and_the_first_listed(corpus):
    pair = {"split": "test", "of_recording": "a", "of_split": "train", "segments": 2, "offset": 0}
    for country in corpus.countries:
        country["left_out_copies"] = [pair | {"recording": country["country"]}] * 75
    page = corpus.report()
    rows = page.texts["Recordings that repeat another split (225)"][1:]
    places = [row[0].partition(" (test) repeats 2 segments of a (train)")[0] for row in rows]
    assert places == ["empty land"] * 75 + ["France"] * 75 + ["italy"] * 50


def test_odd_names_and_reasons_are_shown_and_stay_text(tmp_path):
    corpus = Corpus(tmp_path)
    for number, name in enumerate(ODD):
        reasons = {f"<img src=x onerror=alert({number})>": 1, "a\x00b\x1b[31m": 2, "x" * 300: 3}
        corpus.add(name, 12, number, *[reasons] * 4)
    page = corpus.report()
    assert not {"b", "img"} & {tag for tag, _ in page.tags}
    rows = [row[0] for row in page.texts[COUNTRIES][1:]]
    assert sorted(rows) == sorted([*map(figures.label, ODD), "All"])
    assert page.values[COUNTRIES][-1][2] == 2 * len(ODD)
    for number in range(len(ODD)):
        assert f"<img src=x onerror=alert({number})>" in page.by_name("Segments rejected")
    assert "x" * 300 in page.by_name("Alignment files rejected")
    assert {figures.shorten(name, 2.6) for name in ODD} <= set(corpus.texts("hours"))
    for name in FIGURES:
        root = ElementTree.parse(tmp_path / "out" / f"{name}.svg").getroot()
        tags = {element.tag.removeprefix(SVG) for element in root.iter()} - {"svg", "title", "desc"}
        assert tags <= {"defs", "style", "g", "path", "use", "text", "clipPath", "rect"}


@pytest.mark.parametrize("countries, segments", [(1, 1), (0, 0), (1, 0), (3, 0)])
def test_without_rejects_or_segments_there_is_a_page(tmp_path, countries, segments):
    corpus = Corpus(tmp_path)
    for number in range(countries):
        corpus.add(f"c{number}", segments)
    page = corpus.report()
    assert "Segments rejected" not in page.texts
    assert page.outline["Rejects"] == [] and "Nothing was rejected." in page.text
    assert list(page.by_name(COUNTRIES)) == [*(f"c{number}" for number in range(countries)), "All"]
    assert page.by_name(COUNTRIES, values=True)["All"][2:5] == [segments, 0, segments]
    if not segments:
        assert page.by_name(COUNTRIES, values=True)["All"][5:] == [0.0] * 4
        assert "no values" in corpus.texts("distributions")


def test_every_reason_in_the_lane_has_a_meaning():
    reasons = set()
    for path in (ROOT / "scripts/millrace/speech").rglob("*.py"):
        text = path.read_text()
        reasons |= set(re.findall(r'(?:Unusable|BadJson|AudioError)\(\s*"([a-z_]+)"', text))
        reasons |= set(re.findall(r'_rejected\([^"\n[]*"([a-z_]+)"', text))
        reasons |= set(re.findall(r'(?:notes|repairs)\.append\("([a-z_]+)"\)', text))
        reasons |= set(re.findall(r'reason = "([a-z_]+)"', text))
    assert len(reasons) > 20
    assert sorted(reasons - set(MEANINGS)) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "rules/report").glob("*.rst")), ids=lambda path: path.name
)
def test_captions_render_with_the_default_config(path):
    class Snakemake:
        written = yaml.safe_load((ROOT / "config.yaml").read_text())
        config = validate_config(written, ROOT / "rules/schemas")

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    text = environment.from_string(path.read_text()).render(snakemake=Snakemake)
    strict = {"halt_level": 2, "report_level": 2}
    body = publish_parts(text, writer="html", settings_overrides=strict)["body"]
    assert "{{" not in body and "{%" not in body and "system-message" not in body
    assert len(re.sub("<[^>]+>", "", body).split()) > 20
