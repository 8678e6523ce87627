"""The training step on a small corpus: its folder, logs and checkpoints, going on exactly, and its
checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from millrace.common.errors import MillraceError
from millrace.common.training import loop
from millrace.music import build_feature_index, train_model
from millrace.music.models.published import load_published
from millrace.music.training import conf, run
from millrace.music.training.task import VersionTask
from tests.music.versions import SIZES, TINY, corpus, overrides
from tests.refusals import refused

ROOT = Path(__file__).parents[2]


def lines(folder: Path) -> list[dict]:
    """metrics.jsonl without the times, and without counts, which are of the process."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    volatile = ("seconds", "time_share", "per_second", "counts")
    return [{key: value for key, value in row.items() if key not in volatile} for row in rows]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> tuple[Path, list[str]]:
    """A folder with a run of three epochs that nothing stopped, logs/whole, and its arguments."""
    folder = tmp_path_factory.mktemp("whole")
    corpus(folder)
    more = ("training.numepochs=3", "training.save_freq=2", f"path.logs={folder}/logs")
    arguments = overrides(folder, *more)
    assert train_model.main([*arguments, "jobname=whole"]) == 0
    return folder, arguments


def test_a_run_writes_the_originals_names_and_models_in_the_published_form(whole_run):
    folder, arguments = whole_run
    run_folder = folder / "logs/whole"
    evaluations = [row["metrics"] for row in lines(run_folder) if row["event"] == "eval"]
    names = {f"valid/m_{name}" for name in ("MAP", "MR1", "ARP", "COMP")}
    names |= {"hpar/lr", "hpar/epoch", "valid/left_out"}
    assert [set(each) for each in evaluations] == [names] * 4
    assert [each["hpar/epoch"] for each in evaluations] == [0, 1, 2, 3]

    # The folder holds the configuration as run, and models in the published form.
    files = {path.name for path in run_folder.iterdir()}
    assert files >= {
        "configuration.yaml",
        "metrics.json",
        "checkpoint_epoch2.ckpt",
    }
    assert "checkpoint_epoch3.ckpt" not in files
    # Of another length, on other ranks, read faster or from elsewhere, it is the same run.
    noted = json.loads((run_folder / "run.json").read_text())["run"].keys()
    free = set(conf.read(arguments)) - noted
    assert noted - set(conf.read(arguments)) == {"plan"}
    assert not any(key.startswith("path.") for key in noted)
    assert {key for key in free if not key.startswith("path.")} == {
        *("conf", "jobname", "fabric.nnodes", "fabric.ngpus", "fabric.accelerator"),
        *("data.nworkers", "data.prefetch_factor", "data.persistent_workers", "data.pin_memory"),
        *("data.mp_context", "data.max_missing_fraction"),
        *("training.numepochs", "training.save_freq"),
    }
    assert yaml.safe_load((run_folder / "configuration.yaml").read_text())["model"]["zdim"] == 64
    assert load_published(f"{run_folder}/checkpoint_best.ckpt").config.zdim == 64
    more = (f"checkpoint={run_folder}/checkpoint_last.ckpt", "limit_batches=1")
    start = conf.read([*arguments, "jobname=other", *more])
    augmented = [name for name, *_ in VersionTask(start, folder).augment.chosen]
    assert augmented == ["specaugment", "timestretch", "pitchtranspose"]  # the published ones
    first = run.run(start, folder / "logs/other")
    assert first["optimizer_steps"] == 3
    assert first["first_evaluation"]["valid/m_ARP"] == evaluations[-1]["valid/m_ARP"]


def test_a_run_that_is_killed_in_an_epoch_goes_on_as_if_it_had_never_stopped(
    whole_run, monkeypatch
):
    folder, arguments = whole_run
    train = loop.train

    def stop(step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt

    chosen = conf.read([*arguments, "jobname=stopped"])
    monkeypatch.setattr(run.loop, "train", lambda *of: train(*of, on_step=stop))
    with pytest.raises(KeyboardInterrupt):
        run.run(chosen, folder / "logs/stopped")
    monkeypatch.setattr(run.loop, "train", train)
    run.run(chosen, folder / "logs/stopped")
    assert lines(folder / "logs/stopped") == lines(folder / "logs/whole")


def test_a_run_ends_at_min_lr_and_says_so(tmp_path, caplog):
    corpus(tmp_path)
    more = ("training.optim.sched=plateau_1", "training.optim.min_lr=1e-4", "training.numepochs=50")
    chosen = conf.read(overrides(tmp_path, *more, "training.optim.lr=2e-4", "data.audiolen=4"))
    with caplog.at_level("INFO", "millrace"):
        summary = run.run(chosen, tmp_path / "run")
    assert 2 <= summary["epochs"] < 50
    assert "min lr reached (4e-05 is below min_lr 0.0001): the run ends here" in caplog.text
    # Started again it ends at once, with the same best value and rate.
    assert run.run(chosen, tmp_path / "run")["epochs"] == summary["epochs"]


@pytest.mark.parametrize(
    "override, message",
    [
        ("fabric.ngpus=2", "fabric.nnodes 1 x fabric.ngpus 2 make 2, but 1 process was started"),
        ("fabric.nnodes=2", "fabric.nnodes 2 x fabric.ngpus 1 make 2, but 1 process was started"),
        ("fabric.accelerator=cuda", "Set fabric.accelerator=cpu"),
        ("path.index=", "path.index is not set"),
        ("model.cqt.hoplen=0.03", "the model takes 84, 0.03 and 5. Build the index with --bins"),
        ("training.batchsize=50", "make no batch of 50 anchors"),
    ],
)
def test_what_cannot_train_is_refused(tmp_path, override, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    corpus(tmp_path)
    with pytest.raises(MillraceError) as error:
        run.run(conf.read(overrides(tmp_path, override)), tmp_path / "run")
    assert message in str(error.value)


def test_a_run_without_a_name_is_refused(capsys):
    assert train_model.main(["jobname="]) == 1
    assert "the run has no name. Write jobname=NAME" in capsys.readouterr().err


def test_a_split_without_two_cliques_is_refused_by_its_file(tmp_path):
    corpus(tmp_path, {**SIZES, "valid": (1, 2)})
    with refused(r"valid\.json: 1 clique of two recordings"):
        run.run(conf.read(overrides(tmp_path)), tmp_path / "run")


def started(folder: Path, *more: str) -> subprocess.Popen:
    """The step as typed, in a process of its own, on a corpus in `folder`."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "millrace.music.train_model", *overrides(folder, *more)]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_example_trains_once_the_command_of_its_error_has_built_the_index(
    tmp_path, monkeypatch, capsys
):
    corpus(tmp_path / "data")
    (tmp_path / "data/features.index").unlink()
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((ROOT / "docs/examples/dvi-h5.yaml").read_text())
    content["path"] |= {
        "h5_root": "data",
        "jsonl": "",
        "splits": {name: f"data/{name}.json" for name in SIZES},
    }
    Path("dvi-h5.yaml").write_text(yaml.safe_dump(content))
    small = [
        *TINY,
        "training.batchsize=4",
        "data.nworkers=0",
        "training.numepochs=1",
        "limit_batches=1",
    ]
    typed = ["jobname=dvi-h5", "conf=dvi-h5.yaml", "fabric.nnodes=1", "fabric.ngpus=1"]
    typed += [*small, "fabric.accelerator=cpu"]
    assert train_model.main(typed) == 1
    said = capsys.readouterr().err
    command = "--h5-root data --out cache/discogs_h5_index.pt"
    assert "discogs_h5_index.pt: there is no index of features" in said
    assert "millrace.music.build_feature_index --h5-root FOLDER --out cache/discogs" in said
    assert build_feature_index.main(command.split()) == 0
    assert train_model.main(typed) == 0
    assert json.loads(Path("logs/dvi-h5/metrics.json").read_text())["epochs"] == 1


@pytest.mark.long
def test_several_ranks_typed_plainly_are_started(tmp_path):
    corpus(tmp_path)
    ended = started(
        tmp_path, "jobname=two", "fabric.nnodes=1", "fabric.ngpus=2", "training.numepochs=1"
    )
    _, said = ended.communicate(timeout=300)
    assert ended.returncode == 0, said
    summary = json.loads((tmp_path / "logs/two/metrics.json").read_text())
    assert (summary["ranks"], summary["epochs"]) == (2, 1)
    (line,) = (row for row in lines(tmp_path / "logs/two") if row["event"] == "train")
    (before, after) = (row for row in lines(tmp_path / "logs/two") if row["event"] == "eval")
    # Means are those of all queries.
    assert line["world_size"] == 2 and after["metrics"]["hpar/epoch"] == 1
    alone = run.run(conf.read(overrides(tmp_path, "training.numepochs=1")), tmp_path / "logs/one")
    figures = {
        name: value
        for name, value in alone["first_evaluation"].items()
        if name.startswith("valid/")
    }
    assert len(figures) == 5
    assert {name: before["metrics"][name] for name in figures} == pytest.approx(figures, rel=1e-5)


def test_a_run_keeps_others_out_of_its_folder(whole_run, monkeypatch):
    folder, arguments = whole_run
    held = []
    monkeypatch.setattr(run.loop, "train", lambda *_: held.append(is_held(folder / "logs/held")))
    with pytest.raises(AttributeError):  # it has no summary
        run.run(conf.read([*arguments, "jobname=held"]), folder / "logs/held")
    assert held == [True]


def is_held(folder: Path) -> bool:
    """Whether another process is kept out of a folder."""
    program = "import sys; from millrace.common.training.run_folder import held\n"
    program += "with held(sys.argv[1], patience=0): pass"
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    return "another process is training here" in done.stderr
