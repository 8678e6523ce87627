"""The search for the batch size, its key, the worst case of a bucket, the soak's batches, and real trials."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.asr.calibration import key as calibration_key
from millrace.asr.calibration import trial, worst_case
from millrace.asr.calibration import trial as fresh_process
from millrace.asr.calibration.search import Search, backed_off_size, calibrate, largest
from millrace.asr.calibration.steps import SoakPlan
from millrace.asr.loading.row_table import RowTable
from millrace.asr.planning.cut import BatchBudget, batch_cost
from millrace.common.errors import MillraceError
from millrace.common.machine.memory import is_out_of_memory, says_out_of_memory
from tests.asr import calibration_corpus as corpus


class Device:
    """A device on which n rows take fixed + each * n ** power GB; above `crash` times the limit it only says
    so."""

    def __init__(
        self, limit: float, fixed: float = 1.0, each: float = 0.1, power: float = 1.0, crash: float = 1.5
    ):
        self.limit, self.fixed, self.each, self.power, self.crash = limit, fixed, each, power, crash
        self.tried: list[int] = []

    def peak(self, rows: int) -> float:
        return self.fixed + self.each * rows**self.power

    def __call__(self, rows: int) -> dict:
        self.tried.append(rows)
        peak, heaviest = self.peak(rows), {"step": 1, "rows": rows, "seconds": 9.9, "characters": 100}
        if peak > self.crash * self.limit:
            return {"oom": True, "steps": 0, "heaviest": heaviest, "message": "tried to allocate 2 GB"}
        facts = {"peak_gb": peak, "step_peak_gb": peak, "fixed_gb": self.fixed}
        return {"oom": False, "steps": 5, "heaviest": heaviest, **facts}


@given(
    limit=st.floats(2, 140),
    fixed=st.floats(0.5, 1.9),
    each=st.floats(1e-3, 5),
    power=st.sampled_from([0.8, 1.0, 1.3]),
    crash=st.sampled_from([1.0, 1.5, 100.0]),
    start=st.integers(1, 300),
    rows=st.integers(1, 5000),
)
def test_the_batch_fits_and_one_in_thirty_two_more_does_not(limit, fixed, each, power, crash, start, rows):
    device = Device(limit, fixed, each, power, crash)
    search = Search(limit, rows=rows, start_bs=start)
    if device.peak(1) > limit:
        with pytest.raises(MillraceError, match="a batch of 1 does not fit"):
            largest(search, device)
        return
    size = largest(search, device)
    assert device.peak(size) <= limit and size in device.tried
    assert size == search.most or device.peak(size + max(1, size // 32)) > limit
    assert len(device.tried) == len(set(device.tried)) <= 24, "each size once, and few of them"
    assert max(device.tried) <= rows


def test_a_line_through_the_peaks_saves_trials():
    device = Device(130.0, fixed=31.0, each=0.41)
    assert largest(Search(130.0, rows=10**6, start_bs=128), device) in range(235, 242)
    assert len(device.tried) <= 5


def test_a_soak_that_goes_wrong_backs_off_and_says_why():
    device, soaks = Device(10.0), []

    def soak(rows: int) -> dict:
        soaks.append(rows)
        answer = device(rows)
        if len(soaks) == 1:
            return {**answer, "oom": True, "message": "CUDA out of memory"}
        if len(soaks) == 2:
            return {**answer, "peak_gb": 10.5, "step_peak_gb": 10.5}
        return {**answer, "retried": len(soaks) == 3, "peak_gb": 9.9}

    found = calibrate(Search(10.0, rows=10**6), device, soak)
    first, second, third, last = soaks
    assert first > second > third > last == found["batch_size"] and found["limited_by"] == "soak"
    assert second == first * 9 // 10
    assert [entry["batch_size"] for entry in found["backed_off"]] == [first, second, third]
    whys = [entry["why"] for entry in found["backed_off"]]
    assert (
        "out of memory at step 1" in whys[0]
        and "above the limit of 10.000 GB" in whys[1]
        and "again" in whys[2]
    )
    assert found["peak_memory_gb"] == 9.9


def test_a_soak_that_never_lasts_is_an_error():
    device = Device(10.0)

    def soak(rows: int) -> dict:
        return {"oom": True, "steps": 1, "heaviest": {}, "message": "CUDA out of memory"}

    with pytest.raises(MillraceError, match="does not last"):
        calibrate(Search(10.0, rows=1000, min_bs=8), device, soak)


@given(st.integers(1, 4000), st.floats(1.0001, 3))
def test_backing_off_always_shrinks(size, over):
    search = Search(10.0, rows=5000)
    answer = {"oom": False, "peak_gb": 10.0 * over, "step_peak_gb": 10.0 * over, "fixed_gb": 2.0}
    assert backed_off_size(search, size, answer) < size
    assert backed_off_size(search, size, {**answer, "fixed_gb": 11.0}) < size
    # Setting up took most: steps of which nothing is known to be above the limit.
    assert backed_off_size(search, size, {**answer, "fixed_gb": 2.0, "step_peak_gb": 2.0}) < size


def test_memory_that_runs_out_before_the_first_batch_is_told():
    answer = {"oom": True, "steps": 0, "heaviest": {"step": 1}, "message": "tried to allocate 2 GB"}
    assert Search(10.0, rows=0).why_not(answer) == "out of memory at step 1: tried to allocate 2 GB"


def test_what_limits_the_batch_is_said():
    device = Device(1000.0)
    assert calibrate(Search(1000.0, rows=50), device, None)["limited_by"] == "rows"
    assert calibrate(Search(1000.0, rows=500, max_bs=64), device, None)["limited_by"] == "max_bs"
    assert calibrate(Search(10.0, rows=500), Device(10.0), None)["limited_by"] == "memory"


DEVICE = {"name": "NVIDIA H200", "memory_gb": 139.8}
OPTIONS = {"model": "ctc", "model_options": {"hidden": 64}}
SETTINGS = {"precision": "bf16-mixed", "gradient_checkpointing": 1, "grad_acc": 1}


def key(device=DEVICE, options=OPTIONS, settings=SETTINGS, limit=130.0, world=8, soak=200) -> dict:
    return calibration_key.calibration_key(device, options, settings, limit, world, soak)


def test_the_key_changes_with_all_that_decides_on_memory(tmp_path, monkeypatch):
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3_asr", "layers": 28}')
    (folder / "model.safetensors").write_bytes(b"weights")
    of_folder = {"model": str(folder), "model_options": {}}
    keys = [
        key(),
        key(device={**DEVICE, "name": "NVIDIA H100"}),
        key(device={**DEVICE, "memory_gb": 79.1}),
        key(options={**OPTIONS, "model_options": {"hidden": 65}}),
        key(options=of_folder),
        *(
            key(settings={**SETTINGS, name: value})
            for name, value in (("precision", "32-true"), ("grad_acc", 2))
        ),
        key(settings={**SETTINGS, "gradient_checkpointing": 0}),
        key(limit=120.0),
        key(world=16),
        key(soak=400),
    ]
    before = key(options=of_folder)
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert key(options=of_folder) == before, "weights do not change what a step costs"
    (folder / "config.json").write_text('{"model_type": "qwen3_asr", "layers": 29}')
    keys.append(key(options=of_folder))
    monkeypatch.setattr(calibration_key.metadata, "version", lambda package: "9.9")
    keys.append(key())
    texts = [json.dumps(found, sort_keys=True) for found in keys]
    assert len(set(texts)) == len(texts)


def test_only_what_holds_is_kept(tmp_path):
    path, of_bucket = (
        tmp_path / "b.json",
        {"bucket": "b_0_3", "longest_seconds": 2.9, "longest_characters": 40},
    )
    assert calibration_key.kept(path, key(), of_bucket, 100, 4096) is None
    found = {
        "key": key(),
        "bucket_key": of_bucket,
        "limited_by": "memory",
        "search": {"rows": 100, "max_bs": 64},
    }
    path.write_text(json.dumps(found))
    assert calibration_key.kept(path, key(), of_bucket, 200, 32) == found, "more rows, none of them longer"
    assert calibration_key.kept(path, key(world=2), of_bucket, 100, 64) is None
    assert calibration_key.kept(path, key(), {**of_bucket, "longest_seconds": 3.0}, 100, 64) is None
    for limit, more in (("rows", (101, 64)), ("max_bs", (100, 65))):
        path.write_text(json.dumps({**found, "limited_by": limit}))
        assert calibration_key.kept(path, key(), of_bucket, 100, 64) is not None
        assert calibration_key.kept(path, key(), of_bucket, *more) is None
    for damaged in ("", '{"key": ', "[]", "{}", '{"key": 3, "bucket_key": 4}', "null"):
        path.write_text(damaged)
        assert calibration_key.kept(path, key(), of_bucket, 100, 64) is None


def test_the_worst_case_is_the_longest_audio_and_the_longest_transcripts(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (4, 0.2, 0.3), "b_1_2": (7, 0.3, 0.5)})
    case = worst_case.find(config, "b_1_2", 3)
    assert (case.rows, case.number, case.audio_rows) == (7, 1, [10, 9, 8])
    assert case.text_rows[0] == 4 and case.longest_characters == len("number 4 said and more")
    table = RowTable.open(config.parent)
    assert case.longest_seconds == pytest.approx(table.rows([10])[0].duration_s, rel=1e-6)
    with pytest.raises(MillraceError, match=r"no bucket 'b_9_9'.*b_0_1, b_1_2"):
        worst_case.find(config, "b_9_9", 3)
    empty = pq.read_table(config.parent / "train/b_0_1.parquet").slice(0, 0)
    pq.write_table(empty, config.parent / "train/b_0_1.parquet")
    assert worst_case.empty_buckets(config) == {"b_0_1"}
    with pytest.raises(MillraceError, match="no rows"):
        worst_case.find(config, "b_0_1", 3)
    (config.parent / "train/b_0_1.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(MillraceError, match="cannot be read"):
        worst_case.find(config, "b_1_2", 3)
    for damaged in ("{}", "[]", '{"buckets": [{}]}', '{"buckets": [{"bucket_id": 3}]}', "{"):
        config.write_text(damaged)
        with pytest.raises(MillraceError, match="not a bucket configuration"):
            worst_case.find(config, "b_1_2", 3)


def test_missing_transcripts_have_no_characters(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (3, 0.2, 0.3)})
    path = config.parent / "train/b_0_1.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("transcript")
    pq.write_table(table.set_column(at, "transcript", pa.array([None, "é€𐍈", None], pa.string())), path)
    case = worst_case.find(config, "b_0_1", 9)
    assert (case.longest_characters, case.text_rows) == (3, [1, 0, 2])


@given(
    st.integers(1, 400), st.integers(1, 40), st.integers(1, 60), st.sampled_from([1, 2, 3]), st.integers(0, 5)
)
def test_a_soak_has_its_steps_its_rows_and_the_heaviest_batch(rows, size, steps, world, first):
    durations = np.random.default_rng(rows).uniform(7, 10, rows).astype(np.float32)
    plan = SoakPlan([durations], [BatchBudget(seconds=None, rows=size)], steps, 42, world, first)
    assert steps <= len(plan) <= steps + 1
    batches = [plan.batch(step, rank) - first for step in range(len(plan)) for rank in range(world)]
    assert all(0 < len(batch) <= size and batch.min() >= 0 and batch.max() < rows for batch in batches)
    weights = [float(batch_cost(len(batch), durations[batch].max())) for batch in batches]
    whole = plan.chosen[0][0]
    assert max(weights) >= 0.9999 * batch_cost(np.diff(whole.offsets), whole.longest).max() * (
        not whole.split_batches
    )
    again = SoakPlan([durations], [BatchBudget(seconds=None, rows=size)], steps, 42, world, first)
    assert all((plan.batch(step, 0) == again.batch(step, 0)).all() for step in range(len(plan)))


def test_a_soak_of_all_buckets_visits_all():
    durations = [np.full(400, 2.0, np.float32), np.full(3, 29.0, np.float32), np.zeros(0, np.float32)]
    plan = SoakPlan(durations, [BatchBudget(seconds=None, rows=4)] * 3, 20, 1)
    seen = np.concatenate([plan.batch(step, 0) for step in range(len(plan))])
    assert (seen < 400).any() and (seen >= 400).any()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_torch_says_so_by_its_own_class():
    import torch

    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert says_out_of_memory("terminate called after throwing an instance of 'std::bad_alloc'")


def test_a_trial_that_is_far_too_large_ends_in_order(tmp_path):
    """Some 10 GB are asked for, and a fraction of that may be had: the process says so and nothing else
    suffers."""
    config = corpus.write(tmp_path, {"b_0_1": (8, 0.9, 1.0)}, broken={7}, more=100)
    request = corpus.request(config, "b_0_1", "worst", 4.0, 3, 2)
    # As one of eight ranks: under DDP, with gradients that wait for a second batch.
    request |= {
        "world_size": 8,
        "settings": {**request["settings"], "grad_acc": 2, "precision": "bf16-mixed"},
    }
    small = fresh_process.ask(request)
    assert not small["oom"] and small["steps"] == 2
    assert small["heaviest"]["characters"] < 30, (
        "CTC has no room for 900 characters in a second: the clip's own text"
    )
    assert small["heaviest"]["rows"] == 3, "a clip that cannot be read is replaced by the longest that can"
    assert small["fixed_gb"] < small["step_peak_gb"] <= small["peak_gb"] < 4
    over = fresh_process.ask(corpus.request(config, "b_0_1", "worst", small["peak_gb"], 4000, 2))
    assert over["oom"] and "memory" in over["message"]


def test_an_estimate_grows_with_the_batch_as_the_real_step_does(tmp_path):
    """Of Qwen3-ASR, small: what a row takes, on shapes alone and measured."""
    config = corpus.write(tmp_path, {"b_1_2": (12, 1.8, 2.0)})
    each = {}
    for kind in ("worst", "estimate"):
        peaks = []
        for rows in (16, 64):
            request = corpus.request(config, "b_1_2", kind, 8.0, rows, 2)
            request["options"] |= {"model": "qwen3-asr-tiny", "model_options": {}}
            answer = fresh_process.ask(request) if kind == "worst" else trial.run(request)
            peaks.append(answer["step_peak_gb" if kind == "worst" else "allocated_gb"])
        each[kind] = (peaks[1] - peaks[0]) / 48 * 1024
    assert each["worst"] > 0.5, "MB a row"
    assert each["estimate"] == pytest.approx(each["worst"], rel=0.15)


def test_what_is_no_lack_of_memory_is_an_error(tmp_path):
    config = corpus.write(tmp_path, {"b_0_1": (2, 0.2, 0.3)}, broken={0, 1})
    request = corpus.request(config, "b_0_1", "worst", 4.0, 2, 2)
    with pytest.raises(MillraceError, match="none of the longest 2 samples can be used"):
        fresh_process.ask(request)
    request["options"]["model"] = str(tmp_path / "no model")
    with pytest.raises(MillraceError, match="no model"):
        fresh_process.ask(request)
    request["options"] = {"unknown": 1}
    with pytest.raises(MillraceError, match="This is no lack of memory"):
        fresh_process.ask(request)


def test_the_environment_of_a_trial_is_that_of_one_process(monkeypatch):
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
        "MASTER_PORT",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    found = fresh_process.environment()
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "MASTER_PORT"} & set(found)
    assert (
        found["CUDA_VISIBLE_DEVICES"] == "3"
        and "expandable_segments:True" in found["PYTORCH_CUDA_ALLOC_CONF"]
    )
    assert found["PYTHONPATH"].split(":")[0] == str(Path(fresh_process.ROOT))
