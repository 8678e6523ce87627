"""The training loop of all lanes: in which order a step goes, when it saves, evaluates, logs and
stops, and what it takes up from a checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.machine.memory import is_out_of_memory
from millrace.common.stopping import StopSignals
from millrace.common.training import devices, run_log, seeding
from millrace.common.training.checkpoint import Checkpoints, WholeCheckpoint
from millrace.common.training.meters import MARK, Window
from millrace.common.training.position import Position
from millrace.common.training.ranks import Exchange, Ranks
from millrace.common.training.run_log import Result, known
from millrace.common.training.schedule import Schedule
from millrace.common.training.settings import LoopSettings
from millrace.common.training.task import MicroBatch, Task, weights_digest
from millrace.common.training.updates import Updates

Hook = Callable[[int], None] | None


def train(task: Task, settings: LoopSettings, folder: str | Path, on_step: Hook = None) -> Result:
    """Train `task` in `folder`, from its newest checkpoint on; `on_step` is called after every
    step.

    Raises Requeue (SystemExit) after a stop signal, when all is saved; MillraceError for what the
    user can mend, for numbers that are no longer finite, and where another rank has died.
    """
    ranks = Ranks.from_environment()
    if not ranks.is_main:
        log.setLevel(logging.WARNING)  # what every rank would say alike, rank 0 says
    with StopSignals() as stop, devices.peers(ranks, str(folder)):
        loop = _Loop(task, devices.resolved(settings), Path(folder), ranks, stop, on_step)
        try:
            return loop.run()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise loop.out_of_memory(error) from error


class _Loop:
    def __init__(
        self,
        task: Task,
        settings: LoopSettings,
        folder: Path,
        ranks: Ranks,
        stop: StopSignals,
        on_step: Hook,
    ) -> None:
        self.task = task
        self.settings = settings
        self.folder = folder
        self.ranks = ranks
        self.stop = stop
        self.on_step = on_step
        folder.mkdir(parents=True, exist_ok=True)
        self.fabric = devices.launch(ranks, settings)
        self.device = self.fabric.device
        self.exchange = Exchange(ranks.world_size, settings.timeout_seconds)
        task.stop = stop
        task.exchange = self.exchange
        self.updates = Updates(task, settings, self.fabric)
        self.position = Position(world_size=ranks.world_size)
        self._schedule: Schedule | None = None
        self.window = Window(self.device)
        self.stopping = False
        self.time_is_up = False
        self.saved_step: int | None = None
        self.ended_early = ""  # why, if the task has ended the run
        self.peak = 0  # bytes; watched step by step, as those who measure steps reset torch's own
        self.loss: float | None = None
        self.evaluations: dict[int, dict[str, float]] = {}
        self.checkpoints = Checkpoints(folder / "checkpoints", settings.save_total_limit)

    @property
    def schedule(self) -> Schedule:
        """That of the run, as far as it can be seen; there from the first epoch's begin on."""
        assert self._schedule is not None
        return self._schedule

    @property
    def finished(self) -> bool:
        if self.ended_early:
            return True
        if self.settings.max_steps:
            return self.position.optimizer_step >= self.settings.max_steps
        return self.position.epoch >= self.settings.epochs

    def run(self) -> Result:
        checkpoint = self._resume()
        step = checkpoint.step if checkpoint else -1
        with run_log.RunLog(self.folder, self.ranks.rank, step, self.settings) as self.log:
            self.window.clock.lap("setup")
            self._evaluate_if_due()
            while not self.finished:
                self._epoch()
        model = self.updates.model
        digest = weights_digest(model)
        if len(set(self.exchange.gathered(digest))) > 1:
            remedy = "Does the model change weights by itself, or leave parameters out of a step?"
            raise MillraceError(
                "the ranks have ended with different weights", str(self.folder), remedy
            )
        resumed = checkpoint.step if checkpoint else None
        return Result(model, self.position, self.loss, self.evaluations, resumed, digest)

    def out_of_memory(self, error: BaseException) -> MillraceError:
        """What to say where memory has run out after this many steps."""
        said = " ".join(str(error).split())[:200] or type(error).__name__
        rank = f"rank {self.ranks.rank}: " if self.ranks.world_size > 1 else ""
        remedy = "Take smaller batches (calibrate them anew) or gradient_checkpointing: 1; "
        remedy += "the same command goes on from the last checkpoint"
        step = self.position.optimizer_step + 1
        problem = f"{rank}{self.device} is out of memory at step {step} ({said})"
        return MillraceError(problem, str(self.folder), remedy)

    def _epoch(self) -> None:
        at = self.position
        settings = self.settings
        epoch = at.epoch
        steps = self._agreed_steps()
        self._plan_schedule(steps)
        loader = self.task.loader(epoch, at.step, self.ranks.rank, at.world_size, at.spans)
        batches = iter(loader)
        try:
            while at.epoch == epoch and not self.finished:
                with record_function(f"{MARK}step"):
                    self._optimiser_step(batches, min(settings.grad_acc, steps - at.step))
                if at.step == steps:
                    if next(batches, None) is not None:
                        raise MillraceError(
                            f"the loader has more than {steps} batches", f"epoch {epoch}"
                        )
                    figures = {"epoch": epoch, "epoch_samples": at.epoch_samples}
                    self.log.line("epoch", at.optimizer_step, figures)
                    at.end_epoch()
                self._after_step()
        finally:
            if hasattr(batches, "close"):
                batches.close()

    def _agreed_steps(self) -> int:
        at = self.position
        own = self.task.steps_per_epoch(at.epoch, at.world_size, at.spans)
        steps = self.exchange.gathered(own)
        if len(set(steps)) > 1:
            problem = f"the ranks plan different numbers of steps: {steps}"
            remedy = "Do all of them see the same data and settings?"
            raise MillraceError(problem, f"epoch {at.epoch}", remedy)
        if steps[0] <= at.step:
            problem = f"the plan has {steps[0]} steps, of which {at.step} are done"
            remedy = "Is there any data, and is it what the checkpoint was trained on?"
            raise MillraceError(problem, f"epoch {at.epoch}", remedy)
        return steps[0]

    def _plan_schedule(self, steps: int) -> None:
        """Lead the learning rate to the end of the run, as far as it can be seen from here."""
        at = self.position
        settings = self.settings
        total = settings.max_steps
        if not total:
            later = settings.epochs - at.epoch - 1
            whole = steps
            if later and at.spans:
                whole = self.task.steps_per_epoch(at.epoch + 1, at.world_size)
            total = at.optimizer_step + math.ceil((steps - at.step) / settings.grad_acc)
            total += later * math.ceil(whole / settings.grad_acc)
        if self._schedule is None:
            warmup = math.ceil(settings.warmup_ratio * total)
            self._schedule = Schedule(settings.lr_scheduler_type, warmup, total)
        self.schedule.move_end(at.optimizer_step, total)

    def _optimiser_step(self, batches: Iterator[Any], count: int) -> None:
        """One update from `count` batches of every rank."""
        at = self.position
        clock = self.window.clock
        step = at.optimizer_step + 1
        self.updates.clear()
        clock.lap("idle")
        weight, samples = 0.0, 0
        ids: list[Any] = []
        for micro in range(count):
            micro_batch, more = self._next(batches, at.step + micro), micro + 1 < count
            with record_function(f"{MARK}forward"):
                loss = self.updates.forward(micro_batch, more)
            clock.lap("forward")
            with record_function(f"{MARK}backward"):
                self.updates.backward(loss, micro_batch, more)
            clock.lap("backward")
            self.window.add(loss, micro_batch)
            weight += micro_batch.weight
            samples += len(micro_batch.ids)
            ids.extend(micro_batch.ids.tolist() if self.settings.log_ids else ())
        asked = [float(self.stop.requested), float(self.stop.time_is_up)]
        total, all_samples, *asked = self.exchange.sums([weight, samples, *asked])
        clock.lap("sync")
        self.stopping, self.time_is_up = (count > 0 for count in asked)
        if total > 0:
            with record_function(f"{MARK}optimiser"):
                factor = self.schedule.factor(at.optimizer_step) * self.task.rate_factor(at.epoch)
                self.updates.apply(total, count, step, factor)
        else:
            log.warning("step %d: no rank has a usable sample; the weights stay", step)
        clock.lap("optimiser")
        at.step += count
        at.optimizer_step = step
        at.samples += round(all_samples)
        at.epoch_samples += round(all_samples)
        self.log.ids(step, at.epoch, ids)

    def _next(self, batches: Iterator[Any], step: int) -> MicroBatch:
        at = self.position
        # What a loader draws without an address depends on the step alone, and spares the model's
        # draws.
        addressed = seeding.addressed(self.settings.seed, "loader", at.epoch, step, self.ranks.rank)
        with record_function(f"{MARK}data wait"), addressed:
            batch = next(batches, None)
        if batch is None:
            problem = f"the loader of rank {self.ranks.rank} ended at step {step}"
            raise MillraceError(problem, f"epoch {at.epoch}")
        ids = np.asarray(self.task.batch_ids(batch))
        self.window.clock.lap("data_wait")
        if self.device.type != "cpu" and len(ids):
            batch = batch.to(self.device, non_blocking=True)
        self.window.clock.lap("copy")
        return MicroBatch(batch, ids)

    def _after_step(self) -> None:
        step = self.position.optimizer_step
        settings = self.settings
        self.log.step(step, self.schedule.total_steps)
        if self.device.type == "cuda":
            self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.device))
        ended = self.task.every_epoch and self.position.step == 0
        # With every epoch's end, lines come at the same steps of each.
        number = self.position.step if self.task.every_epoch else step
        if number % settings.log_steps == 0 or self.finished:
            self._write_line()
        if self.on_step is not None:
            self.on_step(step)
        is_periodic = settings.save_steps and step % settings.save_steps == 0
        is_end = (self.finished or ended) and self.task.keeps_weights
        if self.stopping or is_periodic or is_end:
            self._save()
        if self.stopping:
            self.stop.time_is_up = self.time_is_up  # on any rank
            self.stop.leave(self.ranks.is_main)
        self._evaluate_if_due()

    def _write_line(self) -> None:
        """One line of metrics.jsonl: what happened since the last one, on all ranks."""
        at = self.position
        self.updates.check_finite(at.optimizer_step)
        figures = self.window.close(self.exchange)
        self.loss = figures["loss"]
        at.seconds += figures["seconds"]
        line = {
            "epoch": at.epoch,
            "world_size": at.world_size,
            "lr": self.updates.lr,
            **figures,
        }
        line |= {"grad_norm": self.updates.grad_norm, "samples": at.samples}
        if self.device.type == "cuda":
            line["peak_memory_bytes"] = max(self.exchange.gathered(self.peak))
            self.peak = 0
        self.log.line("train", at.optimizer_step, line)

    def _is_evaluation_due(self) -> bool:
        at = self.position
        settings = self.settings
        step = at.optimizer_step
        if step in self.evaluations:
            return False
        if self.finished:
            return True
        if step == 0:
            return bool(settings.eval_at_start)
        if settings.eval_steps and step % settings.eval_steps == 0:
            return True
        # The rest of an epoch, planned anew for other ranks, begins at step 0 too: it has spans.
        return self.task.every_epoch and at.step == 0 and not at.spans

    def _evaluate_if_due(self) -> None:
        if not self._is_evaluation_due():
            return
        step = self.position.optimizer_step
        model = self.updates.model
        if self.device.type == "cuda":
            # Evaluation's shapes are others: what the steps have left in the allocator's cache, in
            # pieces of their own sizes, must not stand beside them.
            torch.cuda.empty_cache()
        model.eval()
        with seeding.preserved(), torch.no_grad(), self.fabric.autocast():
            metrics = self.exchange.from_main(self.task.evaluate(model, self.fabric))
        model.train()
        if step and self.task.keeps_weights and self._is_best(metrics):
            self._save()
            # Before the line is written: a run that is killed in between evaluates again.
            if self.ranks.is_main:
                self.checkpoints.mark_best(step)
        self.evaluations[step] = metrics
        self.log.line("eval", step, {"metrics": metrics})
        self.log.sync()
        self._observe(metrics)
        self.window.clock.lap("evaluate")

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Whether the score is below those of all trained weights before."""
        earlier = [self._score(known) for step, known in self.evaluations.items() if step]
        return self._score(metrics) < min(earlier, default=math.inf)

    def _score(self, metrics: dict[str, float]) -> float:
        """The task's score of an evaluation; infinite if it has none, so that nothing is better."""
        score = self.task.score(metrics)
        if score is None or math.isnan(score):
            return math.inf
        return score

    def _observe(self, metrics: dict[str, float]) -> None:
        self.ended_early = self.task.observe(metrics)
        if self.ended_early:
            log.info("%s: the run ends here", self.ended_early)

    def _save(self) -> None:
        step = self.position.optimizer_step
        if self.saved_step == step:
            return
        self.updates.check_finite(step)
        mine = {"rng": seeding.rng_state(), "window": self.window.state_dict()}
        mine["task"] = self.task.rank_state()
        self.log.sync()  # on all ranks, before the first knows their states
        per_rank = self.exchange.gathered(mine)
        if self.ranks.is_main:
            state = {
                **self.updates.state_dict(),
                "schedule": asdict(self.schedule),
                "length": self.settings.length,
                "position": asdict(self.position),
                "ranks": per_rank,
                "task": self.task.state_dict(),
            }
            self.checkpoints.save(step, state, {"seed": self.settings.seed})
        self.exchange.from_main(None)  # barrier: wait until the checkpoint is on disk
        self.saved_step = step
        self.window.clock.lap("save")

    def _resume(self) -> WholeCheckpoint | None:
        """Take up the newest good checkpoint, and cut the logs back to it."""
        checkpoint: WholeCheckpoint | None = None
        problem: tuple[Any, ...] | None = None
        lines: tuple[float | None, dict[int, dict[str, float]]] = None, {}
        if self.ranks.is_main:
            try:
                checkpoint, lines = self._cut_back()
            except MillraceError as error:
                problem = (error.problem, error.where, error.remedy)
        # Plain values, as the ranks exchange no objects.
        newest = checkpoint and (str(checkpoint.folder), checkpoint.step, checkpoint.header)
        newest, problem, (self.loss, self.evaluations) = self.exchange.from_main(
            (newest, problem, lines)
        )
        checkpoint = newest and WholeCheckpoint(Path(newest[0]), *newest[1:])
        if problem:
            raise MillraceError(*problem)
        seeding.seed_all(self.settings.seed, "rank", self.ranks.rank)
        if checkpoint is not None:
            self._take_up(checkpoint)
        return checkpoint

    def _cut_back(self) -> tuple[WholeCheckpoint | None, Any]:
        """The newest good checkpoint, and what the logs hold, cut back to it."""
        checkpoint = self.checkpoints.newest()
        step = checkpoint.step if checkpoint else -1
        metrics = self.folder / run_log.METRICS
        # The sample ids are those of all ranks, also of former ones.
        for path in (metrics, *self.folder.glob("sample_ids.*.jsonl")):
            run_log.truncate(path, step)
        return checkpoint, known(metrics)

    def _take_up(self, checkpoint: WholeCheckpoint) -> None:
        """Go on from a checkpoint. Raises MillraceError for one of another seed."""
        seed = checkpoint.header["seed"]
        if seed != self.settings.seed:
            problem = f"the checkpoint was trained with seed {seed}, not {self.settings.seed}"
            remedy = "Set that seed, or train in another folder"
            raise MillraceError(problem, str(checkpoint.folder), remedy)

        state = self.checkpoints.load(checkpoint, mapped=self.device.type != "cpu")
        self.updates.load_state_dict(state, checkpoint.step)
        self.task.load_state_dict(state["task"])
        if state["length"] == self.settings.length:
            self._schedule = Schedule(**state["schedule"])
        self.position = Position(**state["position"])
        self._take_up_of_rank(state["ranks"])
        for _, metrics in sorted(self.evaluations.items()):
            self._observe(metrics)
        self.saved_step = checkpoint.step
        at = self.position
        log.info("resuming from %s (epoch %d, step %d)", checkpoint.folder, at.epoch, at.step)

    def _take_up_of_rank(self, per_rank: list[dict[str, Any]]) -> None:
        """Go on with what each rank saved; if their number was another, the first takes it all, and
        the rest of the epoch is planned anew."""
        rank = self.ranks.rank
        world_size = self.ranks.world_size
        if len(per_rank) == world_size:
            taken = [per_rank[rank]]
            seeding.set_rng_state(per_rank[rank]["rng"])
        else:
            self.position.enter(world_size)
            taken = per_rank if rank == 0 else []
            step = self.position.optimizer_step
            seeding.seed_all(self.settings.seed, "rank", rank, world_size, step)
        self.window.load([part["window"] for part in taken])
        self.task.load_rank_states([part.get("task", {}) for part in taken])
