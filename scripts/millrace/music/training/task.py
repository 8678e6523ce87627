"""Version matching as a task of the training loop: plans, batches, model, loss, validation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import cycle, islice
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
from millrace.common.training.task import Spans, Task
from millrace.music.models.clews import Clews
from millrace.music.models.published import CONFIGURATION, load_published
from millrace.music.sampling.dataset import CliqueDataset, TrackBatch
from millrace.music.sampling.plan import AnchorPlan, plan_anchors
from millrace.music.sampling.windows import Geometry
from millrace.music.training import conf as configuration
from millrace.music.training.augment import Augmentations
from millrace.music.training.conf import Conf
from millrace.music.training.distances import parse_reduction
from millrace.music.training.evaluation import Features, Share, embed, require_cliques, scored
from millrace.music.training.loss import LOGGED, contrastive_loss
from millrace.music.training.metrics import means


class VersionTask(Task):
    """Trains on anchors and versions, validates by retrieval."""

    every_epoch = True

    def __init__(self, conf: Conf, folder: Path) -> None:
        self.conf, self.folder, self.config = conf, folder, conf.model
        self.features = Features(conf, ("train", "valid"))
        for strategy in (self.config.loss_redux_pos, self.config.loss_redux_neg):
            parse_reduction(strategy)
        self.augment = Augmentations(conf.section("augmentations"))
        self.epochs_done, self._best = 0, math.inf
        self._monitor = f"valid/{conf['training.monitor.quantity']}"
        schedule, _, patience = conf["training.optim.sched"].partition("_")
        # torch's own, of a rate of 1: that of the loop is multiplied by it. A flat one never sees a
        # value.
        self._rate = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        wait = {"patience": int(patience or 0) - 1, "eps": 0}
        plateau = ReduceLROnPlateau(self._rate, conf["training.monitor.mode"], factor=0.2, **wait)
        self._plateau = plateau if schedule == "plateau" else None
        self._sums = torch.zeros(len(LOGGED) + 1, dtype=torch.float64)

    def geometry(self, hop: float) -> Geometry:
        """Windows of data.audiolen seconds, in shingles every `hop` seconds."""
        seconds, frame = (
            (self.conf["data.audiolen"], self.conf["data.maxlen"]),
            self.config.frame_seconds,
        )
        length, longest = (round(each / frame) for each in seconds)
        return Geometry(length, self.config.shingle_frames, round(hop / frame), longest)

    def build_model(self) -> Clews:
        """A new model, or that of `checkpoint`."""
        model, start = Clews(self.config), self.conf["checkpoint"]
        if start:
            model = load_published(start)
            if model.config != self.config:
                remedy = f"Set the model section to that of the {CONFIGURATION} beside it"
                raise MillraceError(
                    "the model is another one than the configuration's", start, remedy
                )
            log.info("weights of %s; optimiser and epochs begin anew", start)
        log.info("clews: %.1f million parameters", model.parameter_count / 1e6)
        return model

    def plan(self, epoch: int, world_size: int, spans: Spans = ()) -> AnchorPlan:
        """The plan of an epoch, or of its rest after `spans`."""
        conf, train = self.conf, self.features.cliques["train"]
        size, limit = conf["training.batchsize"], conf["limit_batches"]
        return plan_anchors(train, size, conf["seed"], epoch, world_size, spans, limit)

    def loader(
        self, epoch: int, start_step: int, rank: int, world_size: int, spans: Spans = ()
    ) -> Iterator[TrackBatch]:
        """The batches of `plan`, by workers that outlive the epoch if data.persistent_workers is
        set."""
        conf, plan = self.conf, self.plan(epoch, world_size, spans)
        if spans or self._loader is None:
            sizes = f"{counted(len(plan), 'step')} of {conf['training.batchsize']} anchors"
            place = (epoch + 1, sizes, counted(world_size, "rank"), plan.left_out)
            log.info("epoch %d: %s on each of %s; %d anchors are left out", *place)
        loader = self.batch_loader(rank)
        loader.plan, loader.start_step, self.epochs_done = plan, start_step, epoch + 1
        yield from loader
        if not conf["data.persistent_workers"]:
            loader.close()

    def batch_loader(self, rank: int) -> BatchLoader:
        """What reads the batches of all plans on this rank."""
        conf = self.conf
        if self._loader is None:
            dataset = CliqueDataset(
                self.features.cliques["train"],
                self.features.reader,
                self.geometry(self.config.shingling_hop),
                conf["seed"],
                rank,
                n_per_class=conf["data.n_per_class"],
                p_samesong=conf["data.p_samesong"],
                augment=self.augment,
            )
            self._loader = BatchLoader(
                dataset,
                conf["data.nworkers"],
                max_bad_fraction=conf["data.max_missing_fraction"],
                start_method=conf["data.mp_context"] if conf["data.nworkers"] else None,
                # Pinning makes a context on a GPU, also where the CPU trains.
                pin_memory=conf["data.pin_memory"]
                and devices.kind_of(conf["fabric.accelerator"]) == "cuda",
                prefetch_batches=conf["data.prefetch_factor"],
            )
        return self._loader

    def batch_ids(self, batch: TrackBatch) -> np.ndarray:
        """int64 ids of the recordings."""
        return batch.ii.numpy()

    def training_step(
        self, model: Clews, batch: TrackBatch
    ) -> tuple[Tensor, float, Mapping[str, float]]:
        """(Loss, tracks, counts): what is logged of the loss is summed up on the device."""
        loss, logged = contrastive_loss(model(batch.x), batch.cc, batch.ii, self.config)
        one = torch.ones((), device=loss.device)
        self._sums = self._sums.to(loss.device)
        self._sums += torch.stack([one, *(logged[name].float() for name in LOGGED)])
        fallbacks = {f"fallback_{reason}": count for reason, count in batch.fallbacks.items()}
        return loss, float(len(batch.ii)), {"replaced": len(batch.bad), **fallbacks}

    def evaluate(self, model: Clews, fabric: Any) -> dict[str, float]:
        """train/ (means of the epoch), valid/ and hpar/ under the original's names; saves the best
        model."""
        share = Share(self.exchange, fabric.global_rank, fabric.device)
        lr = self.conf["training.optim.lr"] * self.rate_factor(self.epochs_done)
        figures = {"hpar/epoch": float(self.epochs_done), "hpar/lr": lr}
        figures |= _means("train", self.exchange.gathered(self._sums.tolist()))
        figures |= self._validated(model, share)
        if fabric.global_rank == 0 and self.epochs_done:
            self._save(model, figures)
        return figures

    def _cost(self, figures: Mapping[str, float]) -> float:
        """The monitored value, negative if more is better; infinite of the untrained model."""
        sign = 1 if self.conf["training.monitor.mode"] == "min" else -1
        return sign * figures[self._monitor] if figures["hpar/epoch"] else math.inf

    def _validated(self, model: Clews, share: Share) -> dict[str, float]:
        conf, cliques = self.conf, self.features.cliques["valid"]
        geometry = self.geometry(self.config.shingling_hop / 2)
        most = conf["data.max_missing_fraction"]
        tracks = embed(model, cliques, self.features.reader, lambda frames: geometry, share, most)
        metrics = means(scored(tracks, tracks, self.config.loss_redux_pos, share))

        # The loss of batches as in training: an anchor, and the first others of its clique in turn.
        place = {each: at for at, each in enumerate(tracks.ids.tolist())}
        part = cliques.only(np.isin(cliques.ids, [*place]))
        require_cliques(part, conf["path.splits.valid"])
        plan = plan_anchors(part, min(conf["training.batchsize"], len(part)), conf["seed"], 0, 1)
        sums = torch.zeros(len(LOGGED) + 1, dtype=torch.float64)
        for step in range(share.rank, len(plan), share.exchange.world_size):
            rows = []
            for anchor in plan.batch(step, 0).tolist():
                others = cycle(row for row in part.members(anchor) if row != anchor)
                rows += [anchor, *islice(others, conf["data.n_per_class"] - 1)]
            at = [place[each] for each in part.ids[rows].tolist()]
            batch = (tracks.embeddings[at], tracks.cliques[at], tracks.ids[at])
            _, logged = contrastive_loss(*batch, self.config)
            sums += torch.tensor(
                [1.0, *(float(logged[name]) for name in LOGGED)], dtype=torch.float64
            )
        losses = _means("valid", share.exchange.gathered(sums.tolist()))
        metrics |= {"left_out": float(len(cliques) - len(tracks))}
        return losses | {f"valid/{name}": value for name, value in metrics.items()}

    def _save(self, model: Clews, figures: Mapping[str, float]) -> None:
        """The model in the published form: the last, the best, and one every training.save_freq
        epochs."""
        often = self.conf["training.save_freq"]
        names = ["last", *["best"] * (self._cost(figures) < self._best)]
        names += [f"epoch{self.epochs_done}"] * bool(often and self.epochs_done % often == 0)
        state = {
            "model": model.state_dict(),
            "epoch": self.epochs_done,
            "cost": figures[self._monitor],
        }
        for name in names:
            with atomic.replacing(self.folder / f"checkpoint_{name}.ckpt") as partial:
                torch.save(state, partial)

    def observe(self, metrics: dict[str, float]) -> str:
        """Lower the learning rate where the monitor stands still; why the run ends, if it does."""
        # After a resume too: the checkpoint of an epoch's end was saved before its evaluation.
        if metrics["hpar/epoch"] == self.epochs_done:
            self._sums.zero_()
        if not metrics["hpar/epoch"]:
            return ""
        broken = [name for name, each in metrics.items() if not math.isfinite(each)]
        if broken:
            return f"NaN or inf reached ({broken[0]})"
        self._best = min(self._best, self._cost(metrics))
        if self._plateau:
            self._plateau.step(metrics[self._monitor])
        lr = self.conf["training.optim.lr"] * self.rate_factor(self.epochs_done)
        least = self.conf["training.optim.min_lr"]
        return f"min lr reached ({lr:.2g} is below min_lr {least:g})" if lr < least else ""

    def rate_factor(self, epoch: int) -> float:
        return self._rate.param_groups[0]["lr"]

    def describe(self, event: str, figures: dict[str, Any]) -> str:
        """One line an epoch, with * at a best."""
        if event == "train":
            rate, wait = (
                figures["per_second"].get("samples", 0.0),
                figures["time_share"]["data_wait"],
            )
            counts = {key: int(n) for key, n in figures["counts"].items() if n and key != "samples"}
            line = f"loss {figures['loss']:.4f}, {rate:.1f} tracks/s, data wait {100 * wait:.1f} %"
            return ", ".join([line, *(f"{n} {key}" for key, n in counts.items())])
        of = figures["metrics"]
        shown = {"l_main_t": of.get("train/l_main")}
        shown |= {
            name: of[f"valid/{name}"] for name in ("l_main", "m_MAP", "m_MR1", "m_ARP", "m_COMP")
        }
        text = ", ".join(
            f"{name} {value:.4f}" for name, value in shown.items() if value is not None
        )
        epoch = f"epoch {of['hpar/epoch']:.0f}/{self.conf['training.numepochs']}"
        return f"{epoch}: {text}, lr {of['hpar/lr']:.1e}{'  *' * (self._cost(of) < self._best)}"

    def rank_state(self) -> dict[str, Any]:
        return {"sums": self._sums.tolist(), "epochs_done": self.epochs_done}

    def load_rank_states(self, states: list[dict[str, Any]]) -> None:
        sums = [torch.tensor(state["sums"], dtype=torch.float64) for state in states]
        self._sums = sum(sums, torch.zeros(len(LOGGED) + 1, dtype=torch.float64))
        self.epochs_done = max((state["epochs_done"] for state in states), default=self.epochs_done)

    def state_dict(self) -> dict[str, Any]:
        """A digest of what the plan is made of."""
        train, digest = self.features.cliques["train"], hashlib.sha256()
        for array in (train.ids, train.cliques, train.frames, train.hops):
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


def _task(keys: Mapping[str, Any], conf: str) -> VersionTask:
    return VersionTask(
        configuration.read([f"{key}={value}" for key, value in keys.items()], conf), Path()
    )


def _recordings(task: VersionTask, split: str) -> Iterator[str]:
    tracks = task.features.cliques[split].tracks.tolist()
    return (task.features.index.id(track) for track in tracks)


def _means(prefix: str, parts: list[list[float]]) -> dict[str, float]:
    """Means by name of the ranks' (count, sum, sum, ...); none without any."""
    count, *sums = np.sum(parts, axis=0).tolist()
    return {
        f"{prefix}/{name}": each / count for name, each in zip(LOGGED, sums, strict=True) if count
    }
