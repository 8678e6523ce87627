"""The dry run is an interface: what it lists, says and loads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests import corpora
from tests.image.trees import small_tree
from tests.workflow.conftest import one_row
from tests.workflow.test_layout import HEAVY
from tests.workflow.workflow import ROOT, Job, Plan, Workflow

PROFILES = sorted(path.parent for path in (ROOT / "profiles").glob("*/config.yaml"))
# Six partitions: train, validation and test of two countries.
PARTITIONS, COUNTRIES = 6, 2
MANIFESTS = {"speech_generate_manifest": PARTITIONS, "speech_merge_manifest": COUNTRIES}
SHARDS = {
    "speech_generate_manifest": PARTITIONS,
    "speech_create_shards": PARTITIONS,
    "speech_merge_shards": COUNTRIES,
    "speech_merge_index": 1,
}
SPEECH = MANIFESTS | SHARDS | {"speech_report_corpus": 1}
CARD = SHARDS | {"speech_write_card": 1}
ASR_DATA = SHARDS | {"asr_build_bucket_manifests": 1}
# check, bench_1, baseline and profile.
ASR_THROUGHPUT = ASR_DATA | {"asr_train_model": 4, "asr_report_throughput": 1}
ASR_CALIBRATE = ASR_DATA | {
    "asr_calibrate_bucket_bs": 7,
    "asr_merge_calibration": 1,
    "asr_verify_calibration": 1,
}
EVERYTHING = SPEECH | ASR_DATA
EXPECTED = {
    "all": EVERYTHING,
    "speech": SPEECH,
    "speech_manifest": MANIFESTS,
    "speech_shards": SHARDS,
    "speech_fetch_corpus": {"speech_fetch_corpus": 1},
    "speech_hub": CARD | {"speech_upload_shards": 1},
    "speech_hub_diff": CARD | {"speech_upload_shards": 1},
    "asr": ASR_DATA,
    "asr_data": ASR_DATA,
    "asr_calibrate": ASR_CALIBRATE,
    "asr_throughput": ASR_THROUGHPUT,
}
# By what they ask for, which is nothing here.
NOTHING = {
    # Without runs in the config there is nothing to train.
    "asr_train": ["runs", "runs_page"],
    "asr_hub": ["receipts"],
    # Without features, and the demo was not fetched: a hint.
    "music": ["targets"],
    "music_index": ["index"],
    "music_train": ["runs"],
    # The demo was not fetched: a hint.
    "image": ["targets"],
    "image_records": ["records"],
    "image_train": ["runs"],
    "image_readers": ["readers"],
    # Of the runs of the lanes that are switched on; here is none.
    "audit": ["targets"],
}


MALTA = {"countries_root": "corpus", "assignment_file": "a.jsonl"}


@pytest.fixture
def malta(tmp_path) -> Path:
    """A folder with a corpus of one recording."""
    corpora.make_corpus(tmp_path / "corpus", {"malta": 1}, seconds=10)
    return tmp_path


def counts(jobs: list[Job]) -> dict[str, int]:
    return dict(Counter(job.rule for job in jobs))


def said(done: subprocess.CompletedProcess) -> list[str]:
    """What Millrace itself says, apart from Snakemake."""
    return [line for line in done.stderr.splitlines() if line.startswith("Millrace:")]


def test_every_target_for_people_is_listed_here(rules):
    targets = {name for name, rule in rules.items() if not rule["shell"]}
    assert targets <= {*EXPECTED, *NOTHING}


@pytest.mark.parametrize("target", EXPECTED)
def test_each_target_lists_what_it_should(fresh, target):
    assert counts(fresh.dry(target)) == EXPECTED[target]


def test_targets_of_which_nothing_is_there_or_chosen_list_nothing(fresh):
    assert fresh.dry(*NOTHING) == []


def test_those_targets_ask_for_what_their_names_say(rules):
    assert {name: rules[name]["asks"] for name in NOTHING} == NOTHING


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.name)
def test_all_targets_together_list_the_same_jobs_under_each_profile(fresh, profile):
    jobs = counts(fresh.dry(*EXPECTED, *NOTHING, "--profile", str(profile)))
    expected = Counter()
    for of_target in EXPECTED.values():
        expected |= Counter(of_target)
    # One to upload, and one to tell what would be uploaded.
    assert jobs == expected + Counter(speech_upload_shards=1)


def test_the_default_target_is_everything(fresh):
    assert counts(fresh.dry()) == EVERYTHING


def test_the_throughput_runs_are_no_part_of_the_lane(fresh):
    jobs = fresh.dry("all", "asr", "asr_train", "--config", "asr={runs: {demo: {epochs: 1}}}")
    # "": the page of the runs.
    wildcards = [job.wildcards for job in jobs if job.rule.startswith(("asr_train", "asr_report"))]
    assert sorted(wildcards) == ["", "run=demo"]


def test_the_example_for_qwen_runs_as_it_stands(tmp_path):
    config = yaml.safe_load((ROOT / "docs/examples/qwen3-asr-1.7b.yaml").read_text())
    one_row(tmp_path / "audio.tar", tmp_path / "manifests/train.parquet")
    (tmp_path / "models/qwen3-asr-1.7b").mkdir(parents=True)
    (tmp_path / "models/qwen3-asr-1.7b/config.json").write_text("{}")
    workflow = Workflow(tmp_path, **config)
    jobs = workflow.dry("asr_calibrate", "asr_train", "asr_throughput")
    assert counts(jobs)["asr_calibrate_bucket_bs"] == 7 and counts(jobs)["asr_train_model"] == 1 + 4
    (run,) = (job for job in jobs if job.wildcards == "run=qwen3-asr-1.7b")
    for flag in (
        "--lr 2e-05",
        "--precision bf16-mixed",
        "--gradient-checkpointing 1",
        "--num-workers 16",
    ):
        assert flag in run.command


def test_every_pending_job_has_a_reason_and_no_segment_is_a_job(dry_run):
    assert all(job.reason for job in dry_run)
    kinds = {job.wildcards.partition("=")[0] for job in dry_run}
    of_speech = {"partition", "country", "publication"}
    of_others = {"tars", "bucket", "run", "features", "block", "split", "lane"}
    assert kinds <= of_speech | of_others | {""}


def test_dry_runs_leave_nothing_but_partitions_and_decide_nothing(fresh, dry_run):
    built = {path.name for path in (fresh.folder / "results/speech").iterdir()}
    assert built == {"partitions"}
    assert not (fresh.folder / "logs").exists() and not (fresh.folder / "benchmarks").exists()
    assert not (fresh.folder / "resources/speech/assignment.jsonl").exists()


def test_a_second_parse_writes_nothing(fresh, dry_run):
    before = fresh.files("results/**/*")
    fresh.dry()
    assert fresh.files("results/**/*") == before


def test_a_first_dry_run_says_what_is_new_and_the_next_one_follows_other_settings(tmp_path):
    corpora.make_corpus(tmp_path / "corpus", {"malta": 4}, seconds=10)
    for hours, partitions in ((10, 3), (1e-6, 4)):
        done = Workflow(
            tmp_path, lanes=["speech"], speech={**MALTA, "partition_hours": hours}
        ).call("-n")
        line = f"Millrace: speech: 4 recordings new -> {partitions} of {partitions} partitions"
        assert said(done) == [line] and done.returncode == 0
        assert len(list((tmp_path / "results/speech/partitions").glob("*.json"))) == partitions
    assert not (tmp_path / "a.jsonl").exists()


def fake(folder: Path, name: str, text: str = "") -> None:
    """Write a file as if its job had."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def built(folder: Path, target: str, **section: str) -> Workflow:
    """A lane with all that its jobs say they make."""
    lane = target.partition("_")[0]
    workflow = Workflow(folder, lanes=[lane], **{lane: section})
    for job in workflow.dry(target):
        for output in job.output.split(", "):
            fake(folder, output)
    return workflow


def built_buckets(folder: Path) -> tuple[Workflow, str, str, str]:
    one_row(folder / "audio.tar", folder / "manifests/train.parquet")
    workflow = built(folder, "asr_data", source="manifests", manifest_dir="manifests")
    lost = "results/asr/buckets/train/b_3_5.parquet"
    for name in (lost, "results/asr/buckets/tars.parquet"):
        fake(folder, name)
    config = json.dumps({"buckets": [{"bucket_id": "b_3_5", "path": "train/b_3_5.parquet"}]})
    fake(folder, "results/asr/buckets/bucket_config.json", config)
    return workflow, "asr_data", lost, "asr_build_bucket_manifests"


def built_records(folder: Path) -> tuple[Workflow, str, str, str]:
    small_tree(folder, classes=1, train=2)
    workflow = built(folder, "image_records", raw_data_dir=".")
    lost = ""
    for split in ("train", "val"):
        files = []
        for block in sorted(folder.glob(f"results/image/partitions/{split}-*.json")):
            files += json.loads(block.read_text())["files"]
        for file in files:
            lost = f"results/image/records/{split}/{file['name']}"
            fake(folder, lost)
        fake(folder, f"results/image/records/{split}/records.json", json.dumps({"files": files}))
    return workflow, "image_records", lost, "image_create_records"


def built_features(folder: Path) -> tuple[Workflow, str, str, str]:
    fake(folder, "features/chunk_1.h5")
    section = {"h5_root": "features", "mm_root": "", "jsonl": "", "splits": ""}
    workflow = built(folder, "music_index", **section)
    lost = "results/music/features/h5-chunk_1.h5.parquet"
    return workflow, "music_index", lost, "music_build_feature_index"


def test_the_table_of_a_new_file_of_features_is_not_called_lost(tmp_path):
    workflow, target, *_ = built_features(tmp_path)
    assert workflow.plan(target) == Plan(jobs=[], said=[])
    fake(tmp_path, "features/chunk_2.h5")
    plan = workflow.plan(target)
    assert {job.rule for job in plan.jobs} == {
        "music_build_feature_index",
        "music_merge_feature_index",
    }
    assert plan.said == [
        "Millrace: music: 0 chunks changed, 1 new (chunk_2.h5), 0 gone -> 1 of 2 partitions"
        " and the index"
    ]


@pytest.mark.parametrize("build", [built_buckets, built_records, built_features])
def test_what_an_index_lists_and_is_lost_is_named_and_pending_until_it_is_back(tmp_path, build):
    workflow, target, lost, rule = build(tmp_path)
    assert workflow.plan(target) == Plan(jobs=[], said=[])
    path = tmp_path / lost
    path.rename(tmp_path / "aside")
    before = workflow.files("results/**/*")
    plan = workflow.plan(target)
    assert rule in {job.rule for job in plan.jobs}
    assert f"Millrace: {target.partition('_')[0]}: lost: {path.name}" in plan.said
    # The lane of another target says nothing, and nothing but the job's own target is added.
    done = workflow.call("-n", "speech_fetch_corpus")
    assert "lost" not in done.stderr and rule not in done.stdout
    assert workflow.files("results/**/*") == before
    (tmp_path / "aside").rename(path)
    for index in tmp_path.glob("results/*/*/**/*.json"):
        if index.name in ("bucket_config.json", "records.json"):
            index.write_text("{")  # the step that reads it says so
    assert workflow.dry(target) == []


def test_rules_are_a_table_of_contents(fresh, rules):
    done = fresh.call("--list-rules")
    assert done.returncode == 0
    lines = dict(re.findall(r"^(\w+) \((.*)\)$", done.stdout, re.M))
    assert lines == {name: rule["docstring"] for name, rule in rules.items()}


HINT = (
    "Millrace: speech: no corpus at resources/speech/countries: run `snakemake speech_fetch_corpus`"
    " for the demo corpus, or set speech.countries_root"
)


@pytest.mark.parametrize("target", ["all", "speech_merge_index"])
def test_a_demo_that_was_never_fetched_is_a_hint(tmp_path, target):
    done = Workflow(tmp_path).call("-n", target)
    assert (done.returncode, said(done)) == (0, [HINT]) and "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists() and not (tmp_path / "resources").exists()


def test_a_dry_run_that_is_piped_ends_with_what_differs(malta):
    command = Workflow(malta, speech=MALTA).command("-n", "speech")
    done = subprocess.run(
        command, cwd=malta, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert "Job stats:" in lines
    assert lines[-1] == "Millrace: speech: 1 recording new -> 1 of 1 partitions"


@pytest.mark.parametrize("argument", ["--list-rules", "--lint", "--unlock"])
def test_without_a_corpus_what_needs_none_works(tmp_path, argument):
    done = Workflow(tmp_path, speech={"countries_root": "nowhere"}).call(argument)
    assert done.returncode == 0 and said(done) == []


def test_without_a_corpus_it_can_still_be_fetched(tmp_path):
    assert counts(Workflow(tmp_path).dry("speech_fetch_corpus")) == {"speech_fetch_corpus": 1}


ROOT_KEY, MANIFEST_KEY = (
    "Millrace: speech: speech.countries_root: ",
    "Millrace: asr: asr.manifest_dir: ",
)


@pytest.mark.parametrize("target", ["all", "speech"])
@pytest.mark.parametrize(
    "root, line",
    [
        ("nowhere", "nowhere does not exist; expected there: <country>/Alignment/"),
        ("corpus/malta", "; set it to corpus; "),
    ],
)
def test_a_corpus_that_is_not_there_is_an_error(malta, root, line, target):
    done = Workflow(malta, speech={"countries_root": root}).call("-n", target)
    (text,) = said(done)
    assert done.returncode == 1 and text.startswith(ROOT_KEY) and line in text


@pytest.mark.parametrize(
    "folder, line",
    [("", "'' does not exist"), ("up", "; set it to up/tars; expected there: train")],
)
def test_manifests_that_are_not_there_are_an_error_of_that_lane_only(malta, folder, line):
    (malta / "up/tars").mkdir(parents=True)
    (malta / "up/tars/train.parquet").touch()
    workflow = Workflow(malta, speech=MALTA, asr={"source": "manifests", "manifest_dir": folder})
    done = workflow.call("-n", "asr_data")
    text = said(done)[-1]
    assert done.returncode == 1 and text.startswith(MANIFEST_KEY) and line in text
    if folder:
        assert workflow.call("-n", "all").returncode == 1
        assert workflow.call("-n", "speech").returncode == 0
        assert workflow.call("-n", "--config", "lanes=[speech]").returncode == 0


def test_a_country_that_is_not_there_is_an_error_in_one_line(malta):
    section = {**MALTA, "countries": ["malta", "atlantis"]}
    done = Workflow(malta, speech=section).call("--dry-run")
    assert done.returncode != 0
    (line,) = said(done)
    assert "atlantis" in line and "malta" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "broken, asr, line",
    [
        (
            "speech:\n\tmax_cer: 1\n",
            {},
            "Millrace: config.yaml, line 2: the file is not valid YAML",
        ),
        (
            "speech: {}\nspeech: {max_cer: 1}\n",
            {},
            "  config.yaml: duplicate key speech (lines 1 and 2)",
        ),
        (
            "{}",
            {"training": {"device": "cuda"}, "runs": {"a": {}}},
            "Millrace: asr: asr.training.device is cuda",
        ),
    ],
)
def test_a_mistake_in_the_config_stops_in_one_line(malta, broken, asr, line):
    (malta / "config.yaml").write_text(broken)
    workflow = Workflow(malta, speech=MALTA, asr=asr)
    gpus = workflow.environment(CUDA_VISIBLE_DEVICES="")
    done = workflow.call("--dry-run", env=gpus)
    assert (
        done.returncode == 1
        and sum(text.startswith(line) for text in done.stderr.splitlines()) == 1
    )
    assert "Traceback" not in done.stderr
    if "device" in line:  # the data need no GPU, and with another executor the jobs run elsewhere
        assert workflow.call("--dry-run", "speech", "asr_data", env=gpus).returncode == 0
        assert (
            workflow.call("--dry-run", "--executor", "slurm", "--jobs", "2", env=gpus).returncode
            == 0
        )


def test_a_lane_that_is_switched_off_builds_nothing(fresh):
    done = fresh.call("--dry-run", "--config", "lanes=[]")
    assert done.returncode == 0 and said(done) == []
    assert "speech_generate_manifest" not in done.stdout


def test_our_code_loads_nothing_heavy_for_a_dry_run(fresh):
    """Counted at the importer: a heavy module that only Snakemake asks for is not ours."""
    command = [sys.executable, "-X", "importtime", *fresh.command("--dry-run", "--quiet")[1:]]
    done = subprocess.run(command, cwd=fresh.folder, capture_output=True, text=True)
    assert done.returncode == 0
    names = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.M)
    # Before our first module Snakemake loads its plugins, and what they need.
    first = next(number for number, name in enumerate(names) if name.startswith("millrace"))
    loaded = set(names[first:])
    assert "millrace.common.workflow.lanes" in loaded and "millrace.speech.sources" in loaded
    # The Slurm plugin loads pandas and pyarrow; none of what we import does (test_layout.py: the
    # other half).
    assert not loaded & set(HEAVY) - {"numpy", "pandas", "pyarrow"}
    rooms = {name.split(".")[2] for name in loaded if name.startswith("millrace.speech.")}
    assert rooms <= {"corpus", "inputs", "names", "sources"}


def on_terminal(workflow: Workflow, *arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and output of snakemake where it writes to a terminal."""
    plain = {name: value for name, value in os.environ.items() if name != "CI"}
    plain |= {"TERM": "xterm", "COLUMNS": "100"} | environment
    code, text = workflow.call_on_terminal(*arguments, env=plain)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)


def test_a_dry_run_on_a_terminal_is_a_table_and_the_reasons(fresh):
    code, text = on_terminal(fresh, "--dry-run", "speech_shards")
    assert code == 0 and re.search(r"speech create shards +6 ", text)
    assert "output files have to be generated:\n        speech_create_shards" in text
    assert len(text.splitlines()) < 30 and "results/speech/manifest/partitions" not in text


@pytest.mark.parametrize(
    "arguments, environment", [(["-p"], {}), ([], {"CI": "1"}), ([], {"TERM": "dumb"})]
)
def test_plain_text_has_a_message_a_job_and_commands_if_asked_for(fresh, arguments, environment):
    code, text = on_terminal(fresh, "--dry-run", "speech_shards", *arguments, **environment)
    assert code == 0 and re.search(
        r"^Job \d+: Cut malta-test-00000 into shards\nReason: ", text, re.M
    )
    assert ("Shell command: python -m millrace.speech.create_shards" in text) == bool(arguments)


def test_a_failed_job_on_a_terminal_shows_its_message_and_its_log(malta):
    workflow = Workflow(malta, speech=MALTA)
    # A level that logging does not know: the step ends before it begins.
    code, text = on_terminal(workflow, "speech_manifest", MILLRACE_LOG="LOUD")
    assert code == 1
    assert (
        "✗ Failed: Check the segments of malta-train-1-00000 (speech_generate_manifest)\n" in text
    )
    log = "── logs/speech/generate_manifest/malta-train-1-00000.log\n"
    assert "Millrace: failed: speech_generate_manifest malta-train-1-00000: " in text
    assert log in text and "Unknown level: 'LOUD'" in text.partition(log)[2]
    notes = (malta / ".snakemake").glob("metadata/**/*")  # by which it would count as done
    assert [path for path in notes if path.is_file()] == []


def test_every_job_has_a_message_with_its_wildcards(dry_run):
    for job in dry_run:
        values = [pair.partition("=")[2] for pair in filter(None, job.wildcards.split(", "))]
        assert job.message and all(value in job.message for value in values), job.rule


@pytest.mark.e2e
def test_a_run_says_what_it_made_and_the_next_dry_run_what_the_config_changes(tmp_path):
    folder = small_tree(tmp_path / "images", classes=1, train=2)
    section = {"raw_data_dir": "."}
    said_at_end = Workflow(folder, lanes=["image"], image=section).run("image_records")
    assert "Millrace: image: train: 2 records of 1 classes" in said_at_end
    changed = Workflow(folder, lanes=["image"], image={**section, "on_leak": "keep"})
    plan = changed.plan("image_records")
    assert plan.said == ["Millrace: image: on_leak reject -> keep"]
    assert [job.wildcards for job in plan.jobs] == ["split=train"]
    elsewhere = Workflow(folder, lanes=["image"], image={"raw_data_dir": str(folder)})
    said = elsewhere.plan("image_records").said
    assert said == [f"Millrace: image: raw_data_dir . -> {folder}"]
    same = Workflow(folder, lanes=["image"], image={"raw_data_dir": "./"})
    plan = same.plan("image_records")
    assert (plan.said, plan.jobs) == ([], [])
    # Also where the records were made with the slash.
    choices = folder / "results/image/partitions/index/choices.json"
    choices.write_text(choices.read_text().replace('"."', '"./"'))
    for workflow in (same, Workflow(folder, lanes=["image"], image=section)):
        assert workflow.plan("image_records").said == []
