"""The corpus report: every number equals its input, every name is shown, nothing can break the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from docutils.core import publish_parts
from hypothesis import given
from hypothesis import strategies as st

from millrace.common import atomic
from millrace.common.ledger import Ledger
from millrace.common.report import figures
from millrace.speech import report_corpus
from millrace.speech.columns import INDEX_SCHEMA
from millrace.speech.country import tables as country_tables
from millrace.speech.country.reasons import MEANINGS
from millrace.speech.names import safe_name
from millrace.speech.report.figures import MOST_BARS, histogram_edges

ROOT = Path(__file__).parents[2]
FIGURES = ("hours", "distributions", "rejects")
SVG = "{http://www.w3.org/2000/svg}"
ODD = ["<script>alert(1)</script>", 'a&b "q"', "日本国会", "$x$", "../up.dir/x", "two\nlines", "É", "مصر"]


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
        rejected: dict | None = None,
        file_rejected: dict | None = None,
        repaired: dict | None = None,
        warnings: dict | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        rng = np.random.default_rng(seed)
        rows, recordings, lost = [], [], Counter(rejected or {})
        for number in range(segments):
            video, start, length = number // 10, (number % 10) * 21.0, float(rng.uniform(3, 20))
            split, subset = [("train", 1), ("train", 2), ("validation", None), ("test", None)][video % 4]
            cer = float(rng.choice([rng.uniform(0, 0.3), rng.uniform(0.31, 2.5)], p=[0.9, 0.1]))
            row = {
                "key": f"{country}_v{video}_{int(start * 1000)}_{int((start + length) * 1000)}",
                "country": country,
                "language": "xx",
                "video_id": f"v{video}",
                "transcript_id": "t",
                "source_audio_path": f"/a/v{video}.mp3",
                "start_seconds": start,
                "end_seconds": start + length,
                "duration_seconds": round(length, 6),
                "asr_transcript": '=SUM(A1), "q"\r\n\u202eNA',
                "human_transcript": ["NA", "null", "a\nb", ""][number % 4],
                "cer": cer,
                "wer": cer * 1.5,
                "status": "pending_local_tar",
                "error_message": "",
                "batch_id": "p",
                "split": split,
                "subset_id": subset,
            }
            rows.append(row)
            if number % 10 == 0:
                recordings.append(
                    {"source_audio_path": row["source_audio_path"], "video_id": row["video_id"]}
                )
                recordings[-1] |= {
                    "duration_hours": 0.25 if video else None,
                    "split": split,
                    "subset_id": subset,
                }
            if cer > 0.3:
                lost["cer_over_limit"] += 1
                continue
            kept = {name: row.get(name) for name in INDEX_SCHEMA.names}
            kept |= {
                "shard": f"{safe_name(country)}/{split}/{split}-{subset}-{video // 8:05d}.tar",
                "member": "m.flac",
            }
            kept |= {
                "size": 1000 + number,
                "offset": 512,
                "samples": round(length * 16000),
                "sample_rate": 16000,
            }
            self.index.append(kept | {"duration_seconds": kept["samples"] / 16000, "sha256": "0"})
        held = sum(row["country"] == country for row in self.index)
        found = Ledger(
            "s", country, "segment", held + lost.total(), held, lost, repaired or {}, warnings or {}
        )
        bad = Counter(file_rejected or {})
        files = Ledger("s", country, "file", len(recordings) + bad.total(), len(recordings), bad)
        tables = self.folder / "manifest"
        country_tables.write_manifest_csv(tables / f"{safe_name(country)}_manifest.csv", rows)
        splits = tables / f"{safe_name(country)}_splits.csv"
        country_tables._write_csv(splits, country_tables.SPLITS_COLUMNS, recordings)
        self.rows[country] = rows
        self.countries.append(
            {
                "country": country,
                "language": "xx",
                "recordings": len(recordings),
                "notes": list(notes),
                "segments": found.as_dict(),
                "files": files.as_dict(),
            }
        )

    def arguments(self) -> list[str]:
        table = pa.Table.from_pylist(self.index, schema=INDEX_SCHEMA)
        pq.write_table(table, self.folder / "index.parquet", row_group_size=37)
        atomic.write_json(self.folder / "ledger.json", {"total": {}, "countries": self.countries})
        folder = str(self.folder)
        inputs = ["--index", f"{folder}/index.parquet", "--ledger", f"{folder}/ledger.json"]
        outputs = [text for name in FIGURES for text in (f"--{name}", f"{folder}/out/{name}.svg")]
        return [
            *inputs,
            "--manifest-dir",
            f"{folder}/manifest",
            "--summary",
            f"{folder}/out/summary.html",
            *outputs,
        ]

    def report(self) -> Page:
        assert report_corpus.main(self.arguments()) == 0
        return Page((self.folder / "out" / "summary.html").read_text())

    def texts(self, name: str) -> list[str]:
        root = ElementTree.parse(self.folder / "out" / f"{name}.svg").getroot()
        return [element.text or "" for element in root.iter(f"{SVG}text")]


class Page(HTMLParser):
    """Tables of a page by caption: rows of texts, and of exact values where a cell is a number."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.tables: dict[str, list[list]] = {}
        self.rows: list[list] = []
        self.caption = ""
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "data" and "td" in self.inside:
            self.rows[-1][-1] = float(dict(attrs)["value"])
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass
        if tag == "table":
            assert self.caption not in self.tables
            self.tables[self.caption] = self.rows

    def handle_data(self, text: str) -> None:
        if self.inside and self.inside[-1] == "caption":
            self.caption = text
        elif {"td", "th"} & set(self.inside) and isinstance(self.rows[-1][-1], str):
            self.rows[-1][-1] += text

    def by_name(self, caption: str) -> dict[str, list]:
        return {row[0]: row[1:] for row in self.tables[caption][1:]}


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    corpus = Corpus(tmp_path)
    rejected, bad = {"too_short": 7, "time_reversed": 1}, {"json_damaged": 2, "no_segments": 1}
    corpus.add("italy", 130, 1, rejected, bad, {"cer_computed": 4}, {"second_transcript": 2})
    corpus.add("france", 55, 2, {"too_short": 30}, None, {"end_clipped": 1}, None, ("language_unknown",))
    corpus.add("empty land", 0, 3, None, {"json_empty": 1}, None, None, ("no_alignment_folder",))
    return corpus


def test_tables_equal_the_inputs(corpus: Corpus) -> None:
    page = corpus.report()
    hours, split_hours, parts = Counter(), Counter(), defaultdict(list)
    for row in corpus.index:
        hours[row["country"]] += row["duration_seconds"] / 3600
        split_hours[row["country"], row["split"]] += row["duration_seconds"] / 3600
        parts[row["country"], row["split"], str(row["subset_id"] or "")].append(row)
    countries = page.by_name("Hours and segments per country")
    assert list(countries) == ["empty land", "france", "italy", "All"]
    for listed in corpus.countries:
        name, segments = listed["country"], listed["segments"]
        recorded = 0.25 * max(listed["recordings"] - 1, 0)
        counts = [segments["rows_in"], segments["rows_rejected"], segments["rows_out"]]
        expected = [listed["recordings"], recorded, *counts, hours[name], hours[name] / hours.total()]
        assert countries[name] == ["xx", *(pytest.approx(value, abs=2e-6) for value in expected)]
    for place in range(1, 8):
        assert countries["All"][place] == pytest.approx(
            sum(countries[c][place] for c in corpus.rows), abs=5e-6
        )
    shares = page.by_name("Real shares of the splits")
    for name in ("italy", "france"):
        for place, split in enumerate(("train", "validation", "test")):
            recordings = len({row["video_id"] for row in corpus.rows[name] if row["split"] == split})
            share = split_hours[name, split] / hours[name]
            expected = [pytest.approx(v, abs=2e-6) for v in (recordings, split_hours[name, split], share)]
            assert shares[name][3 * place : 3 * place + 3] == expected
        assert sum(shares[name][2::3]) == pytest.approx(1, abs=1e-5)
    subsets = page.tables["Shards per split and subset"][1:-1]
    assert len(subsets) == len(parts)
    for country, split, subset, *numbers in subsets:
        rows = parts[country, split, subset]
        expected = [
            len(rows),
            sum(row["duration_seconds"] for row in rows) / 3600,
            len({r["shard"] for r in rows}),
        ]
        assert numbers == [pytest.approx(v, abs=2e-6) for v in (*expected, sum(row["size"] for row in rows))]


def test_rates_are_those_of_all_segments_in_the_manifest(corpus: Corpus) -> None:
    page = corpus.report()
    rates = page.by_name("Quantiles and means of all segments in the manifest")
    whole = [row for held in corpus.rows.values() for row in held]
    for name, rows in {**corpus.rows, "All": whole}.items():
        assert rates[name][0] == len(rows)
        if not rows:
            assert set(rates[name][1:]) == {0.0}
            continue
        expected = []
        for column, scale, quantiles in (
            ("duration_seconds", 1, (5, 50, 95)),
            ("cer", 100, (50, 95)),
            ("wer", 100, (50, 95)),
        ):
            values = np.array([row[column] for row in rows]) * scale
            expected += [*np.percentile(values, quantiles), values.mean()]
        assert rates[name][1:] == [pytest.approx(value, rel=1e-4, abs=1e-3) for value in expected]
    kept, lost = len(corpus.index), sum(map(len, corpus.rows.values())) - len(corpus.index)
    assert {f"in shards ({kept})", f"rejected when shards were made ({lost})"} <= set(
        corpus.texts("distributions")
    )


def test_rejects_repairs_warnings_and_ledgers_equal_the_inputs(corpus: Corpus) -> None:
    page = corpus.report()
    for caption, unit, column in (
        ("Segments rejected", "segments", "rejected"),
        ("Alignment files rejected", "files", "rejected"),
        ("Segments repaired", "segments", "repaired"),
        ("Segments with a warning", "segments", "warnings"),
    ):
        expected = Counter()
        for country in corpus.countries:
            expected.update(country[unit][column])
        found = page.by_name(caption)
        assert {reason: row[1] for reason, row in found.items()} == {**expected, "All": expected.total()}
        for country in corpus.countries:
            for reason, count in country[unit][column].items():
                assert f"{country['country']} {count}" in found[reason][-1].split(", ")
    for caption, unit in (("Segments", "segments"), ("Alignment files", "files")):
        ledger = page.by_name(caption)
        for country in corpus.countries:
            found, kept, rejected, _ = ledger[country["country"]]
            assert (found, kept) == (country[unit]["rows_in"], country[unit]["rows_out"])
            assert found == kept + rejected
    notes = page.tables["Notes on countries"][1:]
    assert [row[:2] for row in notes] == [
        ["empty land", "no_alignment_folder"],
        ["france", "language_unknown"],
    ]
    segments = sum(country["segments"]["rows_in"] for country in corpus.countries)
    assert f"37 ({100 * 37 / segments:.1f} %)" in corpus.texts("rejects")


def test_figures_and_page_hold_each_country_and_reason(corpus: Corpus) -> None:
    corpus.report()
    assert {"italy", "france", "empty land", "0 min"} <= set(corpus.texts("hours"))
    reasons = {"too_short", "time_reversed", "cer_over_limit", "json_damaged", "no_segments", "json_empty"}
    assert reasons | {"italy", "france", "empty land"} <= set(corpus.texts("rejects"))


def test_same_bytes_from_two_processes(corpus: Corpus) -> None:
    corpus.report()
    here = {path.name: path.read_bytes() for path in (corpus.folder / "out").iterdir()}
    assert set(here) == {"summary.html", "hours.svg", "distributions.svg", "rejects.svg"}
    env = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    command = [sys.executable, "-m", "millrace.speech.report_corpus", *corpus.arguments()]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {path.name: path.read_bytes() for path in (corpus.folder / "out").iterdir()} == here


def test_odd_names_and_reasons_are_shown_and_stay_text(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    for number, name in enumerate(ODD):
        reasons = {f"<img src=x onerror=alert({number})>": 1, "a\x00b\x1b[31m": 2, "x" * 300: 3}
        corpus.add(name, 12, number, reasons, reasons, reasons, reasons, ("<b>",))
    page = corpus.report()
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "link", "b", "image", "foreignobject"}
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    shown = [figures.label(name) for name in ODD]
    assert set(page.by_name("Hours and segments per country")) == {*shown, "All"}
    for number in range(len(ODD)):
        assert f"<img src=x onerror=alert({number})>" in page.by_name("Segments rejected")
    assert "x" * 300 in page.by_name("Alignment files rejected")
    assert {figures.shorten(name, 2.6) for name in ODD} <= set(corpus.texts("hours"))
    for name in FIGURES:
        root = ElementTree.parse(tmp_path / "out" / f"{name}.svg").getroot()
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
            *("svg", "title", "desc", "defs", "style", "g", "path", "use", "text", "clipPath", "rect")
        }


def test_page_needs_nothing_but_itself_and_its_ids_are_unique(corpus: Corpus) -> None:
    page = corpus.report()
    for tag, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "data"):
            assert attrs.get(name, "#").startswith("#"), (tag, attrs)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    assert links and {link.removeprefix("#") for link in links} <= set(ids)
    text = (corpus.folder / "out" / "summary.html").read_text()
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_one_country_without_any_reject(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add("italy", 1)
    page = corpus.report()
    assert "Segments rejected" not in page.tables
    assert "Nothing was rejected." in corpus.texts("rejects")
    assert page.by_name("Segments")["italy"] == [1, 1, 0, 0]


@pytest.mark.parametrize("countries", [0, 1, 3])
def test_no_segment_at_all(tmp_path: Path, countries: int) -> None:
    corpus = Corpus(tmp_path)
    for number in range(countries):
        corpus.add(f"c{number}", 0)
    page = corpus.report()
    assert list(page.by_name("Hours and segments per country")) == [
        *(f"c{n}" for n in range(countries)),
        "All",
    ]
    assert page.by_name("Real shares of the splits")["All"] == [0.0] * 9
    assert "no values" in corpus.texts("distributions")


def test_figures_grow_with_the_corpus_and_say_what_they_sum_up(tmp_path: Path) -> None:
    heights = {}
    for count in (3, 30, MOST_BARS + 5):
        corpus = Corpus(tmp_path / str(count))
        reasons = {f"reason_{number:03d}": number + 1 for number in range(count)}
        for number in range(count):
            corpus.add(f"country-{number:03d}", 2 + number // 20, number, reasons)
        page = corpus.report()
        root = ElementTree.parse(corpus.folder / "out" / "hours.svg").getroot()
        heights[count] = float(root.get("height").removesuffix("pt"))
        assert len(page.by_name("Hours and segments per country")) == count + 1
        assert set(reasons) <= set(page.by_name("Segments rejected"))
        if count <= MOST_BARS:
            assert {f"country-{number:03d}" for number in range(count)} <= set(corpus.texts("hours"))
            assert set(reasons) <= set(corpus.texts("rejects"))
        else:
            assert "6 other countries" in corpus.texts("hours")
            sums = Counter()
            for country in corpus.countries:
                sums.update(country["segments"]["rejected"])
            ranked = sorted(sums.values(), reverse=True)
            # `cer_over_limit` is a reason too.
            other = f"{len(sums) - MOST_BARS + 1} other reasons"
            texts = corpus.texts("rejects")
            assert other in texts and any(t.startswith(f"{sum(ranked[MOST_BARS - 1 :]):,} (") for t in texts)
    assert heights[3] < heights[30] < heights[MOST_BARS + 5]


def test_many_different_warnings_do_not_flood_the_page(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add("italy", 5, warnings={f"file {n}.mp3 is late": 1 for n in range(5000)})
    page = corpus.report()
    rows = page.by_name("Segments with a warning")
    assert len(rows) == 202 and "4800 more" in rows and rows["All"][1] == 5000


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda c: (c.folder / "manifest" / "italy_manifest.csv").unlink(),
            "italy_manifest.csv: the file is missing",
        ),
        (
            lambda c: (c.folder / "manifest" / "italy_splits.csv").unlink(),
            "italy_splits.csv: the file is missing",
        ),
        (lambda c: (c.folder / "manifest" / "italy_manifest.csv").write_text("a,b\n1,2\n"), "cannot be read"),
        (lambda c: (c.folder / "manifest" / "italy_manifest.csv").write_text(""), "cannot be read"),
        (lambda c: c.index.pop(), "index.parquet: the index holds"),
        (lambda c: c.index[0].update(key="other"), "of them are in the manifest"),
        (lambda c: c.countries.pop(0), "which .*ledger.json lacks"),
    ],
)
def test_inputs_that_contradict_each_other_end_in_one_clear_line(
    corpus: Corpus, damage: Callable, told: str, capsys
) -> None:
    damage(corpus)
    assert report_corpus.main(corpus.arguments()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and re.search(told, lines[0])
    assert not (corpus.folder / "out").exists()


@given(st.lists(st.floats(0, 5, width=32), min_size=1, max_size=50), st.booleans())
def test_histogram_edges_hold_nearly_all_values(values: list[float], from_zero: bool) -> None:
    edges, beyond = histogram_edges(np.array(values), from_zero, 0.005)
    assert 5 <= edges.size <= 62
    assert np.allclose(np.diff(edges), edges[1] - edges[0])
    step = edges[1] - edges[0]
    assert edges[0] <= min(values) + step * 1e-3
    assert beyond == (max(values) > edges[-1] + 1e-4 * step)
    # Of no more than 200 values, the 0.5 % that may lie beyond are one.
    assert sum(value > edges[-1] + 1e-3 * step for value in values) <= 1


def test_every_reason_in_the_lane_has_a_meaning() -> None:
    found = set()
    for path in (ROOT / "scripts/millrace/speech").rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r'(?:Unusable|BadAlignment|BadJson|AudioError)\(\s*"([a-z_]+)"', text))
        found |= set(re.findall(r'_rejected\([^"\n[]*"([a-z_]+)"', text))
        found |= set(re.findall(r'(?:notes|repairs)\.append\("([a-z_]+)"\)', text))
        found |= set(re.findall(r'reason = "([a-z_]+)"', text))
    assert len(found) > 20
    assert sorted(found - set(MEANINGS)) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "rules" / "report").glob("*.rst")), ids=lambda path: path.name
)
def test_captions_render_with_the_default_config(path: Path) -> None:
    class Snakemake:
        config = yaml.safe_load((ROOT / "config.yaml").read_text())

    text = (
        jinja2.Environment(undefined=jinja2.StrictUndefined)
        .from_string(path.read_text())
        .render(snakemake=Snakemake)
    )
    body = publish_parts(text, writer="html", settings_overrides={"halt_level": 2, "report_level": 2})["body"]
    assert "{{" not in body and "{%" not in body and "system-message" not in body
    assert len(re.sub("<[^>]+>", "", body).split()) > 20
