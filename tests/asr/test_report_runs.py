"""What a run says of its worth: hypotheses.jsonl, metrics.json, and the page of the runs."""

from __future__ import annotations

import base64
import dataclasses
import re
import tarfile
from pathlib import Path

import pytest

from millrace.asr import report_runs, train_model
from millrace.asr.buckets.config import BucketConfig
from millrace.asr.evaluation import page
from millrace.asr.evaluation.runs import Run, data_uri, worst_clips
from millrace.common import atomic, jsonl
from millrace.common.ledger import Ledger
from tests.asr import audio_tars
from tests.asr.training.test_task import write, write_splits
from tests.common.report.pages import Page


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, list[Path]]:
    """Buckets whose dev and test are their own clips, and metrics.json of two runs."""
    folder = tmp_path_factory.mktemp("runs")
    buckets = write(folder)
    write_splits(buckets, dev="train/b_0_3.parquet", test="train/b_3_5.parquet")
    config = jsonl.read(buckets / "bucket_config.json") | {"edges": [0, 0.1, 5]}
    atomic.write_json(buckets / "bucket_config.json", config)
    runs = [folder / name / "metrics.json" for name in ("first", "second")]
    for run, lr in zip(runs, ("1e-3", "1e-2"), strict=True):
        assert train(buckets, run, lr) == 0
    return buckets, runs


@pytest.fixture
def runs(built) -> list[Run]:
    return list(map(Run, built[1]))


def train(buckets: Path, metrics: Path, lr: str) -> int:
    flags = [f"--bucket-dir={buckets}", f"--metrics={metrics}", f"--lr={lr}", "--max-steps=2"]
    flags += ["--model-options", '{"hidden": 8, "channels": 2}']
    return train_model.main([*flags, "--num-workers=0", "--tensorboard=0"])


def report(buckets: Path, runs: list[Path], target: Path) -> int:
    places = [f"--buckets={buckets}/bucket_config.json", f"--summary={target}"]
    return report_runs.main([*places, "--runs", *map(str, runs)])


def test_the_hypotheses_add_up_to_the_rates_of_the_run(built):
    metrics = jsonl.read(built[1][0])
    lines = jsonl.whole_lines(built[1][0].parent / "hypotheses.jsonl")
    assert len(lines) == 24 and lines[0]["key"] == "t0_0" and lines[0]["reference"] == "a0"
    for split, figures in (("dev", metrics["last_evaluation"]), ("test", metrics["test"])):
        of = [line for line in lines if line["split"] == split]
        cer = sum(line["edits"] for line in of) / sum(line["characters"] for line in of)
        rates = metrics["error_rates"][split]
        assert rates["overall"]["cer"] == cer == figures["cer"]
        assert rates["overall"]["wer"] == figures["wer"] and rates["overall"]["recordings"] == 12
        assert set(rates["by_duration"]) == {"b_0_0.1", "b_0.1_5"}
    assert set(metrics["error_rates"]["dev"]["by_language"]) == {"English"}
    assert set(metrics["error_rates"]["test"]["by_language"]) == {"und"}


def test_a_run_resumed_behind_its_last_evaluation_has_all_of_it(built):
    run = built[1][1].parent
    lines, metrics = run / "hypotheses.jsonl", run / "metrics.json"
    before = (jsonl.read(metrics)["error_rates"], lines.read_bytes())
    lines.unlink()
    assert train(built[0], metrics, "1e-2") == 0
    assert (jsonl.read(metrics)["error_rates"], lines.read_bytes()) == before


def test_the_page_shows_the_runs_side_by_side_with_the_worst_clips_to_hear(built, runs, tmp_path):
    buckets, metrics = built
    assert report(buckets, metrics, tmp_path / "runs.html") == 0
    html = (tmp_path / "runs.html").read_text()
    shown = Page(html)
    sections = "Runs side by side, Learning curves, Error rates, Worst clips"
    assert list(shown.outline) == sections.split(", ")
    side = shown.by_name("Runs side by side", values=True)
    rates = [run.rates["test"]["overall"]["cer"] for run in runs]
    assert side["test: CER"] == pytest.approx(rates, abs=1e-6)
    assert side["lr"] == ["0.001", "0.01"]
    assert list(shown.by_name("test: error rates by duration")) == ["b_0_0.1", "b_0.1_5", "All"]
    assert "test of first has 12" in shown.text
    sounds = re.findall(r'src="data:audio/(\w+);base64,([^"]+)"', html)
    assert len(sounds) == 12 and all(base64.b64decode(of)[:4] == b"fLaC" for _, of in sounds)
    lines = [line for line in runs[0].hypotheses if line["split"] == "test"]
    worst = max(line["edits"] / line["characters"] for line in lines)
    assert f"first, {100 * worst:.0f} %" in shown.text
    clips = worst_clips(runs, BucketConfig.read(buckets))
    assert [clip.line["split"] for clip in clips] == ["test"] * 12
    assert [clip.rate for clip in clips] == sorted((clip.rate for clip in clips), reverse=True)
    sound_of = {}
    for path in buckets.parent.glob("t*.tar"):
        with tarfile.open(path) as tar:
            sound_of |= {Path(name).stem: tar.extractfile(name).read() for name in tar.getnames()}
    assert [clip.audio for clip in clips] == [
        data_uri(sound_of[clip.line["key"]]) for clip in clips
    ]

    # Clips that are gone have no player, and the page is made all the same.
    for tar in buckets.parent.glob("t*.tar"):
        tar.rename(tar.with_suffix(".gone"))
    assert report(buckets, metrics, tmp_path / "runs.html") == 0
    assert "The audio is no longer in the buckets." in (tmp_path / "runs.html").read_text()
    for tar in buckets.parent.glob("t*.gone"):
        tar.rename(tar.with_suffix(".tar"))


def test_a_clip_that_one_run_alone_has_transcribed_has_its_rate(built, runs):
    config = BucketConfig.read(built[0])
    first, second = runs
    alone = worst_clips([first], config)
    second.hypotheses = []
    both = worst_clips([first, second], config)
    assert [clip.rate for clip in both] == [clip.rate for clip in alone]


def test_the_rate_of_a_clip_is_the_mean_over_runs_and_without_a_test_it_is_of_dev(built, runs):
    for run, share in zip(runs, (0, 1), strict=True):
        dev = [line for line in run.hypotheses if line["split"] == "dev"]
        run.hypotheses = [{**line, "edits": share * line["characters"]} for line in dev]
    # Also where the buckets have lost the split, and with it the audio.
    config = dataclasses.replace(BucketConfig.read(built[0]), splits={})
    assert [(clip.rate, clip.audio) for clip in worst_clips(runs, config)] == [(0.5, "")] * 12


def test_of_clips_of_one_rate_the_twenty_of_the_longest_texts_are_shown(built, runs):
    run = runs[0]
    line = {**run.hypotheses[-1], "edits": 0}
    run.hypotheses = [
        {**line, "sample_id": 1000 + number, "characters": number // 2, "key": "ba"[number % 2]}
        for number in range(24)
    ]
    clips = worst_clips([run], BucketConfig.read(built[0]))
    shown = [(clip.line["characters"], clip.line["key"]) for clip in clips]
    assert shown == [(length, key) for length in range(11, 1, -1) for key in "ab"]


def test_a_curve_is_that_of_one_event(tmp_path):
    atomic.write_json(tmp_path / "metrics.json", {})
    evaluation = {"event": "eval", "step": 1, "metrics": {"loss": 3.0}}
    steps = [{"event": "train", "step": 1, "loss": 2.0}, {"event": "train", "step": 2, "loss": 0.0}]
    lines = [*steps, evaluation]
    jsonl.write_lines(tmp_path / "metrics.jsonl", lines)
    run = Run(tmp_path / "metrics.json")
    assert (run.curve("train", "loss"), run.curve("eval", "loss")) == (
        [(1, 2.0), (2, 0.0)],
        [(1, 3.0)],
    )


def test_runs_of_one_colour_have_lines_of_another_kind_and_rates_are_per_cent(runs, monkeypatch):
    charts = []
    monkeypatch.setattr(page.figures, "line_chart", lambda *chart: charts.append(chart) or "")
    run = runs[0]
    page.render([run] * 29, [])
    ((_, _, (loss, cer), legend),) = charts
    kinds = [(colour, dashes) for colour, dashes, _ in loss.lines]
    first = page.PALETTE[0]
    assert kinds[:8:7] == [(first, "-"), (first, "--")]
    assert len(set(kinds)) == 28 and kinds[28] == kinds[0]
    assert [(colour, dashes) for colour, dashes, _ in cer.lines] == kinds
    assert legend == [(run.name, colour) for colour, _ in kinds]
    *_, points = cer.lines[0]
    assert points == [(step, 100 * rate) for step, rate in run.curve("eval", "cer")] != []


def test_the_page_says_which_rows_are_also_held_out(built, tmp_path):
    buckets, runs = built
    ledger = Ledger("build", "train", "row", warnings={"also_in_test": 3}).as_dict()
    atomic.write_json(buckets / "ledger.json", [ledger])
    assert report(buckets, runs, tmp_path / "runs.html") == 0
    (buckets / "ledger.json").unlink()
    shown = Page((tmp_path / "runs.html").read_text())
    assert "3 rows of train that are also in test: kept." in shown.text


def test_the_page_shows_in_what_runs_differ(runs):
    first, second = runs
    for run, folder, cer in ((first, "here", 0.5), (second, "there", 0.25)):
        run.settings |= {"model": f"/{folder}/model", "seed": 1}
        run.metrics["seconds"], run.metrics["test"]["loss"] = 7200.0, 4 * cer
        for rates in (run.rates["test"]["overall"], run.rates["dev"]["overall"]):
            rates |= {"cer": cer, "wer": 2 * cer, "seconds": 7200.0, "recordings": 7}
    # The tiles are of the best on test, whatever dev says.
    first.rates["dev"]["overall"]["cer"] = 0.125
    del second.rates["test"]["by_duration"]["b_0_0.1"]
    del first.rates["dev"]["by_duration"]["b_0_0.1"]
    second.hypotheses = second.hypotheses[1:]
    html = page.render([first, second], [])
    shown = Page(html)
    assert shown.tiles["CER of test, second"] == 0.25
    side = shown.by_name("Runs side by side", values=True)
    assert side["test: loss"] == [2.0, 1.0] and "lr" in side and not {"model", "seed"} & set(side)
    assert shown.by_name("Runs side by side")["Training"] == ["2.0 h", "2.0 h"]
    rates = shown.by_name("test: error rates by duration", values=True)
    assert rates["All"][-4:] == [0.5, 1.0, 0.25, 0.5] and rates["b_0_0.1"][-2:] == ["–", "–"]
    assert shown.by_name("test: error rates by duration")["All"][:3] == ["12", "7", "2.0 h"]
    of_dev = shown.by_name("dev: error rates by duration", values=True)["b_0_0.1"]
    assert of_dev[0] > 0 and of_dev[3:5] == ["–", "–"]
    assert shown.texts["test: error rates by duration"][0][-2:] == ["second: CER", "second: WER"]
    assert "evaluated on different samples" in shown.text


def test_few_recordings_are_less_than_twenty(runs):
    run = runs[0]
    few = []
    for count in (19, 20):
        for split in run.rates.values():
            split["overall"]["recordings"] = count
        text = Page(page.render([run], [])).text
        few.append("Few recordings: test of first has 19, dev of first has 19." in text)
    assert few == [True, False] and "Few recordings" not in text


def test_clips_are_heard_as_flac():
    assert data_uri(b"fLaC as it is") == "data:audio/flac;base64,ZkxhQyBhcyBpdCBpcw=="
    uri = data_uri(audio_tars.encoded(audio_tars.noise(3000, 1), "AIFF"))
    assert uri.startswith("data:audio/flac;base64,ZkxhQ")


def test_a_run_of_an_earlier_version_is_on_the_page_and_no_run_is_an_error(built, tmp_path):
    old = {key: value for key, value in jsonl.read(built[1][0]).items() if key != "error_rates"}
    atomic.write_json(tmp_path / "old/metrics.json", old)
    assert report(built[0], [tmp_path / "old/metrics.json"], tmp_path / "runs.html") == 0
    side = Page((tmp_path / "runs.html").read_text()).by_name("Runs side by side")
    assert side["test: CER"] == ["–"]
    assert (
        report(built[0], [], tmp_path / "none.html") == 1 and not (tmp_path / "none.html").exists()
    )
