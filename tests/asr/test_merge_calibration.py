"""calibrated_bs.json from the files of the buckets: order, model, budgets for the planner,
refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from millrace.asr import merge_calibration
from millrace.asr.calibration import merge
from millrace.asr.calibration.memory_model import MemoryModel
from millrace.asr.planning import planner
from millrace.asr.planning.budgets import read_budgets
from millrace.asr.planning.cut import BatchBudget
from millrace.common import atomic, jsonl
from tests.asr import audio_tars

TRUE = MemoryModel(31.0, 0.055, 0.0011, 0.0004)
BUCKETS = {
    "b_0_3": (0.5, 2.9, 60),
    "b_7_10": (7.0, 9.9, 170),
    "b_20_30": (20.0, 29.8, 420),
    "b_30_inf": None,
}
KEY = {"device": "NVIDIA H200", "limit_gb": 130.0, "model": "abc", "torch": "2.13.0"}


def buckets(folder: Path) -> Path:
    rows = {}
    for name, facts in BUCKETS.items():
        shortest, longest, _ = facts or (1, 1, 0)
        count = 3000 // round(longest) if facts else 0
        row = {"tar_path": "a.tar", "tar_member_name": "a.flac", "offset": 0, "size": 1}
        row |= {"transcript": "x", "sample_id": 0}
        seconds = np.linspace(shortest, longest, count).tolist()
        rows[name] = [{**row, "duration_s": duration} for duration in seconds]
    return audio_tars.write_buckets(folder, rows, []) / "bucket_config.json"


def calibration(name: str, error: float = 0.0, **changes: object) -> dict:
    """The file of a bucket on a device that takes what TRUE says, up to `error`."""
    shortest, longest, characters = BUCKETS[name]
    rows = int((130.0 - 31.0) / TRUE.per_sample(longest, characters))
    trials = []
    for at, (n, sign) in enumerate(((rows // 2, 1), (rows, -1), (rows + rows // 3, 1))):
        peak = TRUE.predict(n, longest, characters) * (1 + sign * error)
        heaviest = {"step": 2, "rows": n, "seconds": longest, "characters": characters}
        peaks = {"peak_gb": peak, "step_peak_gb": peak} if at < 2 else {}
        trials.append({"rows": n, "fits": at < 2, "oom": at == 2, "heaviest": heaviest, **peaks})
    found = {
        "key": KEY,
        "bucket_key": {},
        "bucket": name,
        "rows": 3,
        "longest_seconds": longest,
        "shortest_seconds": shortest,
        "longest_characters": characters,
        "grad_acc": 1,
        "batch_size": rows,
        "limited_by": "memory",
        "search": {},
        "trials": trials,
        "peak_memory_gb": trials[1]["peak_gb"],
        "soak": {"peak_gb": 120.0},
    }
    return found | changes


FULL = ("b_7_10", "b_20_30", "b_0_3")
ALL = {name: calibration(name) for name in FULL}
ALL["b_30_inf"] = {"bucket": "b_30_inf", "empty": True}


def merge_files(folder: Path, calibrations: dict[str, dict]) -> tuple[int, Path]:
    """Write a file of each calibration and merge them, in this order."""
    for name, value in calibrations.items():
        atomic.write_json(folder / f"{name}.json", value)
    paths = [str(folder / f"{name}.json") for name in calibrations]
    config, output = buckets(folder / "buckets"), folder / "calibrated_bs.json"
    flags = [f"--bucket-config={config}", f"--output={output}", "--calibrations", *paths]
    return merge_calibration.main(flags), output


def merged(folder: Path, **changed: dict) -> dict:
    """calibrated_bs.json of ALL, some of them changed."""
    code, output = merge_files(folder, ALL | changed)
    assert code == 0
    return jsonl.read(output)


def budgets_of(folder: Path) -> dict[str, BatchBudget]:
    """What the planner takes of the merged file, by bucket."""
    budgets = read_budgets(folder / "buckets", folder / "calibrated_bs.json", 240.0)
    return dict(zip(BUCKETS, budgets, strict=True))


OFF = {name: calibration(name, error=0.01) for name in FULL}


def test_the_buckets_in_order_with_a_model_that_predicts_their_peaks(tmp_path):
    found = merged(tmp_path, **OFF)
    assert found["key"] == KEY and list(found["buckets"]) == sorted(BUCKETS)
    for name in FULL:
        bucket = found["buckets"][name]
        assert bucket["batch_size"] == calibration(name)["batch_size"] and bucket["grad_acc"] == 1
        assert bucket["peak_memory_gb"] == OFF[name]["peak_memory_gb"]
    assert found["memory_model"]["fixed_gb"] == pytest.approx(31, rel=0.1)
    assert 0 < found["memory_model"]["worst_under"] <= 0.02


@pytest.mark.parametrize(
    "empty, longer", [("b_30_inf", "b_20_30"), ("b_7_10", "b_20_30"), ("b_0_3", "b_7_10")]
)
def test_a_bucket_without_rows_has_the_size_of_the_next_longer_samples_or_of_the_longest(
    tmp_path, monkeypatch, empty, longer
):
    """So that a later sample in it is no surprise."""
    monkeypatch.setitem(BUCKETS, empty, None)
    found = merged(tmp_path, **{empty: {"bucket": empty, "empty": True}})["buckets"]
    assert found[empty]["batch_size"] == found[longer]["batch_size"]
    assert found[empty]["empty"] is True


def test_buckets_that_are_all_empty_are_refused(tmp_path, capsys, monkeypatch):
    for name in FULL:
        monkeypatch.setitem(BUCKETS, name, None)
    code, _ = merge_files(tmp_path, {name: {"bucket": name, "empty": True} for name in BUCKETS})
    assert code == 1 and "no bucket has any rows" in capsys.readouterr().err


def test_the_planner_takes_the_budgets_and_stays_below_the_limit(tmp_path):
    merged(tmp_path, **OFF)
    durations = []
    for facts in BUCKETS.values():
        shortest, longest, _ = facts or (0, 1, 0)
        rows = 20_000 if facts else 0
        durations.append(np.random.default_rng(1).uniform(shortest, longest, rows))
    plan = planner.plan_epoch(durations, list(budgets_of(tmp_path).values()), 42, 0, 2)
    counts = np.diff(plan.offsets)
    characters = np.array([f[2] if f else 0 for f in BUCKETS.values()])[plan.bucket]
    peaks = TRUE.fixed_gb + counts * TRUE.per_sample(plan.longest, characters)
    assert peaks.max() <= 130.0
    # And the budgets use what there is: full batches of every bucket come near the limit.
    for number in range(3):
        assert peaks[plan.bucket == number].max() > 0.93 * 130.0
    short = counts[(plan.bucket == 0) & (plan.longest < 1.5)].max()
    assert short > 1.3 * calibration("b_0_3")["batch_size"], "short samples make larger batches"


def test_the_memory_that_the_model_underestimates_stays_free(tmp_path):
    errors = {"b_0_3": 0.05, "b_7_10": -0.05, "b_20_30": 0.05}
    measured = {name: calibration(name, error=error) for name, error in errors.items()}
    found = merged(tmp_path, **measured)["memory_model"]
    terms = [found["per_sample_gb"][name] for name in TRUE.as_dict()["per_sample_gb"]]
    model = MemoryModel(found["fixed_gb"], *terms)
    peaks = []
    for name, budget in budgets_of(tmp_path).items():
        if BUCKETS[name]:
            *ends, characters = BUCKETS[name]
            lengths = np.linspace(*ends, 200)
            per_row = model.per_sample(lengths, characters)
            peaks.append((model.fixed_gb + budget.most_rows(lengths) * per_row).max())
    under = found["worst_under"]
    allowed = 130.0 * (1 - under - 0.01)
    assert under > 0.01
    assert 0.98 * allowed < max(peaks) <= allowed


def test_a_peak_after_the_allocator_gave_memory_back_says_nothing(tmp_path):
    retried = calibration("b_7_10")
    retried["trials"][0] |= {"retried": True, "peak_gb": 129.0, "step_peak_gb": 129.0}
    model = merged(tmp_path, b_7_10=retried)["memory_model"]
    assert model["fixed_gb"] == pytest.approx(31, rel=1e-3) and not model["worst_under"]


def wordy_first_trial() -> list[dict]:
    """The trials of b_7_10, the smaller batch with longer transcripts."""
    trials = calibration("b_7_10")["trials"]
    heaviest = trials[0]["heaviest"] | {"characters": 5_000}
    peak = TRUE.predict(heaviest["rows"], heaviest["seconds"], 5_000)
    return [trials[0] | {"heaviest": heaviest, "step_peak_gb": peak}, *trials[1:]]


@pytest.mark.parametrize(
    "row",
    [
        {"longest_characters": 20_000},
        {"longest_seconds": 7.5},
        {"trials": wordy_first_trial()},
    ],
)
def test_one_overlong_transcript_or_wrong_duration_does_not_thin_out_every_batch(tmp_path, row):
    """The trials have trained with it; of the other rows it says nothing."""
    merged(tmp_path, b_7_10=calibration("b_7_10", **row))
    (rows,) = budgets_of(tmp_path)["b_7_10"].most_rows(np.array([9.9]))
    assert rows > 0.9 * calibration("b_7_10")["batch_size"]


def test_rows_that_are_longer_than_those_of_the_trials_stay_below_the_limit(tmp_path):
    """The longest clips could not be read when the bucket was calibrated."""
    merged(tmp_path, b_7_10=calibration("b_7_10", longest_seconds=20.0))
    (rows,) = budgets_of(tmp_path)["b_7_10"].most_rows(np.array([20.0]))
    assert TRUE.predict(rows, 20.0, 170) <= 130.0


def test_the_order_of_the_files_does_not_matter(tmp_path):
    found = merged(tmp_path)
    first = (tmp_path / "calibrated_bs.json").read_bytes()
    each = {"per_second": 0.055, "per_second_squared": 0.0011, "per_character": 0.0004}
    assert found["memory_model"]["per_sample_gb"] == pytest.approx(each, rel=1e-4)
    _, output = merge_files(tmp_path, {name: ALL[name] for name in sorted(FULL)})
    assert output.read_bytes() == first


@pytest.mark.parametrize(
    "calibrations, message",
    [
        ({name: ALL[name] for name in ("b_7_10", "b_0_3")}, "without a calibration: b_20_30"),
        (
            {**ALL, "b_7_10": calibration("b_7_10", key={**KEY, "torch": "2.14.0"})},
            "another torch than",
        ),
        (
            {**ALL, "b_20_30": calibration("b_20_30", key={**KEY, "transformers": "5.23.0"})},
            "another key than b_7_10",
        ),
        ({**ALL, "x": calibration("b_0_3")}, "calibrated twice"),
        ({**ALL, "x": calibration("b_0_3", bucket="b_1_2")}, "unknown ones: b_1_2"),
        ({**ALL, "x": {"b_0_3": {"batch_size": 3}}}, "no whole calibration"),
        ({**ALL, "x": [1]}, "no whole calibration"),
        (
            {**ALL, "x": {k: v for k, v in ALL["b_0_3"].items() if k != "rows"}},
            "no whole calibration",
        ),
        ({"b_7_10": {"bucket": "b_7_10", "empty": True}}, "without a calibration: b_0_3, b_7_10"),
        ({name: calibration(name, trials=[]) for name in FULL}, "no trial has measured anything"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path, capsys, calibrations, message):
    code, output = merge_files(tmp_path, calibrations)
    log = capsys.readouterr().err
    assert code == 1 and message in log and not output.exists()
    assert "Traceback" not in log


def test_a_folder_with_a_merged_file_alone_is_left_as_it_is(tmp_path):
    config = buckets(tmp_path / "buckets")
    atomic.write_json(tmp_path / "calibrated_bs.json", {"merged": "elsewhere"})
    output = merge.merge_folder(config, tmp_path)
    assert jsonl.read(output) == {"merged": "elsewhere"}


def test_a_bucket_without_a_measured_trial_still_gets_its_rows(tmp_path):
    found = merged(tmp_path, b_7_10=calibration("b_7_10", trials=[]))["buckets"]["b_7_10"]
    assert found["batch_size"] == calibration("b_7_10")["batch_size"]
