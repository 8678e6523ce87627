"""The page of a run that was trained and evaluated: its figures, and the nearest versions in
words."""

from __future__ import annotations

import json
import re

from millrace.music import evaluate_model, report_training, train_model
from millrace.music.features.splits import coverage, read_split
from tests.music.versions import SIZES, corpus, overrides


def test_the_page_sums_over_the_splits_and_shows_each(tmp_path):
    splits = [
        {
            "split": "train",
            "cliques": 40,
            "cliques_found": 30,
            "versions": 200,
            "versions_found": 150,
        },
        {"split": "test", "cliques": 5, "cliques_found": 4, "versions": 10, "versions_found": 7},
    ]
    splits[0] |= {"missing": 50, "missing_fraction": 0.25, "hours": 12.25}
    splits[1] |= {"missing": 3, "missing_fraction": 0.3, "hours": 0.5}
    coverage = {"splits": splits, "tracks": 1234, "hours": 99.5}
    (tmp_path / "coverage.json").write_text(json.dumps(coverage))
    flags = ["--coverage", f"{tmp_path}/coverage.json", "--output", f"{tmp_path}/page.html"]
    assert report_training.main(flags) == 0
    plain = " ".join(re.sub(r"<[^>]+>", " ", (tmp_path / "page.html").read_text()).split())
    assert "train 40 30 200 150 75.0 % 12.2" in plain and "test 5 4 10 7 70.0 % 0.5" in plain
    tiles = plain[: plain.index("train 40")]
    for name, number in (("Tracks", "1,234"), ("Audio", "99.5 h"), ("Missing", "53")):
        assert re.search(rf"{name} {number}|{number} {name}", tiles), name


def test_the_page_shows_coverage_figures_and_nearest_versions(tmp_path):
    index = corpus(tmp_path)
    split = json.loads((tmp_path / "test.json").read_text())
    split["C-10"][1]["track_title"] = "A <tune>"
    (tmp_path / "test.json").write_text(json.dumps(split))
    splits = [coverage(read_split(f"{tmp_path}/{name}.json", name), index, {})[0] for name in SIZES]
    (tmp_path / "coverage.json").write_text(
        json.dumps({"splits": splits, "tracks": 30, "hours": 0.3})
    )
    folder, page = tmp_path / "logs/tiny", tmp_path / "page.html"
    assert train_model.main(overrides(tmp_path, "training.numepochs=1")) == 0
    checkpoint = f"checkpoint={folder}/checkpoint_best.ckpt"
    assert evaluate_model.main([checkpoint, "--output", f"{folder}/test.json"]) == 0
    flags = ["--coverage", f"{tmp_path}/coverage.json", "--figures", f"{folder}/test.json"]
    assert report_training.main([*flags, "--output", str(page)]) == 0
    text = page.read_text()

    figures = json.loads((folder / "test.json").read_text())["figures"]
    assert text.count(f"{figures['m_ARP']:.1f}") >= 2  # tile and table
    plain = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"train\s+6\s+6\s+18\s+18\s+100\.0 %", plain)
    assert "A &lt;tune&gt; · C-10" in text
    # Each of 6 queries finds all tracks but itself; one of the first 3 at most is its version.
    assert plain.count("✓ yes") + len(re.findall(r">no<", text)) == 18
    assert 0 < plain.count("✓ yes") <= 6
    first = page.read_bytes()
    assert report_training.main([*flags, "--output", str(page)]) == 0
    assert page.read_bytes() == first
    assert (
        report_training.main(["--coverage", f"{tmp_path}/coverage.json", "--output", str(page)])
        == 0
    )
    assert "There is no run." in page.read_text()
