"""The ASR task on real tars: what it evaluates with and on, what makes it another run, what takes
no part."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from millrace.asr.evaluation import hypotheses
from millrace.asr.models.folder import model_digest
from millrace.asr.planning import budgets
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask, audited, audited_validation
from millrace.common import atomic, jsonl
from millrace.common.machine import memory
from millrace.common.training.ranks import Exchange
from millrace.common.training.settings import LoopSettings
from tests.asr import audio_tars
from tests.refusals import refused

SIZES = {"hidden": 8, "channels": 2}


def write(folder: Path, text: str | None = None, **corpus: object) -> Path:
    """Two buckets of twelve clips each, the first is dev too; `text` is that of the second row of
    both."""
    buckets = audio_tars.corpus(folder, **corpus)
    write_splits(buckets, dev="train/b_0_3.parquet")
    # The clips last a tenth of a second: two characters are what CTC has room for.
    for path in sorted((buckets / "train").iterdir()):
        table = pq.read_table(path)
        rows = [
            {**row, "transcript": f"a{number % 3}"} for number, row in enumerate(table.to_pylist())
        ]
        rows[1]["transcript"] = text or rows[1]["transcript"]
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, store_schema=False)
    return buckets


def write_splits(buckets: Path, **paths: str) -> None:
    config = jsonl.read(buckets / "bucket_config.json")
    config["splits"] = {split: {"path": path} for split, path in paths.items()}
    atomic.write_json(buckets / "bucket_config.json", config)


def task_of(folder: Path, **options: object) -> AsrTask:
    return AsrTask(TrainOptions(str(folder), model_options=SIZES, **options))


class OneOf:
    """The Exchange of one of two ranks: `parts` keeps what it sends, `others` is what the other
    sends."""

    def __init__(self, others: Sequence[object] = ()) -> None:
        self.world_size, self.parts, self.others = 2, [], others

    def gathered(self, value: object) -> list[object]:
        self.parts.append(value)
        return [*self.others, value]


def evaluated(task: AsrTask, exchange: Exchange | OneOf, rank: int = 0) -> dict[str, float]:
    torch.manual_seed(0)
    model = task.build_model().eval()
    with torch.no_grad():
        return task.evaluate_split(model, torch.device("cpu"), "dev", exchange, rank)


def test_ranks_share_the_evaluation_and_each_has_the_figures_of_all(tmp_path):
    task, exchange = task_of(write(tmp_path), batch_seconds=0.7), OneOf()
    alone = evaluated(task, Exchange(1))
    texts = {sample.sample_id: sample.hypothesis for sample in task.transcribed["dev"]}
    evaluated(task, exchange, 0)
    assert 0 < len(exchange.parts[0][1]) < 12
    other = OneOf(exchange.parts)
    together = evaluated(task, other, 1)
    assert together == pytest.approx(alone, rel=1e-5)
    losses, units, _ = zip(*(sums for sums, _ in exchange.parts + other.parts), strict=True)
    assert together["loss"] == pytest.approx(sum(losses) / sum(units))
    # A rank may write the hypotheses of all: each sample once.
    written = task.transcribed["dev"]
    assert (
        len(written) == 12 and {sample.sample_id: sample.hypothesis for sample in written} == texts
    )


def test_a_filler_is_not_evaluated(tmp_path):
    task, exchange = task_of(write(tmp_path), eval_samples=1), OneOf()
    for rank in (0, 1):
        evaluated(task, exchange, rank)
    assert sorted(len(written) for _, written in exchange.parts) == [0, 1]


def test_the_hypotheses_around_an_unusable_clip_keep_their_own_keys(tmp_path):
    """Row 4 of dev is missing among what was transcribed: the keys behind it do not move up."""
    folder = write(tmp_path, replace={"t2_8.wav": b"no audio"})
    task = task_of(folder, batch_seconds=0.7)
    evaluated(task, Exchange(1))
    dev = folder / "train/b_0_3.parquet"
    names = {row["sample_id"]: row["tar_member_name"] for row in pq.read_table(dev).to_pylist()}
    lines = hypotheses.of_split("dev", dev, task.transcribed["dev"])
    assert [line["key"] for line in lines] == [f"t{n % 3}_{n}" for n in range(0, 24, 2) if n != 8]
    assert all(names[line["sample_id"]].startswith(line["key"] + ".") for line in lines)


def test_the_test_split_is_evaluated_in_the_precision_of_the_run(tmp_path):
    write_splits(write(tmp_path), dev="train/b_0_3.parquet", test="train/b_0_3.parquet")
    task = task_of(tmp_path / "buckets")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dev = evaluated(task, Exchange(1))
    torch.manual_seed(0)
    model = task.build_model()
    assert task.test(model, "bf16-mixed") == dev != task.test(model, "32-true")


def test_what_cannot_be_used_in_dev_is_counted_but_a_damaged_split_is_an_error(tmp_path):
    # Most of dev: a long training must not fail for them.
    keys = [f"t{n % 3}_{n}" for n in range(0, 16, 2)]
    unusable = {f"{key}.{kind}": b"no audio" for key in keys for kind in ("wav", "flac")}
    task = task_of(folder := write(tmp_path, replace=unusable))
    figures = evaluated(task, Exchange(1))
    assert (figures["samples"], figures["left_out"]) == (12 - len(keys), len(keys))
    assert task.held_out("test") is None and task.held_out("dev") is not None
    write_splits(folder, dev="dev.parquet")
    with refused(r"dev\.parquet"):
        task_of(folder).held_out("dev")


def test_batches_of_all_lengths_hold_no_more_than_the_longest_clips_may(tmp_path):
    """Calibrated rows of short clips say nothing of long ones, which are beside them in dev."""
    folder, calibrated = write(tmp_path), tmp_path / "calibrated_bs.json"
    atomic.write_json(calibrated, {"b_0_3": {"batch_size": 900}, "b_3_5": {"batch_size": 2}})
    task = task_of(folder, calibration=str(calibrated))
    longest = float(task.durations[1].max())
    assert task.fixed_batch_size() == 2 and task.mixed_budget().seconds == pytest.approx(
        2 * longest
    )
    # Rows that only cap short clips do not count where cost limits.
    limits = {"b_0_3": {"seconds": 1.0, "rows": 500}, "b_3_5": {"cost": 3 * longest * 1.1}}
    atomic.write_json(
        calibrated, {"buckets": {name: {"budget": of} for name, of in limits.items()}}
    )
    assert task_of(folder, calibration=str(calibrated)).fixed_batch_size() == 3
    assert task_of(folder, batch_seconds=10 * longest).fixed_batch_size() == 10


def test_other_sound_of_the_same_size_makes_it_another_run_and_a_copy_elsewhere_does_not(tmp_path):
    state = task_of(write(tmp_path / "here")).state_dict()
    task_of(write(tmp_path / "there")).load_state_dict(state)
    sound = {"t0_0.wav": audio_tars.encoded(audio_tars.noise(1000, 99), "WAV")}
    with refused("other samples"):
        task_of(write(tmp_path / "other", replace=sound)).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        *({"batch_seconds": 9.0}, {"window": 7}, {"seed": 7}, {"loader": "every-bucket"}),
        *({"row": {"duration_s": 0.5}}, {"row": {"language": "fi"}}, {"row": {"transcript": "q"}}),
    ],
)
def test_what_changes_the_plan_makes_it_another_run(tmp_path, change):
    state = task_of(folder := write(tmp_path)).state_dict()
    task_of(folder, eval_samples=3, num_workers=0).load_state_dict(state)
    if other := change.pop("row", {}):
        path = folder / "train/b_3_5.parquet"
        table = pq.read_table(path)
        rows = [{**row, **other} for row in table.to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, store_schema=False)
    with refused("other samples, transcripts, budgets, window, loader or seed"):
        task_of(folder, **change).load_state_dict(state)


def test_the_rest_of_an_epoch_is_planned_anew_for_other_ranks(tmp_path):
    """With the same epoch and number of ranks as a plan that is kept: what was done decides."""
    folder = write(tmp_path)
    task = task_of(folder, batch_seconds=0.7)
    whole, rest = task.plan(0, 2), task.plan(0, 2, [(1, 3)])
    done = task.plan(0, 1)
    seen = {int(row) for step in range(3) for row in done.batch(step, 0)}
    assert len(whole.rows) == 24 and set(rest.rows.tolist()) == set(range(24)) - seen
    check = task_of(folder, batch_seconds=0.7, loader="every-bucket")
    with refused("cannot go on with another number of ranks"):
        check.plan(0, 2, [(1, 3)])


def test_the_first_rows_of_dev_are_evaluated(tmp_path):
    folder = write(tmp_path)
    plain = task_of(folder, eval_samples=5, num_workers=0)
    figures = evaluated(plain, Exchange(1))
    assert figures["samples"] == 5 and "left_out" not in figures
    assert sorted(sample.row for sample in plain.transcribed["dev"]) == [0, 1, 2, 3, 4]


def test_the_best_checkpoint_is_that_of_the_lowest_character_error_rate(tmp_path):
    task = task_of(write(tmp_path))
    assert task.score({"loss": 3.0, "cer": 0.25, "wer": 0.75}) == 0.25
    assert task.score({"samples": 0}) is None, "without dev there is no best one"


def test_a_sample_without_part_in_the_loss_is_logged_and_counted(tmp_path, caplog):
    task = task_of(write(tmp_path, "far too many words " * 90), num_workers=0, batch_seconds=1000)
    task.build_model()
    with caplog.at_level(logging.WARNING, "millrace"):
        batches = [batch for epoch in (0, 1) for batch in task.loader(epoch, 0, 0, 1)]
    assert sum(batch.counts.get("unlearned_text_too_long", 0) for batch in batches) == 2 * 2
    said = re.compile(r"\S+\.flac in /\S+\.tar takes no part in the loss: text too long")
    assert sum(bool(said.fullmatch(line)) for line in caplog.messages) == 2


def test_a_calibration_for_another_training_is_refused(tmp_path, caplog):
    path = tmp_path / "calibrated_bs.json"
    settings = LoopSettings(precision="bf16-mixed", grad_acc=2)
    key = {"precision": "bf16-mixed", "gradient_checkpointing": 0}
    key["model"] = model_digest("ctc", SIZES)

    def check(calibration: dict) -> None:
        atomic.write_json(path, calibration)
        budgets.check_calibration(path, "ctc", SIZES, settings, 1)

    check({"key": {**key, "grad_acc": 1}})
    assert "calibrated with grad_acc 1" in caplog.text
    caplog.clear()
    check({"key": {**key, "grad_acc": 2}})
    assert not caplog.text
    other = {"gradient_checkpointing": 1, "precision": "32-true", "model": "other"}
    for name, value in other.items():
        with refused(f"another {name}"):
            check({"key": {**key, name: value}})
    check({"b_0_3": {"batch_size": 3}})  # the original script's form


@pytest.mark.parametrize("loader", ["bucketed", "baseline"])
def test_training_ends_where_more_samples_cannot_be_used_than_allowed(tmp_path, loader):
    bad = dict.fromkeys(("t0_0.wav", "t1_1.flac", "t2_2.flac"), b"no audio")
    folder = write(tmp_path, replace=bad)

    def trained_on(max_bad_fraction: float) -> int:
        options = {"loader": loader, "num_workers": 0, "batch_seconds": 1000}
        task = task_of(folder, max_bad_fraction=max_bad_fraction, **options)
        task.build_model()
        batches = list(task.loader(0, 0, 0, 1))
        assert (
            sum(count for b in batches for name, count in b.counts.items() if "unusable" in name)
            == 3
        )
        return sum(len(task.batch_ids(batch)) for batch in batches)

    assert trained_on(0.2) == 21
    with refused("max_bad_fraction"):
        trained_on(0.1)


def test_the_loss_of_a_step_is_the_mean_over_its_units(tmp_path):
    task = task_of(write(tmp_path))
    model = task.build_model().eval()
    batch = next(iter(task.loader(0, 0, 0, 1)))
    total, units = model(batch)
    loss, weight, _ = task.training_step(model, batch)
    assert units > 1 and weight == units and float(loss) == pytest.approx(float(total) / units)


def test_a_vocabulary_is_of_all_rows_of_a_small_corpus(tmp_path):
    class Numbered:
        def __len__(self) -> int:
            return 2500

        def rows(self, numbers: Sequence[int]) -> list[SimpleNamespace]:
            assert len(numbers) <= 1000, "a part is in memory at a time"
            return [SimpleNamespace(transcript=str(number)) for number in numbers]

    task = task_of(write(tmp_path))
    task.table = Numbered()
    assert list(task._texts()) == [str(number) for number in range(2500)]


@pytest.mark.parametrize(
    "calibration, device, returned",
    [("calibrated_bs.json", "cpu", [1]), ("", "cpu", []), ("calibrated_bs.json", "cuda", [])],
)
def test_memory_goes_back_where_it_was_calibrated_on_the_host(
    tmp_path, monkeypatch, calibration, device, returned
):
    calls = []
    monkeypatch.setattr(memory, "return_freed_memory", lambda: calls.append(1))
    task = AsrTask(TrainOptions(str(write(tmp_path)), model_options=SIZES), device)
    task.options = dataclasses.replace(task.options, calibration=calibration)
    task.batch_loader(0)
    assert calls == returned


def test_a_filler_counts_no_samples(tmp_path):
    """Its rows are those of another batch: the loop counts the samples, and logs the ids, of
    batch_ids."""
    # Five ranks do not divide 24 batches of one clip.
    buckets, world_size, ids, fillers = write(tmp_path), 5, [], 0
    for rank in range(world_size):
        task = task_of(buckets, batch_seconds=0.05)
        model = task.build_model()
        for batch in task.loader(0, 0, rank, world_size):
            _, weight, _ = task.training_step(model, batch)
            assert weight == (0 if batch.filler else 2), "the characters of its clip"
            ids += task.batch_ids(batch).tolist()
            fillers += batch.filler and len(batch) == 1
    assert fillers == 1 and len(ids) == len(set(ids)) == 24


def test_ranks_of_the_baseline_share_no_sample_and_begin_where_they_are_told(tmp_path):
    buckets, ids = write(tmp_path), []
    for rank in (0, 1):
        task = task_of(buckets, batch_seconds=0.05, loader="baseline")
        task.build_model()
        for batch in task.loader(0, 3, rank, 2):
            ids += task.batch_ids(batch).tolist()
    assert len(ids) == len(set(ids)) == 24 - 2 * 3


@pytest.mark.parametrize("device, pins", [("cpu", False), ("cuda", True), ("auto", True)])
def test_batches_are_pinned_only_where_a_gpu_trains(tmp_path, monkeypatch, device, pins):
    """Pinning makes a context on the first GPU, and takes its memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    task = AsrTask(TrainOptions(str(write(tmp_path)), model_options=SIZES), device)
    assert task.batch_loader(0).data_loader.pin_memory == pins


def test_an_audit_of_a_setting_that_there_is_not_is_refused():
    with refused(r"there is no setting speed\. Known are .*num_workers"):
        audited("buckets", speed=1)


def test_the_audit_knows_the_samples_that_are_trained_and_evaluated_on(tmp_path):
    folder = write(tmp_path)
    ids = []
    for path in sorted((folder / "train").iterdir()):
        ids += map(str, pq.read_table(path)["sample_id"].to_pylist())
    assert list(audited(str(folder), model_options=SIZES).recordings()) == ids
    assert list(audited_validation(str(folder)).recordings()) == ids[:12]
