"""The page of a training run."""

from __future__ import annotations

import json
import re

from millrace.image.training import report

TRAIN = {
    "event": "train",
    "step": 1,
    "loss": 2.0,
    "seconds": 4.0,
    "time_share": {"data_wait": 0.25},
}
EVAL = {"event": "eval", "step": 1, "metrics": {"loss": 1.5, "acc1": 62.5, "acc5": 87.5}}
SUMMARY = {
    "arch": "tiny",
    "epochs": 1,
    "samples": 64,
    "optimizer_steps": 1,
    "best": {"acc1": 62.5},
}


def test_a_torn_line_of_the_log_leaves_the_page_as_it_is(tmp_path):
    log = tmp_path / "metrics.jsonl"
    whole = "".join(json.dumps(row) + "\n" for row in (TRAIN, EVAL))
    log.write_text(whole)
    page = report.training_page(tmp_path, SUMMARY)
    assert ">62.5<" in page and ">87.5<" in page
    leaks = ["2 images of train that are also in val: kept"]
    assert f"1 steps. {leaks[0]}." in report.training_page(tmp_path, SUMMARY, leaks)

    log.write_text(whole + '{"event": "train", "st')
    assert report.training_page(tmp_path, SUMMARY) == page


def test_validations_are_numbered_by_their_epochs_and_waits_weigh_as_they_last(tmp_path):
    later = {**TRAIN, "seconds": 12.0, "time_share": {"data_wait": 0.75}}
    unknown = {**TRAIN, "loss": None, "seconds": 99.0}
    rows = [TRAIN, EVAL, later, unknown, EVAL]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Of five epochs the log has the last two, as of a run whose folder was brought along.
    page = report.training_page(tmp_path, {**SUMMARY, "epochs": 5})
    assert re.findall(r'<th scope="row">(\d+)</th>', page) == ["3", "4"]
    assert "62.5 % of the time waited for data" in page
