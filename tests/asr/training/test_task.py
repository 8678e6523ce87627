"""The ASR task on real tars: what it evaluates with and on, what makes it another run, and what takes no
part."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from millrace.asr.models.files import model_digest
from millrace.asr.planning import budgets
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.common.training.ranks import Exchange
from millrace.common.training.settings import LoopSettings
from tests.asr import audio_tars

SIZES = {"hidden": 8, "channels": 2}


def write(folder: Path, text: str | None = None, **corpus: object) -> Path:
    """Two buckets of twelve clips each, the first of which is dev too; `text` is that of the second row of
    both."""
    buckets = audio_tars.corpus(folder, **corpus)
    write_splits(buckets, dev="train/b_0_3.parquet")
    # The clips last a tenth of a second: two characters are what CTC has room for.
    for path in sorted((buckets / "train").iterdir()):
        table = pq.read_table(path)
        rows = [{**row, "transcript": f"a{number % 3}"} for number, row in enumerate(table.to_pylist())]
        rows[1]["transcript"] = text or rows[1]["transcript"]
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, store_schema=False)
    return buckets


def write_splits(buckets: Path, **paths: str) -> None:
    config = json.loads((buckets / "bucket_config.json").read_bytes())
    splits = {split: {"path": path} for split, path in paths.items()}
    atomic.write_json(buckets / "bucket_config.json", {**config, "splits": splits})


def task_of(folder: Path, **options: object) -> AsrTask:
    return AsrTask(TrainOptions(str(folder), model_options=SIZES, **options))


class OneOf(Exchange):
    """One of two ranks, seen alone: `parts` keeps what it would send to the other."""

    def __init__(self) -> None:
        super().__init__(1)
        self.world_size, self.parts = 2, []

    def gathered(self, value: object) -> list[object]:
        self.parts.append(value)
        return [value]


def evaluated(task: AsrTask, exchange: Exchange, rank: int = 0) -> dict[str, float]:
    torch.manual_seed(0)
    model = task.build_model().eval()
    with torch.no_grad():
        return task.evaluate_split(model, torch.device("cpu"), "dev", exchange, rank)


def test_ranks_share_the_evaluation(tmp_path):
    task = task_of(write(tmp_path), batch_seconds=0.7)
    alone, exchange = evaluated(task, Exchange(1)), OneOf()
    for rank in (0, 1):
        evaluated(task, exchange, rank)
    loss, units, samples = (sum(part[0][place] for part in exchange.parts) for place in range(3))
    assert samples == alone["samples"] == 12 and all(part[0][2] > 0 for part in exchange.parts)
    assert loss / units == pytest.approx(alone["loss"], rel=1e-5)
    errors = [part[1] for part in exchange.parts]
    edits, characters = (sum(getattr(e, name) for e in errors) for name in ("character_edits", "characters"))
    assert edits / characters == pytest.approx(alone["cer"])


def test_the_test_split_is_evaluated_in_the_precision_of_the_run(tmp_path):
    folder = write(tmp_path)
    write_splits(folder, dev="train/b_0_3.parquet", test="train/b_0_3.parquet")
    task = task_of(folder)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dev = evaluated(task, Exchange(1))
    torch.manual_seed(0)
    model = task.build_model()
    assert task.test(model, "bf16-mixed") == dev != task.test(model, "32-true")


def test_what_cannot_be_used_in_dev_is_counted_and_stops_nothing(tmp_path):
    found = evaluated(task_of(write(tmp_path, replace={"t0_0.wav": b"no audio"})), Exchange(1))
    assert (found["samples"], found["left_out"]) == (11, 1)


def test_a_damaged_dev_split_is_an_error_and_a_missing_one_is_not(tmp_path):
    folder = write(tmp_path)
    task = task_of(folder)
    assert task.held_out("test") is None and task.held_out("dev") is not None
    write_splits(folder, dev="dev.parquet")
    with pytest.raises(MillraceError, match=r"dev\.parquet"):
        task_of(folder).held_out("dev")


def test_batches_of_all_lengths_hold_no_more_than_the_longest_clips_may(tmp_path):
    """Calibrated rows of short clips say nothing of long ones, which dev and the baseline put beside
    them."""
    folder, calibrated = write(tmp_path), tmp_path / "calibrated_bs.json"
    atomic.write_json(calibrated, {"b_0_3": {"batch_size": 900}, "b_3_5": {"batch_size": 2}})
    task = task_of(folder, calibration=str(calibrated))
    longest = float(task.durations[1].max())
    assert task.fixed_batch_size() == 2
    assert task.mixed_budget().seconds == pytest.approx(2 * longest)
    # Rows that only cap short clips do not count where cost limits.
    budget = {
        "b_0_3": {"budget": {"seconds": 1.0, "rows": 500}},
        "b_3_5": {"budget": {"cost": 3 * longest * 1.1}},
    }
    atomic.write_json(calibrated, {"buckets": budget})
    task = task_of(folder, calibration=str(calibrated))
    assert task.fixed_batch_size() == 3
    assert task_of(folder, batch_seconds=10 * longest).fixed_batch_size() == 10


def test_other_transcripts_make_it_another_run(tmp_path):
    """As many other characters would fit the same weights, and mean something else."""
    states = [task_of(write(tmp_path / name, text)).state_dict() for name, text in (("a", "q"), ("b", "x"))]
    assert states[0] != states[1]
    task = task_of(tmp_path / "a/buckets")
    with pytest.raises(MillraceError, match="other buckets, transcripts"):
        task.load_state_dict(states[1])


def test_a_sample_without_part_in_the_loss_is_logged_and_counted(tmp_path, caplog):
    task = task_of(write(tmp_path, "far too many words " * 90), num_workers=0, batch_seconds=1000)
    task.build_model()
    with caplog.at_level(logging.WARNING, "millrace"):
        batches = [batch for epoch in (0, 1) for batch in task.loader(epoch, 0, 0, 1)]
    assert sum(batch.counts.get("unlearned_text_too_long", 0) for batch in batches) == 2 * 2
    assert caplog.text.count("takes no part in the loss: text too long") == 2


def test_the_ideal_loader_reads_once_for_all_epochs(tmp_path):
    task = task_of(write(tmp_path), num_workers=0, batch_seconds=1.0, loader="ideal")
    for epoch in (0, 1):
        plan = task.plan(epoch, 1)
        batches = task.batches(plan, 0, 0)
        assert len(list(batches)) == len(plan) and batches.bad.planned == 24


def test_a_calibration_for_another_training_is_refused(tmp_path, caplog):
    path, settings = tmp_path / "calibrated_bs.json", LoopSettings(precision="bf16-mixed", grad_acc=2)
    key = {"model": model_digest("ctc", SIZES), "precision": "bf16-mixed"}
    key |= {"gradient_checkpointing": 0, "grad_acc": 1}
    atomic.write_json(path, {"key": key, "buckets": {}})
    budgets.check_calibration(path, "ctc", SIZES, settings, 1)
    assert "calibrated with grad_acc 1" in caplog.text
    for changed in ({"gradient_checkpointing": 1}, {"precision": "32-true"}, {"model": "other"}):
        atomic.write_json(path, {"key": {**key, **changed}, "buckets": {}})
        with pytest.raises(MillraceError, match=f"another {next(iter(changed))}"):
            budgets.check_calibration(path, "ctc", SIZES, settings, 1)
    atomic.write_json(path, {"b_0_3": {"batch_size": 3}})  # the original script's form
    budgets.check_calibration(path, "ctc", SIZES, settings, 8)


def test_a_filler_counts_no_samples(tmp_path):
    """Its rows are those of another batch: the loop counts the samples, and logs the ids, of batch_ids."""
    buckets, world_size = write(tmp_path), 5  # which does not divide 24 batches of one clip
    ids, fillers = [], 0
    for rank in range(world_size):
        task = task_of(buckets, batch_seconds=0.05)
        task.build_model()
        for batch in task.loader(0, 0, rank, world_size):
            ids += task.batch_ids(batch).tolist()
            fillers += batch.filler
            assert len(batch) == 1
    assert fillers == 1 and len(ids) == len(set(ids)) == 24
