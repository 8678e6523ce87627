"""What the rules of the ASR lane ask for: files and flags, memory and GPUs of jobs, pinned runs
that are kept, and the short runs behind the throughput report."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.asr.buckets.config import BucketConfig
from millrace.asr.buckets.edges import bucket_ids, edges_of
from millrace.asr.models import known
from millrace.asr.sources import AS_BUILT
from millrace.asr.training import memory
from millrace.asr.training.options import TrainOptions
from millrace.common.errors import MillraceError
from millrace.common.hub import repository
from millrace.common.settings import of_loader
from millrace.common.workflow.lanes import Stage
from millrace.common.workflow.lost import Listed
from millrace.common.workflow.runs import Audited, RunInputs, flags
from millrace.common.workflow.sources import Sources, SourcesMissing

PARTITIONS = "results/asr/partitions"
_CLOCK_SECONDS = 60  # by which the clock of a file server may be ahead
BUCKETS = "results/asr/buckets/bucket_config.json"
CALIBRATION = "results/asr/calibration/calibrated_bs.json"
RECEIPT = "results/asr/hub/{run}/receipt.json"
RUNS_PAGE = "results/asr/report/runs.html"
VERIFICATION = "results/asr/calibration/verification.json"


def _measured(steps: int) -> dict[str, Any]:
    """The settings of a run behind the throughput report, of so many steps."""
    return {
        "save_steps": 0,
        "tensorboard": 0,
        "eval_at_start": 0,
        "eval_steps": 0,
        "eval_samples": 64,
        "max_steps": steps,
        "log_steps": max(1, steps // 10),
    }


class AsrInputs(RunInputs):
    """Input functions and parameters of the lane's rules.

    `speech_shards` gives the speech lane's merged index, or nothing where it has no corpus.
    """

    lane = "asr"
    step = "train_model"

    def __init__(
        self,
        section: dict,
        sources: Sources,
        speech_shards: Callable[[], list[str]],
        **machine: Any,
    ) -> None:
        super().__init__(section, sources, **machine)
        self.speech_shards = speech_shards

    @property
    def from_speech(self) -> bool:
        return self.section["source"] == "speech"

    def indices(self, wildcards: Any = None) -> list[str]:
        """The tar index of every partition; none where the speech lane has written offsets
        already."""
        if self.from_speech:
            return []
        names = self.sources.required().partitions.get("tars", [])
        return [f"results/asr/tar_index/{name}.parquet" for name in names]

    def manifests(self, wildcards: Any = None) -> list[str]:
        """Where the samples come from."""
        if self.from_speech:
            return self.speech_shards()
        manifests = []
        for paths in self.sources.required().files.values():
            for path in paths:
                # Touched, re-ordered or with other line ends it is newer, but says the same.
                if path in self.sources.unchanged:
                    manifests.append(self._ancient(path))
                    continue
                _refuse_future(path)
                manifests.append(path)
        return manifests

    def manifest_place(self, wildcards: Any = None) -> str:
        """The manifests' folder, as a command cannot name thousands of files; or the speech lane's
        index."""
        if self.from_speech:
            return next(iter(self.speech_shards()), "")
        return self.section["manifest_dir"]

    def sweep(self, wildcards: Any = None) -> str:
        """The flag that removes indices of partitions which are no more; none where tars have no
        indices."""
        return "" if self.from_speech else "--sweep results/asr/tar_index"

    def tar_root(self, wildcards: Any = None) -> str:
        """Where relative paths of tars start."""
        return "results/speech/shards" if self.from_speech else self.section["tar_root"]

    def tar_template(self, wildcards: Any = None) -> str:
        """The name of a tar by its shard_id. A function, as Snakemake would take the braces for
        wildcards."""
        return self.section["tar_template"]

    def path_map(self, wildcards: Any = None) -> str:
        """What prefixes of tar paths are on this machine, as JSON."""
        prefixes = {} if self.from_speech else self.section["path_map"]
        return json.dumps(prefixes, sort_keys=True)

    def edges(self, wildcards: Any = None) -> str:
        """The flag of the edges of the buckets."""
        edges = self.section["edges"]
        if isinstance(edges, str):
            return f"--edges {edges}"
        return "--edges " + " ".join(f"{edge:g}" for edge in edges)

    def data(self, wildcards: Any = None) -> list[str]:
        """The bucket parquets' config, when there are samples."""
        return [BUCKETS] if self.manifests() else []

    @property
    def stages(self) -> dict[str, Stage]:
        """What a target makes that is not all of the lane."""
        keys = ("edges", "over_max", "seed", "max_error_fraction")
        leaks = ("on_leak", "copies")
        of_tars = ("source", "manifest_dir", "tar_root", "tar_template", "path_map")
        return {"data": Stage(self.data, {*keys, *leaks, *of_tars})}

    @property
    def listed(self) -> Listed:
        """The bucket parquets, those of other splits, and the table of tars, which all need."""
        return Listed(self._parquets, lambda path: BUCKETS, stale=self._stale)

    def _stale(self) -> list[str]:
        """The buckets, if a manifest has changed and is older: put in its place with its time."""
        if self.from_speech or not all(map(os.path.exists, (BUCKETS, f"{PARTITIONS}/{AS_BUILT}"))):
            return []
        built = os.path.getmtime(BUCKETS)
        paths = itertools.chain.from_iterable(self.sources.required().files.values())
        changed = [path for path in paths if path not in self.sources.unchanged]
        return [BUCKETS] if any(os.path.getmtime(path) <= built for path in changed) else []

    def _parquets(self) -> list[str]:
        try:
            config = BucketConfig.read(BUCKETS)
        except MillraceError:
            # There are none yet; a damaged one is named by the step that reads it.
            return []
        return [str(path) for path in (*config.paths, *config.splits.values(), config.tars)]

    def bucket_calibrations(self, wildcards: Any = None) -> list[str]:
        """The calibration of every bucket, the largest first: it shows soonest that a model does
        not fit."""
        self._require("asr.calibration.device", self.section["calibration"]["device"])
        names = bucket_ids(edges_of(self.section["edges"]))
        return [f"results/asr/calibration/buckets/{name}.json" for name in reversed(names)]

    def pending_notes(self) -> list[str]:
        """What of the targets is kept though older than its data."""
        notes = [self._pinned_note(run) for run in self.section["runs"] if self._is_kept(run)]
        return [note for note in notes if note]

    def _training(self, run: str) -> dict[str, Any]:
        """The settings of a run of the config: those of all, and its own."""
        return {**self.section["training"], **self.section["runs"].get(run, {})}

    def _is_kept(self, run: str) -> bool:
        """Whether the run is pinned and finished: then nothing makes it pending."""
        is_pinned = bool(self.section["runs"][run].get("pinned"))
        return is_pinned and Path(self.metrics(run)).exists()

    def _pinned_note(self, run: str) -> str:
        """That a run is older than its data, with a file that shows it; "" if it is not."""
        metrics = self.metrics(run)
        made = Path(metrics).stat().st_mtime_ns
        partitions = Path("results/speech/partitions" if self.from_speech else PARTITIONS)
        paths = [Path(BUCKETS), *map(Path, self.manifests()), *partitions.glob("*.json")]
        for path in paths:
            if path.exists() and path.stat().st_mtime_ns > made:
                return (
                    f"run {run} is pinned: it was trained on older data ({path} is newer). To train"
                    f" it: snakemake {metrics}"
                )
        return ""

    def calibration(self, wildcards: Any) -> list[str]:
        """The merged calibration that runs are trained with; none where `batch_seconds` counts."""
        run = wildcards.run
        if not Path(self.metrics(run)).exists():
            is_own = "device" in self.section["runs"].get(run, {})
            key = f"asr.runs.{run}.device" if is_own else "asr.training.device"
            self._require(key, self._training(run).get("device", "auto"), on_nodes=True)
        if self.section["calibration"]["enabled"]:
            return [CALIBRATION]
        return []

    def calibrate(self, wildcards: Any = None) -> list[str]:
        """The merged calibration, whether runs use it or not; verified unless soaks are switched
        off."""
        if not self.data():
            return []
        if not self.section["calibration"]["soak_steps"]:
            return [CALIBRATION]
        if not Path(VERIFICATION).exists():
            device = self.section["calibration"]["device"]
            self._require("asr.calibration.device", device, on_nodes=True)
        return [CALIBRATION, VERIFICATION]

    def calibration_arguments(self, wildcards: Any = None) -> str:
        """The flags of calibrate_bucket_bs that the config decides."""
        chosen = {**self._calibrated_training(), **self.section["calibration"]}
        del chosen["enabled"]
        return flags({**chosen, "world_size": self._world_size})

    def verification_arguments(self, wildcards: Any = None) -> str:
        """The flags of verify_calibration that the config decides."""
        chosen = self._calibrated_training()
        for name in ("device", "max_memory_gb", "soak_steps"):
            chosen[name] = self.section["calibration"][name]
        return flags(chosen)

    def _calibrated_training(self) -> dict[str, Any]:
        chosen = {**self._model(), "seed": self.section["seed"]}
        training = self.section["training"]
        for name in ("precision", "gradient_checkpointing", "grad_acc", "max_bad_fraction"):
            if name in training:
                chosen[name] = training[name]
        return chosen

    def run_arguments(self, wildcards: Any) -> str:
        """The flags of train_model for a run: the model, `training`, and what the run itself
        says."""
        chosen = {
            **self._model(),
            "seed": self.section["seed"],
            **self.section["training"],
            **self.of_run(wildcards.run),
        }
        chosen.pop("pinned", None)
        return flags(chosen)

    def audited(self, run: str) -> Audited:
        """The loader of a run of the config."""
        own = {"seed": self.section["seed"], **self._training(run)}
        names = sorted({*of_loader(TrainOptions), "seed"} & own.keys())
        chosen = {
            **self._model(),
            **{name: own[name] for name in names},
            "bucket_dir": BUCKETS,
        }
        files = [BUCKETS]
        if self.section["calibration"]["enabled"]:
            chosen["calibration"] = CALIBRATION
            files.append(CALIBRATION)
        return Audited("millrace.asr.training.task:audited", chosen, files, self._world_size)

    def audited_runs(self) -> list[str]:
        """The runs of the config that are or will be trained."""
        if not self.data():
            return []
        return [run for run in self.section["runs"] if not self._is_kept(run)]

    def _model(self) -> dict[str, Any]:
        section = self.section
        return {
            "model": section["model_path"] or section["model"],
            "model_options": section["model_options"],
        }

    @property
    def runs_by_name(self) -> dict[str, dict[str, Any]]:
        """The config's, and those behind the throughput report: only their length and their loader
        differ."""
        steps = self.section["throughput"]
        check, bench, profile = (steps[f"{name}_steps"] for name in ("check", "bench", "profile"))
        return {
            "check": {**_measured(check), "loader": "every-bucket"},
            "bench": _measured(bench),
            "baseline": {**_measured(bench), "loader": "baseline"},
            "profile": {
                **_measured(bench),
                "max_steps": profile + 4,
                "profile_steps": profile,
            },
            **self.section["runs"],
        }

    def verifier(self, wildcards: Any = None) -> str:
        """What starts the ranks of the verification."""
        return self.launch(self.section["ranks"], "verify_calibration/ranks")

    @property
    def _world_size(self) -> int:
        return self.section["nodes"] * self.section["ranks"]

    def device(self, run: str = "") -> str:
        """What all runs are to train on: their resources are asked for when the rules are read."""
        return self.section["training"].get("device", "auto")

    def bucket_gpus(self, wildcards: Any = None) -> int:
        """GPUs of the calibration of a bucket, which is one process."""
        return int(self.gpus() > 0 and self.section["calibration"]["device"] != "cpu")

    @property
    def places(self) -> dict[str, Any]:
        """The resources that say on how many nodes the ranks run, and with how many GPUs.

        On several nodes the job is Slurm's MPI job of one task, the launcher, on each: Snakemake
        runs in its batch step, and srun is ours. GPUs are then counted by node: by job, Slurm may
        spread them unevenly.
        """
        nodes = self.section["nodes"]
        gpus = self.gpus()
        if nodes == 1:
            return {"nodes": 1, "gpu": gpus}
        several = {
            "nodes": nodes,
            "tasks": nodes,
            "tasks_per_gpu": 0,
            "mpi": "srun",
        }
        return {**several, "gres": f"gpu:{gpus}"} if gpus else several

    def _require(self, key: str, device: str, on_nodes: bool = False) -> None:
        """End the workflow if it runs on this machine, and that has fewer GPUs than ranks, which
        `device` asks for, or is one where several are asked for."""
        ranks = self.section["ranks"]
        nodes = self.section["nodes"]
        gpus = self._here
        wants_gpus = device == "cuda" or (device == "auto" and gpus)
        if gpus is not None and gpus < ranks and wants_gpus:
            here = f"this machine has {gpus or 'no'} GPUs"
            problem = f"{key} is {device} with asr.ranks: {ranks}, and {here}"
            remedy = (
                f"Set {key}: cpu or fewer ranks, or run where the GPUs are, as with --profile slurm"
            )
        elif on_nodes and self._is_local and nodes > 1:
            problem = f"asr.nodes is {nodes}, and jobs run on this machine"
            remedy = (
                "Run with --profile slurm, or set asr.nodes: 1 (asr.ranks counts processes on a"
                " machine)"
            )
        else:
            return
        # Snakemake would wrap an error in lines of its own.
        sys.exit(f"Millrace: asr: {problem}. {remedy}; `snakemake asr_data` needs neither")

    def threads(self, wildcards: Any = None) -> int:
        """Threads of a run on a node: each rank's own, and its workers."""
        training = self.section["training"]
        threads = training.get("threads", 1)
        workers = training.get("num_workers", TrainOptions.num_workers)
        return self.section["ranks"] * (threads + workers)

    def training_mb(self, calibrates: str = "") -> int:
        """Memory of the ranks on one machine, MB: 4 GB each, 1 GB for each of its workers, by the
        model, and the batches under way.

        A parameter takes 20 bytes where it is trained on the CPU (weights, gradients, two moments,
        a copy for a checkpoint), 8 where it is trained on a GPU. With `calibrates`, `bucket` (one
        process) or `all` (all ranks), there are no workers; on a CPU each process may use up its
        limit.
        """
        training = self.section["training"]
        limits = self.section["calibration"]
        ranks = 1 if calibrates == "bucket" else self.section["ranks"]
        on_cpu = self.on_cpu(limits["device"] if calibrates else self.device())
        parameter_bytes = 20 if on_cpu else 8
        mb = 4000 + parameter_bytes * known.millions(self._model()["model"])
        if not calibrates:
            workers = training.get("num_workers", TrainOptions.num_workers)
            prefetch = training.get("prefetch_factor", TrainOptions.prefetch_factor)
            mb += 1000 * workers
            mb += memory.batches_mb(workers, prefetch, self._batch_seconds(), not on_cpu)
        elif on_cpu:
            mb = max(mb, 1.5 * 1024 * limits["max_memory_gb"])
        return round(ranks * mb)

    def _batch_seconds(self) -> float:
        """Padded audio of a run's largest batch, seconds."""
        if self.section["calibration"]["enabled"]:
            return memory.largest_batch_seconds(CALIBRATION)
        return self.section["training"].get("batch_seconds", TrainOptions.batch_seconds)

    def runs(self, wildcards: Any = None) -> list[str]:
        """The metrics of all runs of the config but those kept as they are."""
        if self.data():
            return self.reported_runs()
        return []

    def reported_runs(self, wildcards: Any = None) -> list[str]:
        """The metrics of the runs on the page of the runs, but for those of `pinned_runs`."""
        return [self.metrics(run) for run in self.section["runs"] if not self._is_kept(run)]

    def pinned_runs(self, wildcards: Any = None) -> str:
        """Those that are kept as they are: no inputs, or they would be trained again."""
        return " ".join(self.metrics(run) for run in self.section["runs"] if self._is_kept(run))

    def runs_page(self, wildcards: Any = None) -> list[str]:
        """The page of the runs, if there is one to make."""
        return [RUNS_PAGE] if self.runs() else []

    def throughput(self, wildcards: Any = None) -> list[str]:
        """The throughput report."""
        return ["results/asr/report/throughput.html"] if self.data() else []

    def receipts(self, wildcards: Any = None) -> list[str]:
        """The receipts of the published models of all runs, or what comes before them."""
        repo = self.section["hub"]["repo"]
        if repo and "{run}" not in repo and len(self.section["runs"]) > 1:
            sys.exit(
                f"Millrace: asr.hub.repo {repo} would hold one run after another. Write {{run}}"
                " in it"
            )
        names = {self.metrics(run): RECEIPT.format(run=run) for run in self.section["runs"]}
        return [names.get(path, path) for path in self.runs()]

    def hub_flags(self, wildcards: Any) -> str:
        """Which repository on which Hub a run's model goes to, and its licence."""
        hub = self.section["hub"]
        repo = (hub["repo"] or "local/asr-{run}").replace("{run}", wildcards.run)
        return repository.flags({**hub, "repo": repo}, "results/asr/hub/server", "licence")

    def targets(self, wildcards: Any = None) -> list[str]:
        """All that the lane builds, as far as it can be named now."""
        published = []
        if self.section["hub"]["enabled"]:
            published = self.receipts()
        targets = [*self.data(), *self.runs(), *self.runs_page(), *published]
        return list(dict.fromkeys(targets))


def _refuse_future(path: str) -> None:
    """Raise SourcesMissing for a manifest from the future: Snakemake would build the buckets, find
    them older than it, and delete them, time after time."""
    if os.path.exists(path) and os.path.getmtime(path) > time.time() + _CLOCK_SECONDS:
        problem = f"{path} has a time in the future, so what is built of it would look older"
        raise SourcesMissing(f"Millrace: asr: {problem}. Type `touch {shlex.quote(path)}`")
