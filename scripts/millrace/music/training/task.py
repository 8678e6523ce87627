"""Version matching as a task of the training loop: model, loss, validation; when the learning rate
falls and the run ends, and which checkpoints are written."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.loading.loader import BatchLoader
from millrace.common.loading.task_loader import HeldOut, TaskLoader, TaskModel
from millrace.common.training import devices
from millrace.common.training.checkpoint import save_state
from millrace.common.training.task import Spans, Task
from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGURATION
from millrace.music.models.published import load_published
from millrace.music.sampling.dataset import CliqueDataset, Drawing, TrackBatch
from millrace.music.sampling.plan import AnchorPlan, Blocks, plan_anchors
from millrace.music.sampling.windows import Geometry
from millrace.music.training import conf as configuration
from millrace.music.training.augment import Augmentations
from millrace.music.training.conf import Conf, Monitor
from millrace.music.training.distances import parse_reduction
from millrace.music.training.evaluation import Features, Share, embed, scored
from millrace.music.training.loss import contrastive_loss
from millrace.music.training.metrics import means

_LOWERED = 0.2  # by which the schedule multiplies the rate


class VersionTask(Task):
    """Trains on anchors and versions, validates by retrieval."""

    every_epoch = True

    def __init__(self, conf: Conf, folder: Path) -> None:
        self.conf = conf
        self.folder = folder
        self.config = conf.model
        self.features = Features(conf, ("train", "valid"))
        parse_reduction(self.config.loss_redux_pos)
        parse_reduction(self.config.loss_redux_neg)
        self.augment = Augmentations(conf.section("augmentations"))
        self.epochs_done = 0
        self._best = math.inf
        self._monitor = Monitor(conf["training.monitor.quantity"])
        # torch's own, of a rate of 1: that of the loop is multiplied by it. A flat one never sees a
        # value.
        self._rate = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._plateau = self._schedule()

    def _schedule(self) -> ReduceLROnPlateau | None:
        """What lowers the rate of `plateau_N` after N epochs without a better value; None of a flat
        one."""
        schedule, _, patience = self.conf["training.optim.sched"].partition("_")
        if schedule != "plateau":
            return None
        waited = int(patience or 0) - 1
        return ReduceLROnPlateau(
            self._rate, self._monitor.mode, factor=_LOWERED, patience=waited, eps=0
        )

    def geometry(self, hop: float) -> Geometry:
        """Windows of data.audiolen seconds, in shingles every `hop` seconds."""
        frame = self.config.frame_seconds
        length = round(self.conf["data.audiolen"] / frame)
        longest = round(self.conf["data.maxlen"] / frame)
        step = round(hop / frame)
        return Geometry(length, self.config.shingle_frames, step, longest)

    def build_model(self) -> Clews:
        """A new model, or that of `checkpoint`."""
        start = self.conf["checkpoint"]
        model = self._published(start) if start else Clews(self.config)
        log.info("clews: %.1f million parameters", model.parameter_count / 1e6)
        return model

    def _published(self, checkpoint: str) -> Clews:
        """The model of a checkpoint. Raises MillraceError for one of another configuration."""
        model = load_published(checkpoint)
        if model.config != self.config:
            problem = "the model is another one than the configuration's"
            remedy = f"Set the model section to that of the {CONFIGURATION} beside it"
            raise MillraceError(problem, checkpoint, remedy)
        log.info("weights of %s; optimiser and epochs begin anew", checkpoint)
        return model

    def plan(self, epoch: int, world_size: int, spans: Spans = ()) -> AnchorPlan:
        """The plan of an epoch, or of its rest after `spans`."""
        train = self.features.cliques["train"]
        blocks = Blocks(
            size=self.conf["training.batchsize"],
            seed=self.conf["seed"],
            limit=self.conf["limit_batches"],
        )
        return plan_anchors(train, blocks, epoch, world_size, spans)

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()
    ) -> Iterator[TrackBatch]:
        """The batches of `plan`, by workers that outlive the epoch if data.persistent_workers is
        set."""
        plan = self.plan(epoch, world_size, spans)
        if spans or self._loader is None:
            log.info(
                "epoch %d: %s of %d anchors on each of %s; %d anchors are left out",
                epoch + 1,
                counted(len(plan), "step"),
                self.conf["training.batchsize"],
                counted(world_size, "rank"),
                plan.left_out,
            )
        loader = self.batch_loader(rank)
        loader.plan = plan
        loader.start_step = start_step
        self.epochs_done = epoch + 1
        yield from loader
        if not self.conf["data.persistent_workers"]:
            loader.close()

    def batch_loader(self, rank: int) -> BatchLoader:
        """What reads the batches of all plans on this rank."""
        if self._loader is None:
            self._loader = self._new_loader(rank)
        return self._loader

    def _new_loader(self, rank: int) -> BatchLoader:
        conf = self.conf
        drawing = Drawing(
            seed=conf["seed"],
            n_per_class=conf["data.n_per_class"],
            p_samesong=conf["data.p_samesong"],
        )
        dataset = CliqueDataset(
            self.features.cliques["train"],
            self.features.reader,
            self.geometry(self.config.shingling_hop),
            drawing,
            rank,
            augment=self.augment,
        )
        workers = conf["data.nworkers"]
        # Pinning makes a context on a GPU, also where the CPU trains.
        is_on_gpu = devices.kind_of(conf["fabric.accelerator"]) == "cuda"
        loader = BatchLoader(
            dataset,
            workers,
            max_bad_fraction=conf["data.max_missing_fraction"],
            start_method=conf["data.mp_context"] if workers else None,
            pin_memory=conf["data.pin_memory"] and is_on_gpu,
            prefetch_batches=conf["data.prefetch_factor"],
        )
        loader.bad.key = "data.max_missing_fraction"
        return loader

    def batch_ids(self, batch: TrackBatch) -> np.ndarray:
        """int64 ids of the recordings."""
        return batch.ii.numpy()

    def training_step(
        self, model: Clews, batch: TrackBatch
    ) -> tuple[Tensor, float, Mapping[str, float]]:
        """(Loss, tracks, counts)."""
        loss = contrastive_loss(model(batch.x), batch.cc, batch.ii, self.config)
        return loss, float(len(batch.ii)), {"replaced": len(batch.bad)}

    def evaluate(self, model: Clews, fabric: Any) -> dict[str, float]:
        """valid/ and hpar/ under the original's names; saves the best model."""
        share = Share(self.exchange, fabric.global_rank, fabric.device)
        figures = {
            "hpar/epoch": float(self.epochs_done),
            "hpar/lr": self._learning_rate(),
            **self._validated(model, share),
        }
        if fabric.global_rank == 0 and self.epochs_done:
            self._save(model, figures)
        return figures

    def _learning_rate(self) -> float:
        """The rate of the epochs from now on."""
        return self.conf["training.optim.lr"] * self.rate_factor(self.epochs_done)

    def _cost(self, figures: Mapping[str, float]) -> float:
        """Less is better; infinite of the untrained model."""
        if not figures["hpar/epoch"]:
            return math.inf
        return self._monitor.cost(figures)

    def _validated(self, model: Clews, share: Share) -> dict[str, float]:
        """Retrieval of the valid split, and how many of its tracks cannot be read."""
        cliques = self.features.cliques["valid"]
        geometry = self.geometry(self.config.shingling_hop / 2)
        most = self.conf["data.max_missing_fraction"]
        tracks = embed(model, cliques, self.features.reader, lambda frames: geometry, share, most)
        figures = scored(tracks, self.config.loss_redux_pos, share)

        retrieval = {f"valid/{name}": value for name, value in means(figures).items()}
        left_out = float(len(cliques) - len(tracks))
        return {**retrieval, "valid/left_out": left_out}

    def _save(self, model: Clews, figures: Mapping[str, float]) -> None:
        """The model in the published form: the last, the best, and one every training.save_freq
        epochs."""
        names = ["last"]
        if self._cost(figures) < self._best:
            names.append("best")
        every = self.conf["training.save_freq"]
        if every and self.epochs_done % every == 0:
            names.append(f"epoch{self.epochs_done}")

        state = {
            "model": model.state_dict(),
            "epoch": self.epochs_done,
            "cost": figures[self._monitor.name],
        }
        for name in names:
            with atomic.replacing(self.folder / f"checkpoint_{name}.ckpt") as partial:
                save_state(state, partial)

    def observe(self, metrics: dict[str, float]) -> str:
        """Lower the learning rate where the monitor stands still; why the run ends, if it does."""
        if not metrics["hpar/epoch"]:
            return ""
        broken = [name for name, each in metrics.items() if not math.isfinite(each)]
        if broken:
            return f"NaN or inf reached ({broken[0]})"
        self._best = min(self._best, self._cost(metrics))
        if self._plateau:
            self._plateau.step(metrics[self._monitor.name])

        lr = self._learning_rate()
        least = self.conf["training.optim.min_lr"]
        if lr < least:
            return f"min lr reached ({lr:.2g} is below min_lr {least:g})"
        return ""

    def rate_factor(self, epoch: int) -> float:
        return self._rate.param_groups[0]["lr"]

    def rank_state(self) -> dict[str, Any]:
        return {"epochs_done": self.epochs_done}

    def load_rank_states(self, states: list[dict[str, Any]]) -> None:
        if states:
            self.epochs_done = max(state["epochs_done"] for state in states)

    def state_dict(self) -> dict[str, Any]:
        """A digest of what is trained and validated on: the plan, and the values of features."""
        digest = hashlib.sha256()
        for name in ("train", "valid"):
            part = self.features.cliques[name]
            crcs = self.features.index.crcs()[part.tracks]
            for array in (part.ids, part.cliques, part.frames, part.hops, crcs):
                digest.update(array.tobytes())
        return {"plan": digest.hexdigest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing: the folder belongs to one plan (see run.run)."""


def audited(keys: Mapping[str, Any], conf: str = "") -> TaskLoader:
    """What the audit looks at: the batches of a run with these keys, beside those of the file
    `conf`.

    A batch is known by its anchors, which come once an epoch; their versions are drawn.
    """
    task = _task(keys, conf)
    names = partial(_recordings, task, "train")
    return TaskLoader(task, ids=lambda batch: batch.ii.chunk(batch.n_per_class)[0], names=names)


def audited_validation(keys: Mapping[str, Any], conf: str = "") -> HeldOut:
    """The recordings that such a run is evaluated on."""
    return HeldOut(partial(_recordings, _task(keys, conf), "valid"))


def audited_model(keys: Mapping[str, Any], conf: str = "") -> TaskModel:
    """The model of such a run."""
    return TaskModel(_task(keys, conf))


def _task(keys: Mapping[str, Any], file: str) -> VersionTask:
    overrides = [f"{key}={value}" for key, value in keys.items()]
    conf = configuration.read(overrides, file)
    return VersionTask(conf, Path())


def _recordings(task: VersionTask, split: str) -> Iterator[str]:
    tracks = task.features.cliques[split].tracks.tolist()
    return (task.features.index.id(track) for track in tracks)
