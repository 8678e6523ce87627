"""The page of runs that were trained and evaluated: coverage and figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from millrace.music import evaluate_model, report_training, train_model
from millrace.music.features.splits import coverage, read_split
from tests.music.versions import SIZES, corpus, overrides

SPLITS = [
    {"split": "train", "cliques": 40, "cliques_found": 30, "versions": 200, "versions_found": 150}
    | {"missing_fraction": 0.25, "hours": 12.25},
    {"split": "test", "cliques": 5, "cliques_found": 4, "versions": 10, "versions_found": 7}
    | {"missing_fraction": 0.3, "hours": 0.5},
]


def page(folder: Path, splits: list[dict], *tests: Path) -> str:
    """The words of the page, as the step writes it."""
    content = {"splits": splits, "tracks": 1234, "hours": 99.5}
    (folder / "coverage.json").write_text(json.dumps(content))
    flags = ["--coverage", f"{folder}/coverage.json", "--output", f"{folder}/page.html"]
    assert report_training.main([*flags, "--figures", *map(str, tests)]) == 0
    return " ".join(re.sub(r"<[^>]+>", " ", (folder / "page.html").read_text()).split())


def test_the_page_sums_over_the_splits_and_shows_each(tmp_path):
    plain = page(tmp_path, SPLITS)
    assert "train 40 30 200 150 75.0 % 12.2" in plain and "test 5 4 10 7 70.0 % 0.5" in plain
    tiles = plain[: plain.index("train 40")]
    for name, number in (("Tracks", "1,234"), ("Audio", "99.5 h")):
        assert re.search(rf"{name} {number}|{number} {name}", tiles), name


def evaluation(epoch: int, comp: float, precision: float, rank: float) -> str:
    figures = {"m_COMP": comp, "m_MAP": precision, "m_MR1": rank, "m_ARP": 50.0}
    metrics = {f"valid/{name}": value for name, value in figures.items()}
    return json.dumps({"event": "eval", "metrics": {**metrics, "hpar/epoch": epoch}}) + "\n"


@pytest.mark.parametrize("quantity, best", [("m_COMP", "0.500 2.00"), ("m_MAP", "0.600 3.00")])
def test_the_page_compares_the_untrained_model_with_the_best_epoch(tmp_path, quantity, best):
    folder = tmp_path / "tiny"
    folder.mkdir()
    monitor = {"quantity": quantity}
    (folder / "configuration.yaml").write_text(json.dumps({"training": {"monitor": monitor}}))
    # The untrained model has the best figures by chance.
    rows = [(0, 1.0, 0.9, 4.0), (1, 3.0, 0.5, 2.0), (2, 5.0, 0.6, 3.0)]
    (folder / "metrics.jsonl").write_text("".join(evaluation(*row) for row in rows))
    names = ("m_MAP", "m_MR1", "m_ARP", "m_COMP")
    figures = {"figures": dict.fromkeys(names, 0.7), "queries": 9}
    (folder / "test.json").write_text(json.dumps(figures))
    plain = page(tmp_path, [], folder / "test.json")
    for line in (
        "tiny valid, untrained 0.900 4.00 50.0",
        f"tiny valid, best epoch {best} 50.0",
        "tiny test, 9 queries 0.700 0.70 0.7",
    ):
        assert line in plain, line


def test_the_page_shows_coverage_and_figures_of_a_run_and_is_the_same_bytes_again(tmp_path):
    index = corpus(tmp_path)
    sets = [read_split(f"{tmp_path}/{name}.json", name) for name in SIZES]
    splits = [coverage(split, index, {}).facts for split in sets]
    folder = tmp_path / "logs/tiny"
    assert train_model.main(overrides(tmp_path, "training.numepochs=1")) == 0
    checkpoint = f"checkpoint={folder}/checkpoint_best.ckpt"
    assert evaluate_model.main([checkpoint, "--output", f"{folder}/test.json"]) == 0
    plain = page(tmp_path, splits, folder / "test.json")
    figures = json.loads((folder / "test.json").read_text())["figures"]
    assert f"{figures['m_ARP']:.1f}" in plain
    assert re.search(r"train 6 6 18 18 100\.0 %", plain)
    assert page(tmp_path, splits, folder / "test.json") == plain
