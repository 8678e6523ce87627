"""Every command that a dry run prints can be pasted: it parses with its step's own parser."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys

import pytest

from millrace.asr.inputs import AsrInputs
from millrace.common.workflow.config import load_schema
from millrace.common.workflow.sources import Sources
from millrace.image.inputs import ImageInputs
from millrace.music.inputs import MusicInputs
from millrace.speech.inputs import SpeechInputs
from tests.workflow.workflow import ROOT, Job

# Inputs that a step finds itself, through a file or folder it is given: too many for a command
# line.
FOUND_BY_THE_STEP = {
    "image_merge_records": {"reports"},
    "image_train_active": {"records", "audit"},
    "image_benchmark_readers": {"records"},
    "speech_merge_manifest": {"parts"},
    "speech_merge_shards": {"manifests", "shards", "held_out_indices"},
    "music_create_features": {"recordings"},
    "music_merge_feature_index": {"tables"},
    # Among the overrides.
    "music_train_model": {"index", "conf", "audit"},
    "music_evaluate_model": {"metrics"},
    # It is there if the run may start.
    "asr_train_model": {"audit"},
    "audit_check_loader": {"data"},
}

# Options that no rule gives: for use by hand, or another spelling of what a rule gives, or left as
# they are unless the config says so. What trains has all of its options from `runs`.
NOT_GIVEN = {
    "asr_build_bucket_manifests": {"dev", "speech_transcript", "test", "train"},
    "asr_build_tar_indices": {"json"},
    "asr_calibrate_bucket_bs": {"calibration", "min_bs", "mode", "start_bs", "steps"},
    "asr_upload_model": {"public"},
    "audit_check_loader": {"expect", "ignore", "loop", "memory_mb", "only", "sarif", "start_method"}
    | {"strict", "workers"},
    "audit_verify_findings": {"ignore"},
    "image_benchmark_readers": {"images", "only", "workers"},
    "image_create_records": {"max_error_fraction", "on_leak", "raw_data_dir", "seed"}
    | {"train_files", "train_size", "val_files", "val_resize", "val_size"},
    "music_build_feature_index": {"h5_root", "jsonl", "mm_root", "out", "prefer", "splits"},
    "music_create_features": {"per_chunk"},
    "music_evaluate_model": {"threads"},
    "music_fetch_demo": {"seed"},
    "music_train_model": {"threads"},
    "speech_create_shards": {"country", "manifest_dir", "max_videos"},
    "speech_generate_manifest": {"audio_roots", "countries_root", "country", "manifest_dir"},
    "speech_upload_shards": {"allow_delete", "public"},
}
OF_TRAINING = {"grad_acc", "gradient_checkpointing", "max_bad_fraction", "num_workers", "precision"}


def parser_of(rule: str) -> argparse.ArgumentParser:
    lane, _, step = rule.partition("_")
    return importlib.import_module(f"millrace.{lane}.{step}").make_parser()


def parse(command: str) -> tuple[str, dict]:
    """(module, parsed options) of `python -m <module> … 2> <log>`."""
    words = shlex.split(command)
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        del words[0]
    assert words[:2] == ["python", "-m"], command
    module, argv = words[2], words[3:]
    assert argv[-2] == "2>", command
    # A parser ends the test with SystemExit and its own message where an option is unknown or
    # missing.
    return module, vars(importlib.import_module(module).make_parser().parse_args(argv[:-2]))


def test_every_job_rule_occurs_and_parses(dry_run, jobs):
    seen = set()
    for job in dry_run:
        module, _ = parse(job.command)
        lane, _, step = job.rule.partition("_")
        assert module == f"millrace.{lane}.{step}"
        seen.add(job.rule)
    assert seen == set(jobs)


def test_commands_carry_the_files_and_the_choices_of_their_job(dry_run):
    for job in dry_run:
        _, options = parse(job.command)
        for text in filter(None, job.wildcards.split(", ")):
            name, _, value = text.partition("=")
            assert value in str(options.get(name) or value), job.command
        lists = (value if isinstance(value, list) else [value] for value in options.values())
        given = {str(text) for values in lists for text in values}
        for output in job.output.split(", "):
            assert output in given, f"{job.rule}: {output} is no option's value"


def test_every_named_file_and_parameter_is_in_the_command(jobs):
    for name, rule in jobs.items():
        said = set(re.findall(r"\{(?:input|output|params)\.(\w+)", rule["shell"]))
        unsaid = {*rule["inputs"], *rule["outputs"], *rule["params"]} - said
        assert unsaid == FOUND_BY_THE_STEP.get(name, set()), name
    # A flag that is written in a rule would not follow the config.
    for rules in (ROOT / "rules").glob("*.smk"):
        assert not re.search(r'= *f?"--', rules.read_text()), rules.name


def test_a_flag_carries_the_file_or_parameter_that_is_called_like_it(jobs):
    for name, rule in jobs.items():
        known = {*rule["inputs"], *rule["outputs"], *rule["params"]}
        for flag, carried in re.findall(r"--([\w-]+)[ =]\{\w+\.(\w+)(?::q)?\}", rule["shell"]):
            named = flag.replace("-", "_")
            assert named == carried or named not in known, f"{name}: --{flag} {carried}"
        for flag, folder in re.findall(r"--(manifest|shards|partitions)-dir (\S+)", rule["shell"]):
            assert folder.endswith(f"/{flag}"), f"{name}: --{flag}-dir {folder}"


def test_a_command_names_no_file_but_through_the_inputs_and_outputs_of_its_job(jobs):
    """Or its job neither waits for the file nor is pending when that has changed."""
    named = {
        name: re.findall(r"(?:results|resources|logs)/[^\s\"]*\.\w+", rule["shell"])
        for name, rule in jobs.items()
    }
    # A checkpoint, of which the metrics beside it are the declared output.
    best = "results/music/runs/{wildcards.run:q}/checkpoint_best.ckpt"
    expected = {"music_evaluate_model": [best]}
    assert {name: files for name, files in named.items() if files} == expected


def test_each_option_of_a_step_is_given_by_its_rule_or_is_for_use_by_hand(dry_run):
    missing = {}
    for job in dry_run:
        words = {word.partition("=")[0] for word in shlex.split(job.command)}
        options = parser_of(job.rule)._option_string_actions
        absent = {action.dest for action in options.values()} - {"help"}
        absent -= {options[word].dest for word in words & options.keys()}
        missing[job.rule] = missing.get(job.rule, absent) & absent
    for rule in ("asr_train_model", "image_train_active"):
        del missing[rule]
    for rule in ("asr_calibrate_bucket_bs", "asr_verify_calibration"):
        missing[rule] -= OF_TRAINING
    assert {rule: absent for rule, absent in missing.items() if absent} == NOT_GIVEN


def options_of(dry_run: list[Job], rule: str) -> dict:
    (job,) = (job for job in dry_run if job.rule == rule)
    return parse(job.command)[1]


def test_a_run_of_music_is_evaluated_on_test_by_its_best_model(dry_run):
    best = "checkpoint=results/music/runs/tiny/checkpoint_best.ckpt"
    assert options_of(dry_run, "music_evaluate_model")["overrides"] == ["partition=test", best]


@pytest.mark.parametrize("step", ["build", "merge"])
def test_features_are_indexed_by_the_contract_of_the_config(dry_run, step):
    assert options_of(dry_run, f"music_{step}_feature_index")["bins"] == 72


def test_the_audit_of_the_config_is_what_is_run_and_judged(dry_run):
    given = {"lane=music, run=tiny": {}, "lane=image, run=demo": {}}
    for job in dry_run:
        if job.rule in ("audit_check_loader", "audit_verify_findings"):
            given[job.wildcards] |= parse(job.command)[1]
            if job.rule == "audit_check_loader":
                assert "MILLRACE_LOADER_CODE=" in job.command
    music, image = given.values()
    assert (music["timeout"], music["exit_zero"], music["refuse"]) == (99, True, "DP1")
    # Nothing is refused there, but the audit was asked for.
    assert (image["exit_zero"], image["refuse"]) == (True, "none")


def test_runs_are_reported_and_trained_each_in_its_own_place(dry_run):
    throughput = options_of(dry_run, "asr_report_throughput")
    for run in ("bench", "baseline", "check", "profile"):
        assert str(throughput[run]) == f"results/asr/runs/{run}/metrics.json"
    scratch = options_of(dry_run, "image_train_active")["local_scratch_dir"]
    assert str(scratch) == "results/image/epochs/demo"


@pytest.mark.parametrize(
    "rule, wildcards, read",
    [
        # What copies are compared with lies in all countries.
        (
            "speech_merge_shards",
            "country=malta",
            "results/speech/shards/partitions/new%20zealand-test-00000/index.parquet",
        ),
        ("speech_merge_index", "", "results/speech/shards/malta_index.parquet"),
        ("speech_merge_index", "", "results/speech/shards/malta_ledger.json"),
        ("music_report_training", "", "results/music/runs/tiny/test.json"),
    ],
)
def test_a_job_waits_for_what_others_write(dry_run, rule, wildcards, read):
    (job,) = (job for job in dry_run if (job.rule, job.wildcards) == (rule, wildcards))
    assert read in job.input.split(", ")


@pytest.mark.parametrize("inputs", [SpeechInputs, AsrInputs, MusicInputs, ImageInputs])
def test_a_lane_tells_the_parse_and_its_rules_all_that_its_inputs_know(inputs):
    lane = inputs.__name__.removesuffix("Inputs").lower()
    text = (ROOT / f"rules/{lane}.smk").read_text()
    (registered,) = re.findall(r"LANES\.register_targets\((.*)\)", text)
    names = set(re.findall(rf"{lane.upper()}\.(\w+)", registered))
    known = {"targets", "stages", "listed", "pending_notes"}
    assert names == {name for name in known if hasattr(inputs, name)}
    # Each function that is asked with the wildcards of a job is asked by a rule.
    asked = set(re.findall(rf"\b{lane.upper()}\.(\w+)", text))
    with_wildcards = {
        name
        for name, function in inspect.getmembers(inputs, inspect.isfunction)
        if "wildcards" in inspect.signature(function).parameters
    }
    # A step that trains asks for GPUs, perhaps those of nodes: test_layout.
    unasked = with_wildcards - asked - {"gpus"}
    assert {name for name in unasked if not name.startswith("_")} == set()
    # The merge, or the job that makes what the index lists, makes again what is lost.
    assert re.findall(r'LANES\.remaking\("(\w+)"', text) == [lane]


def test_a_parameter_that_is_a_flag_is_called_like_its_key_and_is_one_of_its_own_lane():
    count = 0
    for path in (ROOT / "rules").glob("*.smk"):
        text = path.read_text()
        for name, lane, key in re.findall(r'(\w+)=LANES\.flag\("(\w+)", "(\w+)"\)', text):
            assert (name, lane) == (key, path.stem), f"{path.name}: {name}"
            count += 1
        lanes = set(re.findall(r'\bconfig\["(\w+)"\]', text))
        assert lanes <= {path.stem}, f"{path.name} reads the section of another lane"
    assert count > 15


@pytest.mark.parametrize(
    "lane, wildcard, names",
    [
        ("speech", "partition", ["new zealand-train-12-123456", "malta-validation-00000"]),
        ("speech", "publication", ["receipt.json", "diff.txt"]),
        ("asr", "tars", ["tars-00000", "tars-123456"]),
        ("asr", "bucket", ["b_0_3", "b_7.5_10"]),
        ("asr", "run", ["qwen3-asr-1.7b", "bench_12"]),
        ("asr", "checkpoint", ["best", "last", "step-00000500"]),
        ("asr", "layout", ["transformers", "qwen-asr"]),
        ("music", "features", ["mm-ab", "h5-below%2Fchunk 1.h5"]),
        ("image", "block", ["train-00000", "val-00000", "validation-00000"]),
        ("image", "split", ["train", "val", "validation"]),
        ("audit", "lane", ["asr", "music", "image"]),
    ],
)
def test_a_wildcard_admits_each_name_that_its_lane_gives(lane, wildcard, names):
    text = (ROOT / f"rules/{lane}.smk").read_text()
    (pattern,) = re.findall(rf'^    {wildcard}=r"(.*)",$', text, re.MULTILINE)
    assert [name for name in names if not re.fullmatch(pattern, name)] == []


def keys_given(job: Job) -> set[str]:
    """The keys of the lane's config that are flags in a command."""
    lane = job.rule.partition("_")[0]
    known = load_schema(ROOT / f"rules/schemas/{lane}.schema.yaml")["properties"]
    words = set(shlex.split(job.command))
    options = parser_of(job.rule)._option_string_actions
    return {options[word].dest for word in words & options.keys()} & known.keys()


SPEECH = SpeechInputs(Sources(), {"repo": ""})
CUT = ["generate_manifest", "create_shards", "merge_shards"]


@pytest.mark.parametrize(
    "lane, stage, inputs, steps, of_the_parse",
    [
        ("speech", "manifest", SPEECH, CUT[:1], {"countries"}),
        ("speech", "shards", SPEECH, CUT, {"countries"}),
        (
            "asr",
            "data",
            AsrInputs({}, Sources(), list),
            ["build_tar_indices", "build_bucket_manifests"],
            {"source", "manifest_dir", "tar_root"},
        ),
        (
            "music",
            "index",
            MusicInputs({}, Sources()),
            ["merge_feature_index"],
            {"h5_root", "mm_root", "contract"},
        ),
        (
            "image",
            "records",
            ImageInputs({}, Sources()),
            ["merge_records"],
            {"raw_data_dir", "records"},
        ),
    ],
)
def test_steps_are_given_each_key_of_their_stage_and_no_other(
    dry_run, lane, stage, inputs, steps, of_the_parse
):
    rules = {f"{lane}_{step}" for step in steps}
    given = [keys_given(job) for job in dry_run if job.rule in rules]
    assert set().union(*given) == {*inputs.stages[stage].keys} - of_the_parse
    # What decides on a stage is said when it changes.
    sources = importlib.import_module(f"millrace.{lane}.sources")
    assert sources.QUIET_KEYS.isdisjoint(inputs.stages[stage].keys)


def test_every_parser_knows_its_own_command_and_explains_every_option(jobs):
    for name in jobs:
        lane, _, step = name.partition("_")
        parser = parser_of(name)
        assert parser.prog == f"python -m millrace.{lane}.{step}"
        assert parser.description
        for action in parser._actions:
            assert action.help, f"{name}: {action.option_strings} has no help"
            assert all(
                re.fullmatch(r"-[a-z]|--[a-z0-9]+([-_][a-z0-9]+)*", text)
                for text in action.option_strings
            ), name


def test_a_printed_command_runs_when_pasted(fresh, dry_run):
    """The shell gets what Snakemake prints, a name with a percent sign included."""
    job = next(
        job for job in dry_run if job.rule == "speech_generate_manifest" and "%20" in job.wildcards
    )
    # Somewhere else, so that for the other tests nothing is built.
    there = fresh.folder / "pasted"
    (there / job.log).parent.mkdir(parents=True)
    (there / job.input).parent.mkdir(parents=True)
    (there / job.input).write_bytes((fresh.folder / job.input).read_bytes())
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", job.command], cwd=there, env=fresh.environment(PATH=path))
    assert done.returncode == 0, (there / job.log).read_text()
    assert all((there / output).is_file() for output in job.output.split(", "))
