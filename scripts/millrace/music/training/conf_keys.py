"""The keys of a training configuration and of an evaluation's command line: a line each, with its
default, its range and its meaning."""

from __future__ import annotations

from millrace.common.leaks import leakage
from millrace.music.models.config import Key

_PADDING = ("repeat", "zeros")

# With the defaults of the published configuration for Discogs-VI.
TRAINING = (
    Key("jobname", "", "name of the run, and of its folder below path.logs"),
    Key("conf", "", "this configuration's file"),
    Key("seed", 43, "of weights, anchors, versions, windows and augmentations"),
    Key("checkpoint", "", "model in the published form whose weights the run begins with"),
    Key("limit_batches", 0, "steps of an epoch at most; 0: all"),
    Key(
        "path.h5_root",
        "",
        "folder of the HDF5 files, if it is another one than when the index was built",
    ),
    Key("path.mm_root", "", "folder of the .mm files, likewise"),
    Key("path.jsonl", "", "JSONL of the corpus, for the command that builds the index"),
    Key("path.index", "", "index of the features; needed"),
    Key("path.audio", "", "not read: of the original's trainer on audio"),
    Key("path.meta", "", "not read: of the original's trainer on audio"),
    Key("path.splits.train", "", "cliques to train on; needed"),
    Key("path.splits.valid", "", "cliques to validate on after each epoch (also `val`); needed"),
    Key("path.splits.test", "", "cliques of the evaluation (also `verify`)"),
    Key("path.logs", "logs", "folder of the runs' folders"),
    Key("path.cache", "cache", "not read: the index is path.index"),
    Key("fabric.nnodes", 1, "machines", at_least=1),
    Key("fabric.ngpus", 1, "ranks on each machine, one a GPU", at_least=1),
    Key(
        "fabric.precision", "32", "of the model", among=("32", "32-true", "16-mixed", "bf16-mixed")
    ),
    Key("fabric.accelerator", "cuda", "what ranks train on", among=("auto", "cpu", "cuda")),
    Key("data.input", "cqt", "features; music_create_features makes them", among=("cqt",)),
    Key("data.nworkers", 16, "processes that read batches for each rank; 0: the rank itself"),
    Key("data.prefetch_factor", 4, "batches that each worker has ready", at_least=1),
    Key("data.samplerate", 16000, "not read: features have their hop in seconds"),
    Key("data.persistent_workers", True, "keep the workers from epoch to epoch"),
    Key("data.pin_memory", True, "copy batches to a GPU from pinned memory"),
    Key("data.mp_context", "spawn", "how workers start", among=("spawn", "fork", "forkserver")),
    Key("data.audiolen", 150.0, "seconds of a window of a track in training and validation"),
    Key("data.maxlen", 0.0, "seconds from a track's beginning that windows are drawn from; 0: all"),
    Key("data.pad_mode", "repeat", "what fills a window beyond its track", among=("repeat",)),
    Key("data.n_per_class", 4, "versions of a clique for each anchor, itself included", at_least=2),
    Key("data.p_samesong", 0.0, "how often an anchor itself may be among its versions", at_most=1),
    Key(
        "data.on_leak",
        leakage.ERROR,
        "what becomes of a clique or recording in two splits",
        among=leakage.WORDS,
    ),
    Key(
        "data.max_missing_fraction",
        0.01,
        "share of tracks that may be unreadable in training",
        at_most=1,
    ),
    Key("training.batchsize", 25, "anchors of a batch of each rank", at_least=2),
    Key("training.numepochs", 1000, "epochs at most", at_least=1),
    Key("training.save_freq", 0, "write checkpoint_epoch<N>.ckpt every so many epochs; 0: never"),
    Key("training.optim.name", "adam", "optimiser", among=("adam", "adamw")),
    Key("training.optim.lr", 2e-4, "learning rate"),
    Key("training.optim.wd", 0.0, "weight decay of adamw"),
    Key(
        "training.optim.sched",
        "plateau_10",
        "plateau_N: after N epochs without a better value a fifth; or flat",
    ),
    Key("training.optim.min_lr", 1e-6, "the run ends when the learning rate is below it"),
    Key(
        "training.monitor.quantity",
        "m_COMP",
        "figure of the valid split that says which model is the best",
        among=("m_COMP", "m_MAP", "m_MR1", "m_ARP"),
    ),
    Key("training.monitor.mode", "min", "not read: max of m_MAP, min of the others"),
)

# Those of a file replace these as a whole.
AUGMENTATIONS = (
    Key(
        "augmentations.specaugment.p",
        0.1,
        "how often a shingle has spans and bands of zeros",
        at_most=1,
    ),
    Key("augmentations.specaugment.n", 1, "bands and spans at most", at_least=1, at_most=1000),
    Key("augmentations.specaugment.full", True, "as a whole; false: only where they cross"),
    Key("augmentations.specaugment.f_pc", 0.15, "greatest share of the bins in a band", at_most=1),
    Key(
        "augmentations.specaugment.t_pc", 0.15, "greatest share of the frames in a span", at_most=1
    ),
    Key("augmentations.timestretch.p", 0.1, "how often a shingle is stretched", at_most=1),
    Key(
        "augmentations.timestretch.r",
        [0.6, 1.8],
        "least and greatest stretch",
        at_least=0.001,
        at_most=100,
    ),
    Key("augmentations.timestretch.pad_mode", "repeat", "what fills a shorter one", among=_PADDING),
    Key(
        "augmentations.timestretch.cut_mode",
        "random",
        "what is cut",
        among=("start", "end", "random"),
    ),
    Key("augmentations.pitchtranspose.p", 0.1, "how often a shingle is moved by bins", at_most=1),
    Key(
        "augmentations.pitchtranspose.r",
        [-12, 12],
        "least and greatest move",
        at_least=-1000,
        at_most=1000,
    ),
)

EVALUATION = (
    Key("checkpoint", "", "model in the published form; needed"),
    Key("partition", "test", "split"),
    Key("redux", "", "how distances of shingles become one of tracks; none: as the loss"),
    Key("maxlen", 600.0, "seconds of a track", at_least=0.1),
    Key("hop", 5.0, "seconds from one shingle to the next", at_least=0.1),
)
