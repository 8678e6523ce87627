"""What the rules of the lanes that train ask for, for a run: ranks, GPUs, threads, the audit before
it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.asr.inputs import AsrInputs
from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.common.workflow.config import checked_config
from millrace.common.workflow.runs import RunInputs, flags
from millrace.common.workflow.sources import Sources
from millrace.image.inputs import ImageInputs
from millrace.music.inputs import INDEX, MERGED, MusicInputs
from tests.workflow.workflow import ROOT

RUN = SimpleNamespace(run="a")
ACCEPTED, METRICS = "results/audit/image/a/accepted.json", Path("results/image/runs/a/metrics.json")
TWO = "-m millrace.common.training.launch --standalone --nproc-per-node 2 --log-dir logs/{}/{}/a -m"


def inputs(lane: str, gpus: int | None = None, **section: object) -> RunInputs:
    of_lane = checked_config({lane: section}, ROOT / "rules/schemas")[lane]
    sources = Sources({"train": ["train-00000"], "features": ["h5-a"]})
    if lane == "asr":
        return AsrInputs(
            of_lane, sources, lambda: ["index.parquet"], gpus=gpus, ancient="old {}".format
        )
    kind = {"music": MusicInputs, "image": ImageInputs}[lane]
    return kind(of_lane, sources, gpus=gpus, ancient="old {}".format)


@pytest.mark.parametrize(
    ("lane", "section", "step", "threads"),
    [
        ("asr", {"ranks": 2, "training": {"threads": 3}}, "train_model", 2 * (3 + 2)),
        ("image", {"ranks": 2, "runs": {"a": {"threads": 3}}}, "train_active", 2 * 3 + 4 + 1),
        ("music", {"runs": {"a": {"fabric.ngpus": 2}}}, "train_model", 2 * (1 + 16)),
    ],
)
def test_two_ranks_of_a_run_are_started_alike_in_each_lane(lane, section, step, threads):
    of = inputs(lane, **section)
    assert of.launcher(RUN) == TWO.format(lane, step) and of.threads(RUN) == threads
    assert "OMP_NUM_THREADS=1" in of.environment


@pytest.mark.parametrize(
    ("nodes", "ranks", "place"),
    [
        (1, 2, "--standalone --nproc-per-node 2"),
        (2, 1, "--nodes 2 --nproc-per-node 1"),
        (2, 4, "--nodes 2 --nproc-per-node 4"),
    ],
)
def test_ranks_of_several_nodes_are_launched_also_where_each_has_one(nodes, ranks, place):
    of = inputs("asr", nodes=nodes, ranks=ranks)
    launched = f"-m millrace.common.training.launch {place} --log-dir 'logs/asr/a b' -m"
    assert of.launch(ranks, "a b") == launched
    assert inputs("asr").launch(1, "a b") == "-m"


@pytest.mark.parametrize(
    ("device", "here", "gpus"),
    [("cpu", 2, 0), ("cuda", 0, 2), ("auto", 0, 0), ("auto", None, 2), ("auto", 2, 2)],
)
def test_each_rank_has_a_gpu_unless_it_trains_on_the_cpu(device, here, gpus):
    sections = {
        "asr": {"ranks": 2, "training": {"device": device}},
        "image": {"ranks": 2, "runs": {"a": {"device": device}}},
        "music": {"runs": {"a": {"fabric.ngpus": 2, "fabric.accelerator": device}}},
    }
    assert [inputs(lane, here, **section).gpus(RUN) for lane, section in sections.items()] == [
        gpus
    ] * 3


def test_flags_have_one_order_and_are_quoted_for_the_shell():
    chosen = {"log_steps": 2, "device": "a b", "model_options": {"a": 1}}
    assert flags(chosen) == """--device 'a b' --log-steps 2 --model-options '{"a": 1}'"""


def test_a_loader_is_audited_over_two_epochs_but_for_images_whose_epochs_training_makes():
    of_lanes = [inputs(lane, runs={"a": {}}) for lane in ("asr", "music", "image")]
    assert [of.audited("a").epochs for of in of_lanes] == [2, 2, 1]


def test_a_run_of_music_has_the_choices_of_the_lane_unless_it_has_its_own():
    own = {"training.optim.lr": 0.5, "fabric.precision": "32"}
    section = {"conf": "x.yaml", "splits": {"val": "v.json"}, "on_leak": "keep"}
    of = inputs("music", 0, **section, runs={"a": own})
    chosen = {
        "jobname": "a",
        "path.splits.valid": "v.json",
        "path.index": "results/music/index/features.index",
        "conf": "x.yaml",
        "data.on_leak": "keep",
        "training.optim.lr": 0.5,
        "fabric.precision": "32",
    }
    words = {f"{key}={value}" for key, value in chosen.items()}
    assert set(of.run_arguments(RUN).split()) == words
    audited = of.audited("a")
    assert audited.arguments["keys"].keys() == chosen.keys()
    assert audited.files == [chosen["path.index"], "x.yaml"]
    own = {"fabric.ngpus": 2, "training.batchsize": 8, "data.on_leak": "reject"}
    other = inputs("music", on_leak="keep", runs={"a": own})
    assert other.audited("a").ranks == 2 and "data.on_leak=reject" in other.run_arguments(RUN)
    assert of.contract == "--hop 0.02 --pool 5 --bins 84"
    assert of.gpus(RUN) == 1  # as the configuration's own default is cuda


def test_music_without_features_asks_for_nothing_and_before_a_merge_no_table_is_lost(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    of = inputs("music")
    assert of.listed.lost() == {} and of.merge() != []
    of.sources = Sources()
    assert of.merge() == of.targets() == []


def test_only_tables_that_an_index_was_merged_from_can_be_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lost = inputs("music").listed.lost
    table = "results/music/features/h5-a.parquet"
    atomic.write_json(MERGED, {"partitions": ["h5-a"]})
    assert lost() == {}  # the index itself is made first
    Path(INDEX).parent.mkdir(parents=True)
    Path(INDEX).touch()
    assert lost() == {table: table}
    atomic.write_json(MERGED, {"partitions": ["h5-b"]})
    assert lost() == {}


def test_runs_of_music_need_splits_and_features():
    of = inputs("music", splits="s", runs={"a": {"jobname": "a b"}})
    assert of.audited_runs() == ["a"] and "'jobname=a b'" in of.run_arguments(RUN)
    assert of.runs() == [f"results/music/runs/a/{name}.json" for name in ("metrics", "test")]
    assert of.targets()[2:-1] == of.runs()
    of.sources = Sources()
    assert of.audited_runs() == []
    assert inputs("music", splits="", runs={"a": {}}).audited_runs() == []


@pytest.mark.parametrize("lane", ["asr", "music", "image"])
def test_a_run_that_is_not_in_the_config_is_named_with_those_that_are(lane):
    with pytest.raises(MillraceError, match=rf"there is no run 'b'\. {lane}\.runs has .*a"):
        inputs(lane, runs={"a": {}}).run_arguments(SimpleNamespace(run="b"))
    assert inputs(lane, runs={"a": {}}).gate(SimpleNamespace(run="b")) == []


def test_a_finished_run_waits_for_its_audit_only_if_it_would_be_made_otherwise(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    of = inputs("image", runs={"a": {"epochs": 2}})
    assert of.gate(RUN) == [ACCEPTED]

    note = Path(".snakemake/metadata") / base64.urlsafe_b64encode(str(METRICS).encode()).decode()
    for path in (METRICS, note, Path(of.audited("a").files[0])):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9, 1e9))
    command = (
        f"python {of.launcher(RUN)} millrace.image.train_active {of.run_arguments(RUN)} --metrics x"
    )
    note.write_text(json.dumps({"input": [*of.audited("a").files, ACCEPTED], "shellcmd": command}))
    assert of.gate(RUN) == [f"old {ACCEPTED}"]
    assert inputs("image", runs={"a": {"epochs": 3}}).gate(RUN) == [ACCEPTED]
    # Made of other files, by another number of ranks; or lost.
    note.write_text(json.dumps({"input": ["b.json", ACCEPTED], "shellcmd": command}))
    assert of.gate(RUN) == [ACCEPTED]
    made_of = [*of.audited("a").files, ACCEPTED]
    note.write_text(json.dumps({"input": [*made_of, "b.json"], "shellcmd": command}))
    assert of.gate(RUN) == [ACCEPTED]
    # With a seed that only begins like this one.
    longer = command.replace(" --metrics", "0 --metrics")
    note.write_text(json.dumps({"input": made_of, "shellcmd": longer}))
    assert of.gate(RUN) == [ACCEPTED]
    note.write_text(json.dumps({"input": made_of, "shellcmd": command}))
    assert of.gate(RUN) == [f"old {ACCEPTED}"]
    two = inputs("image", ranks=2, runs={"a": {"epochs": 2}})
    assert two.run_arguments(RUN) == of.run_arguments(RUN) and two.gate(RUN) == [ACCEPTED]
    METRICS.rename("lost")
    assert of.gate(RUN) == [ACCEPTED]
    os.rename("lost", METRICS)
    os.utime(of.audited("a").files[0], (2e9, 2e9))
    assert of.gate(RUN) == [ACCEPTED]
