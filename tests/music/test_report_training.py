"""The page of a run that was trained and evaluated: its figures, and the nearest versions in
words."""

from __future__ import annotations

import json
import re

import pytest

from millrace.music import evaluate_model, report_training, train_model
from millrace.music.features.splits import coverage, read_split
from millrace.music.report import matching
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


def evaluation(epoch: int, comp: float, precision: float, rank: float) -> str:
    figures = {"m_COMP": comp, "m_MAP": precision, "m_MR1": rank, "m_ARP": 50.0, "l_main": 1.0}
    metrics = {f"valid/{name}": value for name, value in figures.items()}
    return json.dumps({"event": "eval", "metrics": {**metrics, "hpar/epoch": epoch}}) + "\n"


@pytest.mark.parametrize(
    ("quantity", "mode", "best"), [("m_COMP", "min", "0.500 2.00"), ("m_MAP", "max", "0.600 3.00")]
)
def test_the_page_compares_the_untrained_model_with_the_best_epoch_and_numbers_the_nearest(
    tmp_path, quantity, mode, best
):
    folder = tmp_path / "tiny"
    folder.mkdir()
    monitor = {"quantity": quantity, "mode": mode}
    (folder / "configuration.yaml").write_text(json.dumps({"training": {"monitor": monitor}}))
    # The untrained model has the best figures by chance.
    rows = [(0, 1.0, 0.9, 4.0), (1, 3.0, 0.5, 2.0), (2, 5.0, 0.6, 3.0)]
    (folder / "metrics.jsonl").write_text("".join(evaluation(*row) for row in rows))
    names = ("m_MAP", "m_MR1", "m_ARP", "m_COMP")
    query = {"title": "Song", "clique": "C-1"}
    near = [{"title": name, "clique": name, "distance": 0.25} for name in ("C-1", "C-2")]
    test = {
        "figures": dict.fromkeys(names, 0.7),
        "intervals": dict.fromkeys(names, 0.3),
        "queries": 9,
        "redux": "min",
        "sizes": {"test": {"9": 1, "10": 2}},
        "nearest": [{**query, "tracks": near}],
    }
    (folder / "test.json").write_text(json.dumps(test))
    text = matching.render({"splits": [], "tracks": 1, "hours": 1.0}, [folder / "test.json"])
    plain = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    for line in (
        "tiny valid, untrained 0.900 4.00 50.0",
        f"tiny valid, best epoch {best} 50.0",
        "tiny test, 9 queries 0.700 ± 0.300 0.70 ± 0.30 0.7 ± 0.3",
        "Song · C-1 1 C-1 C-1 ✓ yes 0.25",
        "2 C-2 C-2 no 0.25",
        "10 or more recordings",
    ):
        assert line in plain, line


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
