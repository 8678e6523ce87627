"""Configurations: files in the published form, overrides as users type them, and what is
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.common.errors import MillraceError
from millrace.music import evaluate_model, train_model
from millrace.music.features.roots import SPLITS
from millrace.music.models.config import ClewsConfig
from millrace.music.training import conf, conf_keys, run
from millrace.music.training.augment import Augmentations

EXAMPLE = Path(__file__).parents[3] / "docs/examples/dvi-h5.yaml"

FILE = """
path:
  h5_root: "../../chunks"
  splits: {train: a.json, verify: c.json}
data:
  splits: {val: b.json}
  maxlen: null
model:
  zdim: 2048
  cqt: {hoplen: 0.02}
fabric: {precision: 32}
augmentations:
  gain: {p: 0.9, r: [0.02, 1]}
  specaugment: {p: 0.4}
training:
  optim: {lr: 2e-4, min_lr: 1e-6}
"""


def test_the_original_trainers_command_is_taken_as_typed(tmp_path, monkeypatch):
    typed = "jobname=dvi-h5 conf=config/dvi-h5.yaml fabric.nnodes=1 fabric.ngpus=2"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/dvi-h5.yaml").write_text(FILE)
    chosen = conf.read(train_model.make_parser().parse_args(typed.split()).overrides)
    assert (chosen["jobname"], chosen["fabric.nnodes"], chosen["fabric.ngpus"]) == ("dvi-h5", 1, 2)
    assert chosen["path.h5_root"] == "../../chunks"


def test_the_original_evaluations_options_are_taken_as_typed():
    typed = "checkpoint=x/best.ckpt partition=test redux=bpwr-10 maxlen=300 hop=2"
    args = evaluate_model.make_parser().parse_args([*typed.split(), "data.maxlen=7"])
    options, others = conf.split_options(args.overrides)
    lengths = {"maxlen": 300.0, "hop": 2.0}
    assert options == {
        "checkpoint": "x/best.ckpt",
        "partition": "test",
        "redux": "bpwr-10",
        **lengths,
    }
    assert others[-1] == "data.maxlen=7"


def test_a_file_is_read_whole_over_the_published_defaults(tmp_path):
    (tmp_path / "dvi.yaml").write_text(FILE)
    chosen = conf.read([f"conf={tmp_path}/dvi.yaml", "training.batchsize=10", "path.logs=a b"])
    splits = [chosen[f"path.splits.{name}"] for name in ("train", "valid", "test")]
    assert splits == ["a.json", "b.json", "c.json"] and chosen["path.logs"] == "a b"
    assert (chosen["training.optim.lr"], chosen["training.optim.min_lr"]) == (0.0002, 1e-06)
    assert (chosen.model.zdim, chosen["fabric.precision"], chosen["data.maxlen"]) == (
        2048,
        "32",
        0.0,
    )
    published = {
        "seed": 43,
        "data.n_per_class": 4,
        "data.p_samesong": 0.0,
        "data.pad_mode": "repeat",
    }
    published |= {
        "data.prefetch_factor": 4,
        "data.persistent_workers": True,
        "data.mp_context": "spawn",
    }
    published |= {
        "training.optim.sched": "plateau_10",
        "training.numepochs": 1000,
        "data.audiolen": 150.0,
    }
    published |= {"training.monitor.quantity": "m_COMP", "training.monitor.mode": "min"}
    assert {key: chosen[key] for key in published} == published and conf.read([])[
        "training.batchsize"
    ] == 25
    # What the file augments is all that is augmented; what needs a waveform is skipped.
    parts = Augmentations(chosen.section("augmentations")).chosen
    assert [(name, p) for name, p, _ in parts] == [("specaugment", 0.4)]
    assert len(Augmentations(conf.read([]).section("augmentations")).chosen) == 3


def test_the_example_has_known_keys_and_the_published_values():
    chosen, defaults = conf.read([], str(EXAMPLE)), conf.read([])
    differing = {key for key in chosen if chosen[key] != defaults[key]}
    paths = {
        "path.h5_root",
        "path.jsonl",
        "path.index",
        *(f"path.splits.{name}" for name in SPLITS),
    }
    assert differing == {"conf", "training.save_freq", *paths}
    assert (chosen.model.bins, chosen.model.cqt_hoplen, chosen.model.cqt_pool) == (84, 0.02, 5)


@pytest.mark.parametrize(
    "overrides, changes",
    [
        ((), {}),
        (("training.optim.wd=0.1",), {}),  # adam has none
        (("training.optim.name=adamw", "training.optim.wd=0.1"), {"weight_decay": 0.1}),
        (("training.optim.lr=0.5", "training.numepochs=7"), {"lr": 0.5, "epochs": 7}),
        (("seed=5", "fabric.precision=bf16-mixed"), {"seed": 5, "precision": "bf16-mixed"}),
        (("fabric.accelerator=cpu",), {"device": "cpu"}),
    ],
)
def test_the_loop_trains_as_the_original_unless_told_otherwise(overrides, changes):
    original = {"lr": 2e-4, "epochs": 1000, "seed": 43, "precision": "32-true", "device": "cuda"}
    original |= {"weight_decay": 0.0, "max_grad_norm": 0.0, "warmup_ratio": 0.0}
    original |= {"lr_scheduler_type": "constant", "eval_at_start": 1, "save_steps": 0}
    settings = vars(run.loop_settings(conf.read(overrides)))
    assert {name: settings[name] for name in original} == original | changes


def test_every_key_is_explained_and_has_a_default_that_it_takes():
    keys = (*conf_keys.TRAINING, *conf_keys.AUGMENTATIONS)
    keys = (*keys, *ClewsConfig.table())
    assert {key.name for key in keys} == conf.read([]).keys() and all(key.meaning for key in keys)
    assert [key.name for key in keys if key.among and key.default not in key.among] == []


@pytest.mark.parametrize(
    "override, message",
    [
        ("data.nworker=3", "the command line: there is no key data.nworker. docs/configuration.md"),
        ("augmentations.specaugment.q=1", "there is no key augmentations.specaugment.q"),
        ("data.input=waveform", "data.input is 'waveform'. Set it to cqt"),
        ("training.optim.sched=poly_2", "plateau_N"),
        ("training.batchsize=null", "training.batchsize is None. Give a int, such as 25"),
        ("training.batchsize=1", "Set it to 2 or more"),
        ("data.pad_mode=zeros", "Set it to repeat"),
        ("data.mp_context=thread", "spawn or fork or forkserver"),
        ("data.on_leak=drop", "Set it to reject or keep or error"),
        ("data.audiolen=10", "Set it to 20 or more"),
        ("jobname", "Write key=value"),
        ("training.optim.lr=[", "training.optim.lr has the value '['. Write it as in YAML"),
        ("data.nworkers=-1", "data.nworkers is -1. Set it to 0 or more"),
        ("limit_batches=-1", "limit_batches is -1"),
        ("training.save_freq=-1", "training.save_freq is -1"),
        ("data.p_samesong=2", "data.p_samesong is 2.0. Set it to 0 or more, 1 at most"),
        ("data.audiolen=.inf", "data.audiolen is inf"),
        ("training.optim.min_lr=.nan", "training.optim.min_lr is nan"),
        ("seed=99999999999999999999", "seed is 99999999999999999999"),
        ("model.name=[clews]", "model.name is '[clews]'"),
        ("model.shingling.hop=0.1", "too short in frames of 0.1 s"),
        ("model.shingling.len=0.5", "too short in frames of 0.1 s"),
        ("training.monitor.quantity=l_main", "Set it to m_COMP or m_MAP or m_MR1 or m_ARP"),
        ("fabric.precision=bf16-true", "32 or 32-true or 16-mixed or bf16-mixed"),
        ("data.splits=nowhere", "there is no key data.splits"),
        ("augmentations.reqcqt.p=0.1", "no key augmentations.reqcqt.p"),
        ("augmentations.specaugment.p=1.5", "augmentations.specaugment.p is 1.5"),
        ("augmentations.specaugment.n=0", "specaugment.n is 0"),
        ("augmentations.timestretch.r=[1.8, 0.6]", "r is [1.8, 0.6]"),
        ("augmentations.timestretch.r=[0, 1]", "timestretch.r is 0.0"),
        ("augmentations.timestretch.r=[1e9, 1e9]", "Set it to 0.001 or more, 100 at most"),
        ("augmentations.timestretch.pad_mode=crazy", "is 'crazy'. Set it to repeat or zeros"),
        ("augmentations.pitchtranspose.r=[-1.5, 2]", "pitchtranspose.r is -1.5"),
        ("augmentations.pitchtranspose=3", "there is no key augmentations.pitchtranspose"),
    ],
)
def test_what_no_key_takes_is_refused(override, message):
    with pytest.raises(MillraceError) as error:
        conf.read([override])
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "data: {nworkers: 3}\ndata: {audiolen: 30}\n",
            "c.yaml:2: this is not YAML (the key data is there twice)",
        ),
        ("data: {nworkers: '4'}\n", "c.yaml: data.nworkers is '4'"),
        ("training: [1]\n", "c.yaml: there is no key training"),
        ("data: &data\n  more: *data\n", "c.yaml:2: this is not YAML (aliases are not read)"),
        ("path:\n\th5_root: x\n", "c.yaml:2: this is not YAML (found character '\\t'"),
        ("- a\n", "c.yaml: this file holds no sections"),
        ("a: [1\n", "this is not YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "this is not YAML"),
    ],
)
def test_mistakes_in_a_file_are_refused_by_its_name(text, message, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(MillraceError) as error:
        conf.read([], str(tmp_path / "c.yaml"))
    assert message in str(error.value)


def test_what_is_typed_wins_over_the_file_and_that_over_what_a_name_stands_for(tmp_path):
    (tmp_path / "c.yaml").write_text("model: {name: clews-tiny, zdim: 32}\nseed: 1\n")
    read = [conf.read([f"conf={tmp_path}/c.yaml", *more]) for more in ((), ("seed=2",))]
    assert [chosen["seed"] for chosen in read] == [1, 2]
    assert {(chosen.model.zdim, chosen.model.frontend_channels) for chosen in read} == {
        (32, (8, 16))
    }


def test_a_window_may_be_one_shingle():
    chosen = conf.read(["data.audiolen=20"])
    assert chosen["data.audiolen"] == chosen.model.shingling_len


@pytest.mark.parametrize("option", ["maxlen=0", "hop=0", "maxlen=.nan"])
def test_options_of_an_evaluation_without_a_meaning_are_refused(option):
    with pytest.raises(MillraceError, match=option.partition("=")[0]):
        conf.split_options(["checkpoint=a", option])
