"""What the rules of the lane ask for: runs that are kept, and GPUs that are missing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace

import pytest

from millrace.asr.buckets.build import BucketChoices
from millrace.asr.inputs import BUCKETS, CALIBRATION, RUNS_PAGE, VERIFICATION, AsrInputs
from millrace.common import atomic
from millrace.common.workflow.config import checked_config
from millrace.common.workflow.sources import Sources, SourcesMissing
from tests.workflow.workflow import ROOT

RUN_A, RUN_B = SimpleNamespace(run="a"), SimpleNamespace(run="b")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def inputs(
    gpus: int | None = None, is_local: bool = False, found: Sources | None = None, **section: object
) -> AsrInputs:
    """Of a corpus of the speech lane, or of `found` manifests."""
    checked = checked_config({"asr": section}, ROOT / "rules/schemas")["asr"]
    machine = {"gpus": gpus, "is_local": is_local, "ancient": "old {}".format}
    speech = ["results/speech/index.parquet"]
    return AsrInputs(checked, found or Sources(), lambda: speech, **machine)


def touch(path: str, time: int) -> None:
    atomic.write_text(path, "")
    os.utime(path, (time, time))


def test_a_pinned_run_is_asked_for_until_it_is_finished():
    asr = inputs(runs={"a": {"pinned": True, "epochs": 2}, "b": {}})
    assert asr.runs() == [asr.metrics("a"), asr.metrics("b")] and asr.pending_notes() == []
    assert "pinned" not in asr.run_arguments(RUN_A)
    touch(BUCKETS, 100)
    touch("results/asr/runs/a/metrics.json", 200)
    assert asr.runs() == [asr.metrics("b")] and asr.pending_notes() == []
    assert asr.audited_runs() == ["b"]
    assert asr.receipts() == ["results/asr/hub/b/receipt.json"]


def test_each_run_has_a_repository_of_its_own():
    hub = {"enabled": True, "repo": "me/asr-{run}", "private": False, "licence": "mit"}
    asr = inputs(runs={"a": {}, "b": {}}, hub=hub)
    assert asr.targets()[-2:] == [
        "results/asr/hub/a/receipt.json",
        "results/asr/hub/b/receipt.json",
    ]
    assert not any("hub" in target for target in inputs(runs={"a": {}}).targets())
    default = inputs(runs={"a": {}, "b": {}}, hub={"enabled": True})
    assert "--repo local/asr-b " in default.hub_flags(RUN_B)
    flags = asr.hub_flags(RUN_B)
    for flag in ("--repo me/asr-b ", "--public", "--licence mit", "--endpoint local"):
        assert flag in flags
    with pytest.raises(SystemExit, match="one run after another"):
        inputs(runs={"a": {}, "b": {}}, hub=hub | {"repo": "me/asr"}).receipts()


NEWER = [BUCKETS, "results/speech/index.parquet", "results/speech/partitions/malta-test-00000.json"]


@pytest.mark.parametrize("newer", NEWER)
def test_a_pinned_run_that_is_older_than_its_data_is_said(newer):
    touch("results/asr/runs/a/metrics.json", 200)
    touch(newer, 300)
    (note,) = inputs(runs={"a": {"pinned": True}}).pending_notes()
    start = f"run a is pinned: it was trained on older data ({newer} is newer)."
    assert note == f"{start} To train it: snakemake results/asr/runs/a/metrics.json"


CUDA = {"training": {"device": "cuda"}}


@pytest.mark.parametrize(
    "gpus, section, words",
    [
        (0, CUDA, "asr.training.device is cuda with asr.ranks: 1, and this machine has no GPUs"),
        (2, {"ranks": 4}, "asr.training.device is auto with asr.ranks: 4, and this machine has 2"),
        (0, {"runs": {"a": {"device": "cuda"}}}, "asr.runs.a.device is cuda"),
        (0, {"ranks": 4}, ""),  # auto: four ranks on the CPU
        (4, {"ranks": 4, **CUDA}, ""),
        (None, CUDA, ""),  # jobs run elsewhere
        (0, {**CUDA, "runs": {"a": {"device": "cpu"}}}, ""),
    ],
)
def test_a_run_without_its_gpus_ends_the_workflow_before_anything_runs(gpus, section, words):
    asr = inputs(gpus, **section)
    if not words:
        assert asr.calibration(RUN_A) == []
        return
    with pytest.raises(SystemExit) as caught:
        asr.calibration(RUN_A)
    assert str(caught.value.code).startswith(f"Millrace: asr: {words}")
    assert "snakemake asr_data" in str(caught.value.code)


@pytest.mark.parametrize(
    "nodes, ranks, device, launcher, places",
    [
        (1, 1, "auto", "-m", {"nodes": 1, "gpu": 1}),
        (1, 4, "cpu", "--standalone --nproc-per-node 4", {"nodes": 1, "gpu": 0}),
        (
            2,
            4,
            "auto",
            "--nodes 2 --nproc-per-node 4",
            {"nodes": 2, "tasks_per_gpu": 0, "gres": "gpu:4"},
        ),
        (2, 1, "cpu", "--nodes 2 --nproc-per-node 1", {"nodes": 2, "tasks": 2, "gres": None}),
    ],
)
def test_ranks_and_their_gpus_are_counted_by_node(nodes, ranks, device, launcher, places):
    asr = inputs(nodes=nodes, ranks=ranks, training={"device": device})
    assert launcher in asr.launcher(RUN_A)
    assert {name: asr.places.get(name) for name in places} == places
    assert asr.bucket_gpus() == (device != "cpu")
    assert f"--world-size {nodes * ranks}" in asr.calibration_arguments()
    assert asr.threads() == ranks * 3


def test_several_nodes_without_slurm_end_the_workflow_where_training_is_pending():
    asr = inputs(is_local=True, nodes=2)
    with pytest.raises(SystemExit, match=r"asr\.nodes is 2.*--profile slurm"):
        asr.calibration(RUN_A)
    touch("results/asr/runs/a/metrics.json", 100)
    assert asr.calibration(RUN_A) == []
    # A bucket is calibrated in one process; only their verification needs all nodes.
    assert len(asr.bucket_calibrations()) == 7
    with pytest.raises(SystemExit, match=r"asr\.nodes is 2"):
        asr.calibrate()
    touch(VERIFICATION, 100)
    assert asr.calibrate() == [CALIBRATION, VERIFICATION]
    assert inputs(nodes=2).calibration(RUN_B) == []


LARGE = {"ranks": 8, "model": "qwen3-asr-1.7b", "training": {"num_workers": 16, "device": "cuda"}}


@pytest.mark.parametrize(
    "section, calibrates, mb",
    [
        # Of two workers 12 batches of 240 s (15.36 MB) in /dev/shm, 9 pinned ones of 2**24 B.
        ({}, "", 6080 + 12 * 15.36 + 9 * 16.777216),
        ({"training": {"device": "cpu"}}, "", 6200 + 12 * 15.36),
        # 290,432 MB, of each rank 96 batches of 128 MB in /dev/shm and 65 pinned ones of 2**27 B.
        (
            {**LARGE, "calibration": {"enabled": True}},
            "",
            290_432 + 8 * (96 * 128 + 65 * 134.217728),
        ),
        (LARGE, "bucket", 20_304),
        ({"ranks": 2, "calibration": {"device": "cpu", "max_memory_gb": 30}}, "all", 92_160),
        # A limit below what the process itself takes: 4 GB, and 20 bytes a parameter.
        ({"calibration": {"device": "cpu", "max_memory_gb": 1}}, "bucket", 4_200),
    ],
)
def test_memory_follows_ranks_workers_batches_and_the_size_of_the_model(section, calibrates, mb):
    assert inputs(**section).training_mb(calibrates) == round(mb)


def test_of_foreign_tars_the_config_says_where_they_lie():
    files = {"train": ["m/train.jsonl"], "dev": ["m/dev.jsonl"]}
    found = Sources({"tars": ["tars-00000"]}, files, unchanged={"m/dev.jsonl"})
    places = {"manifest_dir": "m", "tar_root": "/t", "path_map": {"/a": "/b"}}
    asr = inputs(found=found, source="manifests", edges=[0, 2.5], **places)
    assert asr.indices() == ["results/asr/tar_index/tars-00000.parquet"]
    assert asr.manifests() == ["m/train.jsonl", "old m/dev.jsonl"]
    assert (asr.manifest_place(), asr.tar_root(), asr.path_map()) == ("m", "/t", '{"/a": "/b"}')
    assert (asr.sweep(), asr.edges()) == ("--sweep results/asr/tar_index", "--edges 0 2.5")

    found.missing = SourcesMissing("no manifests")
    for read in (asr.indices, asr.manifests):
        with pytest.raises(SourcesMissing):
            read()


def of_train(source: str = "manifests", unchanged: Sequence[str] = ()) -> AsrInputs:
    found = Sources({"tars": []}, {"train": ["m/train.jsonl"]}, unchanged=set(unchanged))
    return inputs(found=found, source=source)


@pytest.mark.parametrize(
    "source, unchanged, built_before, stale",
    [
        ("manifests", ["m/train.jsonl"], True, []),
        ("manifests", [], True, [BUCKETS]),
        ("manifests", [], False, []),
        ("speech", [], True, []),
    ],
)
def test_a_changed_manifest_that_is_older_than_the_buckets_makes_them_again(
    source, unchanged, built_before, stale
):
    """Snakemake compares times: one that was moved into its place keeps its own."""
    touch(BUCKETS, 2)
    if built_before:
        touch("results/asr/partitions/manifests/built/all.json", 2)
    for seconds in (1, 2):
        touch("m/train.jsonl", seconds)
        assert of_train(source, unchanged).listed.stale() == stale


def test_a_manifest_from_the_future_is_refused_before_buckets_are_built():
    touch("m/train.jsonl", time.time() + 90)
    with pytest.raises(SourcesMissing, match=r"m/train.jsonl has a time in the future.*`touch"):
        of_train().manifests()
    assert of_train(unchanged=["m/train.jsonl"]).manifests() == ["old m/train.jsonl"]
    touch("m/train.jsonl", time.time() + 50)  # a clock may be so far ahead
    assert of_train().manifests() == ["m/train.jsonl"]


def test_of_the_shards_of_speech_the_config_says_nothing_of_where_tars_lie():
    asr = inputs(tar_root="/t", path_map={"/a": "/b"})
    assert (asr.tar_root(), asr.path_map()) == ("results/speech/shards", "{}")
    assert (asr.sweep(), asr.indices()) == ("", [])
    asr.speech_shards = list  # there is no corpus
    assert asr.data() == asr.targets() == []


def test_the_buckets_differ_by_all_that_they_are_built_with():
    choices = {field.name for field in fields(BucketChoices)} - {"threads", "parts"}
    places = {"source", "manifest_dir", "tar_root", "tar_template", "path_map"}
    assert inputs().stages["data"].keys == choices | places | {"max_error_fraction"}


def test_rows_of_dev_and_the_table_of_tars_are_files_that_may_be_lost():
    buckets = [{"bucket_id": "b_3_5", "path": "b_3_5.parquet"}]
    atomic.write_json(BUCKETS, {"buckets": buckets, "splits": {"dev": {"path": "dev.parquet"}}})
    lost = [f"results/asr/buckets/{name}.parquet" for name in ("b_3_5", "dev", "tars")]
    assert inputs().listed.lost() == dict.fromkeys(lost, BUCKETS)


def test_the_longest_bucket_is_calibrated_first_and_on_the_device_that_is_asked_for():
    names = inputs(edges=[0, 5, 10]).bucket_calibrations()
    folder = "results/asr/calibration/buckets"
    assert names == [f"{folder}/b_5_10.json", f"{folder}/b_0_5.json"]
    cuda = {"device": "cuda"}
    with pytest.raises(SystemExit, match=r"asr\.calibration\.device is cuda"):
        inputs(0, calibration=cuda).bucket_calibrations()
    assert inputs(2, calibration={"device": "cpu"}).bucket_gpus() == 0
    assert inputs(calibration={"soak_steps": 0}).calibrate() == [CALIBRATION]
    assert "--nproc-per-node 2" in inputs(ranks=2).verifier()


def test_calibration_and_verification_train_as_the_runs_do():
    training = {"precision": "bf16-mixed", "grad_acc": 2, "max_bad_fraction": 0.2}
    asr = inputs(training=training, seed=7, calibration={"max_memory_gb": 9.0, "device": "cpu"})
    for arguments in (asr.calibration_arguments(), asr.verification_arguments()):
        for flag in (
            "--precision bf16-mixed",
            "--grad-acc 2",
            "--max-bad-fraction 0.2",
            "--seed 7",
            "--max-memory-gb 9.0",
            "--device cpu",
            "--soak-steps 200",
        ):
            assert flag in arguments


def test_runs_of_the_throughput_report_differ_in_length_and_loader():
    steps = {"check_steps": 5, "bench_steps": 200, "profile_steps": 20}
    asr = inputs(throughput=steps)
    flags = {
        "check": ["--max-steps 5", "--log-steps 1 ", "--loader every-bucket", "--seed 42"],
        "bench": ["--max-steps 200", "--log-steps 20", "--eval-samples 64", "--save-steps 0 "],
        "baseline": ["--max-steps 200", "--loader baseline"],
        "profile": ["--max-steps 24", "--profile-steps 20"],
    }
    for run, expected in flags.items():
        arguments = f"{asr.run_arguments(SimpleNamespace(run=run))} "
        assert all(flag in arguments for flag in expected), (run, arguments)


def test_the_audit_of_a_run_has_its_seed_its_batches_and_all_ranks(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    shared = {"seed": 7, "model_path": f"{tmp_path}", "ranks": 2, "nodes": 3}
    asr = inputs(**shared, calibration={"enabled": True}, runs={"a": {"batch_seconds": 9}})
    audited = asr.audited("a")
    chosen = {"seed": 7, "model": f"{tmp_path}", "batch_seconds": 9, "calibration": CALIBRATION}
    assert chosen.items() <= audited.arguments.items()
    assert (audited.files, audited.ranks) == ([BUCKETS, CALIBRATION], 6)
    assert f"--model {tmp_path}" in asr.run_arguments(RUN_A)


def test_without_runs_there_is_no_page_of_them():
    assert inputs().runs_page() == [] and inputs(runs={"a": {}}).runs_page() == [RUNS_PAGE]
