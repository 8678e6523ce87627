"""The Trainers of Hugging Face and of Lightning: killed and resumed with other ranks, every row of
an epoch is trained on once, and fillers count nothing."""

from __future__ import annotations

import json
import math
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import TrainingArguments

from millrace.asr.planning.loader import RankLoader, open_loader
from millrace.asr.trainers.hf import PlannedTrainer
from millrace.asr.trainers.lightning import PlannedData
from millrace.asr.trainers.weights import send_weights, take_weight
from millrace.common import jsonl
from tests.asr.audio_tars import corpus
from tests.asr.trainers.killed_runs import Launch, Log, Tiny, inputs, trained_rows
from tests.forks import joined, start_ranks
from tests.refusals import refused

ROWS, EPOCHS, SECONDS = 72, 2, 0.7


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    quiet = {"report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    own = {"use_cpu": True, "num_train_epochs": EPOCHS, "save_steps": 2, **quiet, **options}
    return TrainingArguments(str(folder / "out"), **own)


def loader_of(folder: Path, workers: int = 0, **options: Any) -> RankLoader:
    chosen = {"seconds": SECONDS, "transform": inputs, **options}
    return open_loader(folder / "buckets", workers, **chosen)


def planned(folder: Path, loader: RankLoader, **options: Any) -> PlannedTrainer:
    return PlannedTrainer(Tiny(), arguments(folder, **options), train_dataset=loader)


def train_hf(accumulate: int, folder: Path, launch: Launch) -> None:
    log = Log(folder, launch.killed_at)

    class Watched(PlannedTrainer):
        def training_step(self, model, inputs, *args):
            log.write(self.state.global_step, inputs)
            return super().training_step(model, inputs, *args)

    chosen = arguments(folder, gradient_accumulation_steps=accumulate)
    loader = loader_of(folder, launch.workers)
    trainer = Watched(Tiny(), chosen, train_dataset=loader)
    trainer.train(resume_from_checkpoint=saved_hf(folder) > 0)
    loader.close()
    if launch.killed_at < 0:
        assert trainer.state.global_step == trainer.state.max_steps
        assert trainer.state.epoch == EPOCHS


def saved_hf(folder: Path) -> int:
    names = [path.name for path in (folder / "out").glob("checkpoint-*")]
    return max([int(name.partition("-")[2]) for name in names], default=0)


class Speech(pl.LightningModule):
    def __init__(self, log: Log | None = None) -> None:
        super().__init__()
        self.model, self.log_file = Tiny(), log

    def on_train_batch_start(self, batch, batch_idx):
        """Put back the weight that the adapter has taken, for the log."""
        weights = [call.weight for call in self.trainer.callbacks if hasattr(call, "weight")]
        if self.log_file:
            self.log_file.write(self.global_step, {**batch, "loss_weight": weights[0]})

    def training_step(self, batch):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(folder: Path, ranks: int, workers: int, module: pl.LightningModule, **options: Any) -> None:
    warnings.filterwarnings("ignore")
    strategy = "ddp" if ranks > 1 else "auto"
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    place = {"accelerator": "cpu", "devices": ranks, "strategy": strategy}
    checkpoint = options.pop("checkpoint", None)
    trainer = pl.Trainer(max_epochs=EPOCHS, **quiet, **place, **options)
    data = PlannedData(open_loader, folder / "buckets", workers, seconds=SECONDS, transform=inputs)
    trainer.fit(module, data, ckpt_path=checkpoint)
    data.loader.close()


def train_lightning(accumulate: int, folder: Path, launch: Launch) -> None:
    # Saved after every update, and so at the end of an epoch's last batch, too.
    save = ModelCheckpoint(folder / "out", "{step}", every_n_train_steps=1, save_top_k=-1)
    update = saved_lightning(folder)
    fit(
        folder,
        launch.ranks,
        launch.workers,
        Speech(Log(folder, launch.killed_at)),
        accumulate_grad_batches=accumulate,
        callbacks=[save],
        checkpoint=folder / f"out/step={update}.ckpt" if update else None,
    )


def saved_lightning(folder: Path) -> int:
    names = [path.stem for path in (folder / "out").glob("step=*.ckpt")]
    return max([int(name.partition("=")[2]) for name in names], default=0)


TRAINERS = {"hf": (train_hf, saved_hf), "lightning": (train_lightning, saved_lightning)}
# At updates in the first epoch, at its end (14 steps of 3 ranks), and in the second one.
LAUNCHES = [
    (1, [Launch(2, 5, workers=2), Launch(3)]),
    (1, [Launch(3, 14), Launch(1, 19), Launch(2, 24), Launch(3)]),
    (1, [Launch(3, 14), Launch(1)]),  # from an epoch's end to the end of a longer one
    (2, [Launch(1, 5), Launch(3, 9, workers=1), Launch(2)]),
    (3, [Launch(3, 4), Launch(2)]),
]


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    "accumulate, launches",
    [LAUNCHES[0], *(pytest.param(*case, marks=pytest.mark.long) for case in LAUNCHES[1:])],
)
def test_a_killed_run_goes_on_with_other_ranks_and_trains_on_every_row_once(
    tmp_path, trainer, accumulate, launches
):
    corpus(tmp_path, members=ROWS // 3)
    train, saved_update = TRAINERS[trainer]
    rows = trained_rows(tmp_path, launches, partial(train, accumulate), saved_update)
    assert rows == {epoch: list(range(ROWS)) for epoch in range(EPOCHS)}


def one_update(trainer: str, folder: Path, ranks: int) -> None:
    """One update of SGD on a corpus of one row: with two ranks, one of them has a filler."""
    torch.manual_seed(0)
    model = Speech()
    if trainer == "lightning":
        fit(folder, ranks, 0, model, max_steps=1, enable_checkpointing=False)
    else:
        options = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.5, "save_strategy": "no"}
        chosen = arguments(folder, max_grad_norm=0.0, lr_scheduler_type="constant", **options)
        loader = open_loader(folder / "buckets", transform=inputs)
        PlannedTrainer(model.model, chosen, train_dataset=loader).train()
    (folder / f"{ranks}.json").write_text(json.dumps(model.model.line.bias.tolist()))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_filler_gives_no_gradient(tmp_path, trainer):
    corpus(tmp_path, tars=1, members=1)
    for ranks in (1, 2):
        work = partial(one_update, trainer, tmp_path, ranks)
        assert set(joined(start_ranks(ranks, work, tmp_path / "errors.txt"))) == {0}
    torch.manual_seed(0)
    start = Tiny().line.bias.item()
    alone, halved = (jsonl.read(tmp_path / f"{ranks}.json")[0] for ranks in (1, 2))
    # DDP takes the mean over ranks; were the filler counted, it would be that of one rank.
    assert halved - start == pytest.approx((alone - start) / 2) != 0


def rates(trainer: PlannedTrainer) -> dict[int, float]:
    """The learning rate of each update."""
    lines = [line for line in trainer.state.log_history if "learning_rate" in line]
    return {line["step"]: line["learning_rate"] for line in lines}


@pytest.mark.parametrize("accumulate", [1, 5])
def test_a_resumed_run_has_the_rates_of_one_that_was_not_stopped(tmp_path, accumulate):
    corpus(tmp_path, members=ROWS // 3)
    trainers = []
    for resumed in (None, tmp_path / "out/checkpoint-10"):
        often = {"logging_steps": 1, "gradient_accumulation_steps": accumulate}
        trainer = planned(tmp_path, loader_of(tmp_path), **often)
        trainer.train(resume_from_checkpoint=resumed)
        trainers.append(rates(trainer))
    assert trainers[0] == trainers[1]
    trainer.train()  # anew
    assert rates(trainer) == trainers[0]
    # Linear, and 0 behind the last update.
    first, *_, last = trainers[0].values()
    assert len(trainers[0]) == max(trainers[0])
    assert last == pytest.approx(first / len(trainers[0]))


def test_a_run_of_so_many_updates_has_them_also_with_more_ranks_than_it_began_with(tmp_path):
    corpus(tmp_path, members=ROWS // 3)
    for updates, ranks in ((30, 1), (60, 3)):
        loader = loader_of(tmp_path, world_size=ranks, rank=0)
        loader.set_epoch(40)  # a later one than there are updates
        trainer = planned(tmp_path, loader, max_steps=updates, save_steps=30)
        trainer.train(resume_from_checkpoint=ranks > 1)
        assert trainer.state.global_step == updates


@pytest.mark.parametrize("length", [{"num_train_epochs": 2}, {"max_steps": 20}])
def test_a_second_call_of_train_begins_anew_and_rates_are_of_rows(tmp_path, length):
    corpus(tmp_path, members=ROWS // 3)
    loader = loader_of(tmp_path)
    accumulated = {"gradient_accumulation_steps": 3, "save_strategy": "no"}
    trainer = planned(tmp_path, loader, **accumulated, **length)
    updates = math.ceil(len(loader) / 3)
    for _ in range(2):
        metrics = trainer.train().metrics
        assert trainer.state.global_step == length.get("max_steps", 2 * updates)
        rows = ROWS * trainer.state.global_step / updates
        runtime = metrics["train_runtime"]
        assert metrics["train_samples_per_second"] == pytest.approx(rows / runtime, rel=0.01)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_weight_counts_also_where_the_outputs_are_asked_for(tmp_path, weight):
    trainer = planned(tmp_path, open_loader(corpus(tmp_path), transform=inputs))
    batch = {"x": torch.ones(2, 1), "loss_weight": weight}
    loss, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    assert loss == weight * outputs["loss"] and outputs["loss"] > 0


def test_the_weight_of_a_batch_leaves_it_where_it_is_taken():
    batch = {"x": 1, "loss_weight": 0.0}
    assert (take_weight(batch), batch) == (0.0, {"x": 1})
    assert take_weight({"x": 1}) == 1.0


def same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("transform", [same, None])
def test_a_transform_may_give_the_batch_itself_and_so_does_none(tmp_path, transform):
    loader = open_loader(corpus(tmp_path), transform=transform)
    send_weights(loader)
    batch = next(iter(loader))
    assert take_weight(batch) == 1.0
    batch.filler = True
    assert take_weight(batch) == 0.0


def as_tuple(batch: Any) -> tuple:
    return batch.audio, batch.lengths


def test_a_transform_without_a_place_for_the_weight_is_refused(tmp_path):
    trainer = planned(tmp_path, open_loader(corpus(tmp_path), transform=as_tuple))
    with refused("transform gives a tuple, with no place"):
        trainer.train()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_train_epochs": 1.5}, "num_train_epochs is 1.5.*Give whole epochs, or max_steps"),
        ({"transform": None}, "open_loader has no transform"),
        ({"train_dataset": [1, 2]}, "train_dataset is a list, and not what open_loader gives"),
        ({"eval_dataset": "loader"}, "eval_dataset is a loader.*Give a dataset of samples, or"),
        ({"eval_dataset": "loaders"}, "eval_dataset is a loader"),
    ],
)
def test_settings_that_change_which_rows_are_read_are_refused(tmp_path, options, message):
    loader = open_loader(corpus(tmp_path), transform=options.pop("transform", inputs))
    dataset = options.pop("train_dataset", loader)
    evaluated = {"": None, "loader": loader, "loaders": {"a": [], "dev": loader}}
    chosen = {"eval_dataset": evaluated[options.pop("eval_dataset", "")]}
    with refused(message):
        PlannedTrainer(Tiny(), arguments(tmp_path, **options), train_dataset=dataset, **chosen)


def test_ranks_that_share_a_model_are_refused_and_a_part_of_an_epoch_is_one_of_updates(
    tmp_path, monkeypatch
):
    loader = open_loader(corpus(tmp_path), transform=inputs)
    length = {"num_train_epochs": 1.5, "max_steps": 2}
    planned(tmp_path, loader, **length)
    for size in ("get_tp_size", "get_cp_size", "get_sp_size"):
        with monkeypatch.context() as patched:
            patched.setattr(PlannedTrainer, size, lambda trainer: 2)
            with refused("ranks that share a model"):
                planned(tmp_path, loader, **length)


def test_a_checkpoint_without_the_loaders_state_is_refused(tmp_path):
    corpus(tmp_path)
    trainer = planned(tmp_path, loader_of(tmp_path), max_steps=2)
    with pytest.raises(ValueError, match="No valid checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    trainer.train()
    state = tmp_path / "out/checkpoint-2/trainer_state.json"
    state.write_text(state.read_text().replace("millrace_loader", "another"))
    with refused(f"{re.escape(str(state))}: there is no state of the"):
        trainer.train(resume_from_checkpoint=True)
    state.write_text("{")
    with refused("this one is not whole"):
        trainer.train(resume_from_checkpoint=str(state.parent))
